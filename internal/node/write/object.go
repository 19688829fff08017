package write

import (
	"bytes"
	"fmt"

	"github.com/klauspost/compress/zlib"

	"github.com/packhorse-git/packhorse/internal/git"
)

// Object is a new object, compressed for a pack.
type Object struct {
	ID      git.ObjectID
	Type    git.ObjectType
	Data    []byte // the content; nil if it is large
	Size    int64  // of the content in bytes
	Deflate []byte // the content as a zlib stream
}

// NewObject hashes and compresses the content of an object.
func NewObject(format git.ObjectFormat, typ git.ObjectType, data []byte) *Object {
	var buf bytes.Buffer
	z := zlib.NewWriter(&buf)
	_, _ = z.Write(data) // into memory
	_ = z.Close()
	return &Object{ID: ObjectID(format, typ, data), Type: typ, Data: data, Size: int64(len(data)), Deflate: buf.Bytes()}
}

// ObjectID hashes the content of an object.
func ObjectID(format git.ObjectFormat, typ git.ObjectType, data []byte) git.ObjectID {
	hash := format.New()
	fmt.Fprintf(hash, "%s %d\x00", typ, len(data))
	hash.Write(data)
	return git.RawObjectID(hash.Sum(nil))
}
