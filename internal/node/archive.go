package node

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// Archive is a request for an archive of a commit or a tree.
type Archive struct {
	Revision string   // "": HEAD
	Paths    []string // only these files and directories; nil: all
	Prefix   string   // of each path
	Format   string   // one of archive.Formats
	// The next four fields select what the client gets, as headers of HTTP do (RFC 9110, sections 13 and 14).
	IfNoneMatch string // value of the header
	IfRange     string // the same
	Range       Range
	Head        bool // only the header
}

// ArchiveHeader describes an archive.
type ArchiveHeader struct {
	Commit string
	Size   int64 // of the archive in bytes
	SHA256 [sha256.Size]byte
}

// ETag returns the entity tag of an archive.
func (h *ArchiveHeader) ETag() string { return `"` + hex.EncodeToString(h.SHA256[:]) + `"` }

// ArchiveWriter is a ResponseWriter of Archive that needs the header.
type ArchiveWriter interface {
	// SetArchive announces the archive. It is called before StartBulk and the first Write. A second node can repeat it.
	SetArchive(ArchiveHeader)
}

// ArchivePart is what a client gets of an archive.
type ArchivePart struct {
	Offset, Length int64
	Matches        bool // the client has the archive, and gets nothing
	Ranged         bool // a part is sent, or none if it is not satisfiable
	Unsatisfiable  bool // the archive does not have the requested bytes
}

// Part returns the part of the archive that the client gets. A node and a gateway have the same result.
func (a *Archive) Part(h *ArchiveHeader) (p ArchivePart) {
	p.Length = h.Size
	if a.IfNoneMatch == "*" || strings.Contains(a.IfNoneMatch, h.ETag()) {
		p.Matches, p.Length = true, 0
		return p
	}
	if p.Ranged = a.Range.Set && (a.IfRange == "" || a.IfRange == h.ETag()); p.Ranged {
		ok := false
		p.Offset, p.Length, ok = a.Range.Of(h.Size)
		p.Unsatisfiable = !ok
	}
	return p
}

// Range is a range of bytes that a client asks for (RFC 9110, section 14.1.2). The zero value stands for the whole.
type Range struct {
	Set   bool
	First int64 // -1: the last bytes, as many as Last
	Last  int64 // -1: to the end
}

// Of returns the part of content of a size. ok is false if it has none of these bytes.
func (r Range) Of(size int64) (first, length int64, ok bool) {
	switch {
	case !r.Set:
		return 0, size, true
	case r.First < 0:
		length = min(max(r.Last, 0), size)
		return size - length, length, length > 0
	case r.First >= size:
		return 0, 0, false
	case r.Last < 0:
		return r.First, size - r.First, true
	}
	return r.First, min(r.Last, size-1) - r.First + 1, r.Last >= r.First
}
