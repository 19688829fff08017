package lfs

import (
	"bytes"
	"strconv"
)

// MaxPointer is the size in bytes below which a blob may be a pointer file (docs/spec.md of Git LFS).
const MaxPointer = 1024

// versions are the first lines of pointer files: of the specification, and of older versions of Git LFS.
var versions = [][]byte{
	[]byte("version https://git-lfs.github.com/spec/v1\n"),
	[]byte("version http://git-media.io/v/2\n"),
	[]byte("version https://hawser.github.com/spec/v1\n"),
}

// IsPointer reports whether a blob that begins like this may be a pointer file. ParsePointer decides.
func IsPointer(beginning []byte) bool {
	for _, v := range versions {
		if bytes.HasPrefix(beginning, v) {
			return true
		}
	}
	return false
}

// ParsePointer returns the object that a pointer file names. ok is false if the blob is not a pointer file. Like Git
// LFS it ignores lines of extensions.
func ParsePointer(blob []byte) (o Object, ok bool) {
	if len(blob) >= MaxPointer || !IsPointer(blob) {
		return Object{}, false
	}
	var hasOID, hasSize bool
	for line := range bytes.Lines(blob) {
		key, value, _ := bytes.Cut(bytes.TrimSuffix(line, []byte("\n")), []byte(" "))
		switch string(key) {
		case "oid":
			digits, isSHA256 := bytes.CutPrefix(value, []byte("sha256:"))
			id, err := ParseOID(string(digits))
			if !isSHA256 || err != nil || hasOID {
				return Object{}, false
			}
			o.OID, hasOID = id, true
		case "size":
			size, err := strconv.ParseInt(string(value), 10, 64)
			if err != nil || size < 0 || hasSize {
				return Object{}, false
			}
			o.Size, hasSize = size, true
		}
	}
	return o, hasOID && hasSize
}
