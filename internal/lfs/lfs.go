// Package lfs has the terms of Git LFS that gateways and storage nodes share: objects, what happens to them, locks, and
// pointer files. It finds the pointer files among the blobs of a repository, and keeps its locks.
//
// Git LFS keeps large files outside Git's objects. A commit has a pointer file instead, which names the object with the
// content by its SHA-256. Clients transfer objects with the API of Git LFS (its docs/api) or its protocol over SSH.
package lfs

import (
	"crypto/sha256"
	"encoding/hex"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// OID is the ID of an object: the SHA-256 of its content.
type OID [sha256.Size]byte

// ParseOID parses an ID: 64 digits of lower-case hexadecimal. The error is of kind Invalid.
func ParseOID(s string) (id OID, err error) {
	if len(s) != 2*sha256.Size {
		return id, fault.New(fault.Invalid, "%.70q is not the ID of an LFS object: it has to have 64 digits", s)
	}
	for _, c := range []byte(s) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return id, fault.New(fault.Invalid, "%q is not the ID of an LFS object: digits are 0-9 and a-f", s)
		}
	}
	_, err = hex.Decode(id[:], []byte(s))
	return id, err
}

// String returns the ID in lower-case hexadecimal.
func (id OID) String() string { return hex.EncodeToString(id[:]) }

// Object names an object and its size, as a pointer file does.
type Object struct {
	OID  OID
	Size int64 // in bytes, not negative
}

// MaxBatch is the maximum number of objects in a Batch.
const MaxBatch = 10_000

// Batch asks about many objects of a repository before their transfer.
type Batch struct {
	Upload  bool   // before an upload; otherwise before a download
	Ref     string // that the client works with, for an origin; "": none
	Objects []Object
}

// State is what a storage node knows about an object.
type State uint8

const (
	// Missing means that the repository does not have the object. A client may upload it.
	Missing State = iota
	// Present means that the repository has the object with this size. It does not need to be uploaded.
	Present
	// Refused means that the object cannot be transferred. Status.Err is the reason.
	Refused
)

// Status is the state of one object of a Batch.
type Status struct {
	State State
	Err   error // if State is Refused, of package fault: Invalid (another size), Full (quota, disk), Unavailable
}

// Download asks for an object or for a part of it.
type Download struct {
	Object
	Offset int64 // of the first byte; at most Size
	Length int64 // the number of bytes; negative: the rest
}

// Upload announces an object whose content follows.
type Upload struct {
	Object
	Ref string // that the client works with, for an origin; "": none
	// Offset is the number of bytes of the object that earlier uploads have sent. Bytes after it are replaced. An offset
	// after the end of what has arrived is Invalid.
	Offset int64
	// Partial accepts an end before Size: what has arrived is kept, and another upload continues.
	Partial bool
}
