// Package packsource makes packs from specifications.
//
// A Spec is everything that a pack depends on. A Source gets nothing else of the request, so a pack is a pure function
// of the Spec's Key. A pack made for one client serves every client whose request has the same Key, for as long as the
// repository exists. Git is the Source that runs `git pack-objects`. Package packcache is a Source that keeps the packs
// of another Source.
//
// Packs are framed for the protocol's packfile section: side-band-1 pkt-lines of at most pktline.MaxLine bytes
// (gitprotocol-pack(5)). They are framed only once.
package packsource

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"io"
	"time"

	"github.com/packhorse-git/packhorse/internal/balance"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/process"
)

// Spec specifies a pack. All lists but First are sorted by ID and have no duplicates.
type Spec struct {
	Repo  Repository
	Wants []git.ObjectID // objects that the pack must reach
	// With a filter: the trees and blobs among what Wants name, which are in the pack whatever the filter, in git's
	// order.
	First   []git.ObjectID
	Haves   []git.ObjectID // objects to leave out, with all that they reach: common haves reduced to the maximal ones
	Shallow []git.ObjectID // commits to be treated as having no parents: the client's, new and server's own boundary
	Filter  string         // canonical filter specification with all names resolved to object IDs; "" for none
	Tags    []Tag          // annotated tags to add if their targets are in the pack (include-tag)
	Thin    bool           // deltas may refer to objects that the haves reach
	Offset  bool           // deltas may name their base by offset (ofs-delta)

	// Caller is the client that the pack is made for. Callers share the slots for git processes fairly. It is not part
	// of the key.
	Caller balance.Caller

	key *Key // once sealed
}

// Tag is an annotated tag and its peeled target.
type Tag struct{ ID, Peeled git.ObjectID }

// Repository is the part of a repository that a pack is made from.
type Repository struct {
	Objects     string // path of the object directory
	Format      git.ObjectFormat
	Incarnation string // changes when a repository is deleted and made again under the same path
}

// Key identifies a pack.
type Key [sha256.Size]byte

func (k Key) String() string { return hex.EncodeToString(k[:]) }

// ParseKey reads a key as String writes it.
func ParseKey(s string) (k Key, ok bool) {
	if len(s) != 2*len(k) {
		return k, false
	}
	_, err := hex.Decode(k[:], []byte(s))
	return k, err == nil
}

// keyVersion is part of every key; raise it when the pack for the same Spec changes.
const keyVersion = "packhorse pack 1\n"

// Seal computes the key once and for all. The Spec is not changed any more.
func (s *Spec) Seal() {
	key := s.Key()
	s.key = &key
}

// Key hashes all of the Spec, except for where the objects lie on disk: the incarnation stands for that.
func (s *Spec) Key() Key {
	if s.key != nil {
		return *s.key
	}
	h := sha256.New()
	io.WriteString(h, keyVersion)
	writeString(h, s.Repo.Incarnation)
	writeString(h, s.Repo.Format.String())
	writeString(h, s.Filter)
	var flags [2]byte
	if s.Thin {
		flags[0] = 1
	}
	if s.Offset {
		flags[1] = 1
	}
	h.Write(flags[:])
	writeIDs(h, s.Wants)
	writeIDs(h, s.Haves)
	writeIDs(h, s.Shallow)
	if len(s.First) > 0 { // it follows from the wants, but older packs were made without it
		writeIDs(h, s.First)
	}
	writeLength(h, len(s.Tags))
	for i := range s.Tags {
		h.Write(s.Tags[i].ID.Raw())
	}
	var k Key
	h.Sum(k[:0])
	return k
}

// For returns a copy of the Spec for another caller. It shares all the lists.
func (s *Spec) For(c balance.Caller) *Spec {
	t := *s
	t.Caller = c
	return &t
}

func writeLength(h hash.Hash, n int) {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], uint64(n))
	h.Write(b[:])
}

func writeString(h hash.Hash, s string) {
	writeLength(h, len(s))
	io.WriteString(h, s)
}

func writeIDs(h hash.Hash, ids []git.ObjectID) {
	writeLength(h, len(ids))
	for i := range ids {
		h.Write(ids[i].Raw())
	}
}

// Source makes packs. It is safe for concurrent use.
type Source interface {
	// Open returns once the pack's first bytes are under way or stored: after the wait for a slot, so that an overload
	// is an error (fault.Exhausted) before anything was sent. The caller closes the Pack, and sends it at most once.
	// Cancelling ctx abandons the pack for this caller; whether the work goes on for others is the Source's business.
	Open(ctx context.Context, spec *Spec) (Pack, error)
}

// Pack is one pack on its way to one reader. It is used by one goroutine.
type Pack interface {
	// Size is the length in bytes of all that Send will write, or -1 if that is not known yet.
	Size() int64
	// Send writes the framed pack to out. A nil error means that the pack is complete. After an error the caller must
	// make the client notice (side-band 3, or a closed connection). Errors of out are returned unchanged.
	Send(ctx context.Context, out Output) error
	// Info returns the facts known so far; all of them after Send.
	Info() Info
	// Close releases the pack. It ends the work if no other reader wants it, and returns when all resources are
	// released.
	Close() error
}

// Output takes a framed pack. Calls come one at a time, each at a packet boundary. If it is also an io.ReaderFrom,
// parts of files are handed to it as a *bulk.Section, so that the kernel can copy them.
type Output interface {
	// Write takes whole side-band-1 packets. It does not keep p.
	io.Writer
	// Progress takes text for people (side-band 2). It does not keep text.
	Progress(text []byte) error
	// KeepAliveAfter is how long it may be silent; 0 means without a limit. It stays the same.
	KeepAliveAfter() time.Duration
	// KeepAlive is called when nothing was sent for that long.
	KeepAlive() error
}

// Result is where a pack came from.
type Result string

const (
	Uncached Result = "uncached" // made for this reader alone
	Miss     Result = "miss"     // made for this reader and kept
	Follow   Result = "follow"   // being made for another reader
	Hit      Result = "hit"      // found complete
)

// Info describes a pack for logs and metrics.
type Info struct {
	Result  Result
	Bytes   int64         // framed bytes handed to the Output so far
	Objects uint32        // from the pack's header; 0 while unknown
	Wait    time.Duration // waited for a slot
	Child   process.Usage // the use of the git process, if this reader's request started one and it has ended
}
