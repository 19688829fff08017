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
	"os"
	"time"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/graph"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/schedule/balance"
)

// Spec specifies a pack. All lists but First are sorted by ID and have no duplicates.
type Spec struct {
	Repo  Repository
	Wants []git.ObjectID // objects that the pack must reach
	// First has the wanted trees and blobs, in git's order, if there is a filter. The pack contains them even if the
	// filter would omit them.
	First []git.ObjectID
	// Haves are common objects. The pack omits them and all objects that they reach. Haves that others reach are left
	// out.
	Haves   []git.ObjectID
	Shallow []git.ObjectID // commits whose parents are ignored: the boundaries of client, request and repository
	Filter  string         // canonical filter specification with all names resolved to object IDs; "" for none
	Tags    []Tag          // annotated tags to add if their targets are in the pack (include-tag)
	Thin    bool           // deltas may refer to objects that the haves reach
	Offset  bool           // deltas may name their base by offset (ofs-delta)

	// Caller is the client that the pack is made for. Callers share the slots for git processes fairly. It is not part
	// of the key.
	Caller balance.Caller

	key *Key // set by Seal
}

// Tag is an annotated tag and its peeled target.
type Tag struct{ ID, Peeled git.ObjectID }

// Repository is the part of a repository that a pack is made from.
type Repository struct {
	Objects     string // path of the object directory
	Format      git.ObjectFormat
	Incarnation string // changes when a repository is deleted and another is created under the same path

	// The open repository, which is not part of the key. A Source that needs them and finds nil opens Objects itself.
	Store *pack.Store
	Graph *graph.Graph

	// Hold waits until the objects can be read, and keeps them until release is called. It is not part of the key. Nil:
	// they can always be read.
	Hold func(ctx context.Context) (release func(), err error)
}

// Key identifies a pack.
type Key [sha256.Size]byte

func (k Key) String() string { return hex.EncodeToString(k[:]) }

// ParseKey parses the result of String.
func ParseKey(s string) (k Key, ok bool) {
	if len(s) != 2*len(k) {
		return k, false
	}
	_, err := hex.Decode(k[:], []byte(s))
	return k, err == nil
}

// keyVersion is part of every key; raise it when the pack for the same Spec changes.
const keyVersion = "packhorse pack 2\n"

// Seal computes and stores the key. The Spec must not change afterwards.
func (s *Spec) Seal() {
	key := s.Key()
	s.key = &key
}

// Key returns the hash of the Spec. It covers the incarnation of the repository instead of the path of its objects, and
// not the caller.
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
	if len(s.First) > 0 { // the wants determine it, but packs of earlier versions were made without it
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
	// Open returns when the pack is being made or is stored. It waits for a slot first, so an overload is an error
	// (fault.Exhausted) before any byte was sent. The caller closes the Pack, and sends it at most once. Cancelling ctx
	// abandons the pack for this caller. The Source may continue to make it for other callers.
	Open(ctx context.Context, spec *Spec) (Pack, error)
}

// Pack is one pack for one reader. It is not safe for concurrent use.
type Pack interface {
	// Size returns the number of bytes that Send writes, or -1 if it is not known yet.
	Size() int64
	// Send writes the framed pack to out. A nil error means that the pack is complete. After an error the caller must
	// make the client notice (side-band 3, or a closed connection). Errors of out are returned unchanged.
	Send(ctx context.Context, out Output) error
	// Info returns the values that are known so far. After Send it is complete.
	Info() Info
	// Close releases the pack. It ends the work if no other reader wants it, and returns when all resources are
	// released.
	Close() error
}

// Output takes a framed pack. Calls are not concurrent, and each begins at a packet boundary. If it is also an
// io.ReaderFrom, its ReadFrom gets parts of files as *bulk.Section, so that the kernel can copy them.
type Output interface {
	// Write takes whole side-band-1 packets. It does not keep p.
	io.Writer
	// Progress takes text for people (side-band 2). It does not keep text.
	Progress(text []byte) error
	// KeepAliveAfter returns the maximum time without output. 0 means no limit. The value is constant.
	KeepAliveAfter() time.Duration
	// KeepAlive is called after KeepAliveAfter without output.
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
	Made    Made          // if this reader's request made the pack
}

// Made describes how a pack was made.
type Made struct {
	Source   string        // SourceNative or SourceGit; "" if this reader did not make it
	Fallback string        // why git made it although the native source was to: a word; "" otherwise
	Select   time.Duration // choosing the objects
	Write    time.Duration // copying and encoding them, and sending

	// Objects of the pack by representation: entries copied from the repository's packs, from earlier packs of the cache,
	// and encoded again.
	ReusedDisk, ReusedCache, Encoded Count
}

// Values of Made.Source.
const (
	SourceNative = "native" // in process
	SourceGit    = "git"    // git pack-objects
)

// Count is a number of objects and the size of their entries in the pack.
type Count struct{ Objects, Bytes int64 }

// Indexed is a Pack that knows where its objects are. A Source that keeps the pack also keeps its index, so that later
// packs can be composed from it.
type Indexed interface {
	// WriteIndex writes the index of the pack in a format of the Source that made it, or nothing if there is no index. It
	// is called after Send has succeeded, and before Close.
	WriteIndex(w io.Writer) error
}

// Library has packs that were made earlier, with their indexes. It is safe for concurrent use.
type Library interface {
	// Packs lists the complete packs with an index of a repository, which is named by its Incarnation, the newest first.
	Packs(incarnation string) []Key
	// Borrow opens a pack, which stays in the Library until the result is closed. It does not count as a request for the
	// pack. The index is unchanged, but the file of the pack may be damaged, so the caller verifies the objects that it
	// reads. The error is NotFound if the pack is not there any more.
	Borrow(key Key) (*Borrowed, error)
}

// Borrowed is a pack of a Library. The caller closes it once.
type Borrowed struct {
	Pack  *os.File // framed, as Send writes it
	Size  int64    // of Pack
	Index *os.File // what WriteIndex wrote
	Close func()
}
