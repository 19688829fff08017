package lfs

import (
	"bytes"
	"strconv"
)

// MaxPointer is the size in bytes below which a blob may be a pointer file (docs/spec.md of Git LFS).
const MaxPointer = 1024

// isVersion reports whether a version is that of the specification, or one of older versions of Git LFS.
func isVersion(url []byte) bool {
	switch string(url) {
	case "https://git-lfs.github.com/spec/v1", "http://git-media.io/v/2", "https://hawser.github.com/spec/v1":
		return true
	}
	return false
}

// ParsePointer returns the object that a pointer file names. ok is false if the blob is not a pointer file. It accepts
// everything that Git LFS does, like empty lines and a carriage return at the end of a line. It is less strict about
// spaces and the order of lines, and it ignores other lines.
func ParsePointer(blob []byte) (o Object, ok bool) {
	if len(blob) >= MaxPointer || !bytes.Contains(blob, []byte("oid sha256:")) {
		return Object{}, false
	}
	var hasVersion, hasOID, hasSize bool
	for line := range bytes.Lines(blob) {
		key, value, _ := bytes.Cut(bytes.TrimSpace(line), []byte(" "))
		switch string(key) {
		case "version":
			hasVersion = hasVersion || isVersion(value)
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
	return o, hasVersion && hasOID && hasSize
}
