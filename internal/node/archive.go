package node

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// Archive is a request for an archive of a commit.
type Archive struct {
	Revision string   // "": HEAD
	Paths    []string // only these files and directories; nil: all
	Prefix   string   // of each path
	Format   string   // one of archive.Formats
	// IfNoneMatch is the value of the header (RFC 9110, section 13.1.2).
	IfNoneMatch string
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

// IsKnown reports whether the client has the archive, and gets nothing.
func (a *Archive) IsKnown(h *ArchiveHeader) bool {
	return a.IfNoneMatch == "*" || strings.Contains(a.IfNoneMatch, h.ETag())
}
