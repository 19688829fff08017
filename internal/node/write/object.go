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
	Data    []byte            // the content; nil if it is large
	Size    int64             // of the content in bytes
	Deflate []byte            // the content as a zlib stream
	File    *io.SectionReader // the same, instead of Deflate; nil: none
}

// NewObject hashes and compresses the content of an object.
func NewObject(format git.ObjectFormat, typ git.ObjectType, data []byte) *Object {
	return &Object{ID: ObjectID(format, typ, data), Type: typ, Data: data, Size: int64(len(data)), Deflate: Deflate(data)}
}

// Deflate returns data as a zlib stream.
func Deflate(data []byte) []byte {
	var buf bytes.Buffer
	z := compressors.Get().(*zlib.Writer)
	defer compressors.Put(z)
	z.Reset(&buf)
	_, _ = z.Write(data) // in memory
	_ = z.Close()
	return buf.Bytes()
}

// compressors are zlib writers, each with about 800 KB of memory.
var compressors = sync.Pool{New: func() any { return zlib.NewWriter(nil) }}

// Stream returns the content as a zlib stream.
func (o *Object) Stream() io.Reader {
	if o.File != nil {
		return io.NewSectionReader(o.File, 0, o.File.Size())
	}
	return bytes.NewReader(o.Deflate)
}

// StreamSize returns the size of Stream in bytes.
func (o *Object) StreamSize() int64 {
	if o.File != nil {
		return o.File.Size()
	}
	return int64(len(o.Deflate))
}

// ObjectID hashes the content of an object.
func ObjectID(format git.ObjectFormat, typ git.ObjectType, data []byte) git.ObjectID {
	hash := newHash(format, typ, int64(len(data)))
	hash.Write(data)
	return git.RawObjectID(hash.Sum(nil))
}

// Hash hashes the content of an object, which has size bytes.
func Hash(format git.ObjectFormat, typ git.ObjectType, content io.Reader, size int64) (git.ObjectID, error) {
	hash := newHash(format, typ, size)
	n, err := io.Copy(hash, content)
	if err == nil && n != size {
		err = io.ErrUnexpectedEOF
	}
	return git.RawObjectID(hash.Sum(nil)), err
}

// newHash begins the hash of an object with its header.
func newHash(format git.ObjectFormat, typ git.ObjectType, size int64) hash.Hash {
	h := format.New()
	h.Write(append(strconv.AppendInt(append([]byte(typ.String()), ' '), size, 10), 0))
	return h
}
