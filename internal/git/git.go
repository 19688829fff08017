// Package git holds the vocabulary of the system: object IDs, ref names, repository paths. They are parsed once, at
// the edge, and trusted inside; a plain string never travels. No I/O.
package git

import (
	"bytes"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
)

// ObjectFormat is a repository's hash function.
type ObjectFormat uint8

const (
	SHA1   ObjectFormat = 1
	SHA256 ObjectFormat = 2
)

// ParseObjectFormat reads the name that `extensions.objectFormat` and the protocol use.
func ParseObjectFormat(s string) (ObjectFormat, error) {
	switch s {
	case "sha1":
		return SHA1, nil
	case "sha256":
		return SHA256, nil
	}
	return 0, fmt.Errorf("unknown object format %q", s)
}

func (f ObjectFormat) String() string {
	if f == SHA256 {
		return "sha256"
	}
	return "sha1"
}

// Size is the length of a raw object ID in bytes.
func (f ObjectFormat) Size() int {
	if f == SHA256 {
		return sha256.Size
	}
	return sha1.Size
}

// HexSize is the length of a written object ID in characters.
func (f ObjectFormat) HexSize() int { return 2 * f.Size() }

// New starts a hash of this format.
func (f ObjectFormat) New() hash.Hash {
	if f == SHA256 {
		return sha256.New()
	}
	return sha1.New()
}

// maxRawSize is the length of the longest raw object ID.
const maxRawSize = sha256.Size

// ObjectID names an object. The zero value names none (it is also git's all-zero ID of either format: IsZero).
// Comparable, so it can be a map key.
type ObjectID struct {
	raw  [maxRawSize]byte
	size uint8 // 0, 20 or 32
}

// ParseObjectID reads a full object ID in hexadecimal: 40 characters are SHA-1, 64 are SHA-256.
func ParseObjectID[T string | []byte](s T) (ObjectID, error) {
	var id ObjectID
	switch len(s) {
	case SHA1.HexSize(), SHA256.HexSize():
	default:
		return id, fmt.Errorf("bad object ID %.80q: want 40 or 64 hexadecimal digits", string(s))
	}
	bad := byte(0) // has its high bits set if a character is not a digit
	for i := range len(s) / 2 {
		hi, lo := digitValue[s[2*i]], digitValue[s[2*i+1]]
		bad |= hi | lo
		id.raw[i] = hi<<4 | lo
	}
	if bad > 0xf {
		return ObjectID{}, fmt.Errorf("bad object ID %.80q: not hexadecimal", string(s))
	}
	id.size = uint8(len(s) / 2)
	return id, nil
}

// MustParseObjectID is ParseObjectID for constants and tests; it panics on a bad ID.
func MustParseObjectID(s string) ObjectID {
	id, err := ParseObjectID(s)
	if err != nil {
		panic(err)
	}
	return id
}

// RawObjectID reads a raw object ID: 20 bytes are SHA-1, 32 are SHA-256. Any other length is the zero ID.
func RawObjectID(raw []byte) ObjectID {
	var id ObjectID
	if len(raw) == sha1.Size || len(raw) == sha256.Size {
		id.size = uint8(copy(id.raw[:], raw))
	}
	return id
}

// digitValue is the value of each hexadecimal digit, and 0xff for all other bytes.
var digitValue = func() (t [256]byte) {
	for i := range t {
		t[i] = 0xff
	}
	for i := range byte(16) {
		t["0123456789abcdef"[i]], t["0123456789ABCDEF"[i]] = i, i
	}
	return t
}()

// IsZero reports whether the ID names no object.
func (id ObjectID) IsZero() bool { return id.raw == [maxRawSize]byte{} }

// Format returns the object format, which follows from the length of the ID.
func (id ObjectID) Format() ObjectFormat {
	if id.size == sha256.Size {
		return SHA256
	}
	return SHA1
}

// Raw is the ID's bytes, in place.
func (id *ObjectID) Raw() []byte { return id.raw[:id.size] }

// Compare orders IDs by their bytes, as packs and indexes do. The first eight almost always decide.
func (id ObjectID) Compare(o ObjectID) int {
	a, b := binary.BigEndian.Uint64(id.raw[:]), binary.BigEndian.Uint64(o.raw[:])
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return bytes.Compare(id.raw[8:], o.raw[8:])
}

// AppendHex appends the ID as it is written in the protocol.
func (id ObjectID) AppendHex(b []byte) []byte { return hex.AppendEncode(b, id.raw[:id.size]) }

func (id ObjectID) String() string { return string(id.AppendHex(nil)) }

// MarshalText writes the ID in hexadecimal.
func (id ObjectID) MarshalText() ([]byte, error) { return id.AppendHex(nil), nil }

// ObjectType is the type of an object, with the numbers that packs use.
type ObjectType uint8

const (
	Commit ObjectType = 1
	Tree   ObjectType = 2
	Blob   ObjectType = 3
	Tag    ObjectType = 4
)

func (t ObjectType) String() string {
	switch t {
	case Commit:
		return "commit"
	case Tree:
		return "tree"
	case Blob:
		return "blob"
	case Tag:
		return "tag"
	}
	return fmt.Sprintf("type %d", uint8(t))
}

// ParseObjectType reads a type's name.
func ParseObjectType(s string) (ObjectType, error) {
	switch s {
	case "commit":
		return Commit, nil
	case "tree":
		return Tree, nil
	case "blob":
		return Blob, nil
	case "tag":
		return Tag, nil
	}
	return 0, fmt.Errorf("unknown object type %q", s)
}
