package write

import (
	"bytes"
	"hash"
	"io"
	"strconv"
	"sync"

	"github.com/klauspost/compress/zlib"

	"github.com/packhorse-git/packhorse/internal/git"
)

// Object is a new object, compressed for a pack.
type Object struct {
	ID      git.ObjectID
	Type    git.ObjectType
	Data    []byte // the content; nil if it is large
	Size    int64  // of the content in bytes
	Deflate []byte // the content as a zlib stream; of a large object it can be a mapped file
}

// NewObject hashes and compresses the content of an object.
func NewObject(format git.ObjectFormat, typ git.ObjectType, data []byte) *Object {
	var buf bytes.Buffer
	id, _ := Compress(&buf, format, typ, bytes.NewReader(data), int64(len(data))) // in memory
	return &Object{ID: id, Type: typ, Data: data, Size: int64(len(data)), Deflate: buf.Bytes()}
}

// compressors are zlib writers, each with about 800 KB of memory.
var compressors = sync.Pool{New: func() any { return zlib.NewWriter(nil) }}

// Compress writes the content of an object to w as a zlib stream, and returns the ID of the object. The content has to
// have size bytes.
func Compress(w io.Writer, format git.ObjectFormat, typ git.ObjectType, content io.Reader, size int64) (git.ObjectID,
	error) {
	hash := newHash(format, typ, size)
	z := compressors.Get().(*zlib.Writer)
	defer compressors.Put(z)
	z.Reset(w)
	_, err := io.Copy(io.MultiWriter(z, hash), content)
	if closeErr := z.Close(); err == nil {
		err = closeErr
	}
	return git.RawObjectID(hash.Sum(nil)), err
}

// ObjectID hashes the content of an object.
func ObjectID(format git.ObjectFormat, typ git.ObjectType, data []byte) git.ObjectID {
	hash := newHash(format, typ, int64(len(data)))
	hash.Write(data)
	return git.RawObjectID(hash.Sum(nil))
}

// newHash begins the hash of an object with its header.
func newHash(format git.ObjectFormat, typ git.ObjectType, size int64) hash.Hash {
	h := format.New()
	h.Write(append(strconv.AppendInt(append([]byte(typ.String()), ' '), size, 10), 0))
	return h
}
