package node

import (
	"slices"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
)

// Values of Outcome.Command that are not commands of Git's protocol.
const (
	CommandPush        protocol.Command = "push"
	CommandLFSBatch    protocol.Command = "lfs-batch"
	CommandLFSDownload protocol.Command = "lfs-download"
	CommandLFSUpload   protocol.Command = "lfs-upload" // also a question how much of an upload has arrived
	CommandLFSLocks    protocol.Command = "lfs-locks"
)

// IsLFS reports whether a command is one of Git LFS.
func IsLFS(c protocol.Command) bool { return strings.HasPrefix(string(c), "lfs-") }

// Outcome is what a session did, for logs and metrics.
type Outcome struct {
	Command protocol.Command // "" if no request was read
	Agent   string           // the client's agent string, safe for a log
	Session string           // the client's session ID, safe for a log; may be ""
	Refs    int              // listed refs
	// HEAD names a branch that does not exist, and other branches exist; only set by a node in this process
	Dangling bool
	Wants    int
	Haves    int
	Common   int    // haves that the repository has
	Pack     string // source of the pack: hit, miss, follow, uncached; "" without a pack
	Key      string // cache key of the pack
	Made     Made   // how the pack was made, if this request made it
	Objects  uint32 // objects in the pack
	Bytes    int64  // bytes of the pack with its pkt-line framing

	// Durations of the stages of a fetch.
	Parse, Negotiate, Wait, FirstByte, Copy time.Duration

	ChildCPU    time.Duration // CPU time of the git process that this request started
	ChildMaxRSS int64         // bytes

	Warmup time.Duration // how long the report of a push waited for packs of the warm-up

	Stored Stored // what the request needed of the object store; zero without one

	Mirror     Mirror        // how a mirror answered; "" if the repository is not a mirror
	OriginTime time.Duration // how long the request waited for the mirror's origin
	Stale      time.Duration // how old the state is, because its source did not answer

	Reason  string      // why a push or LFS objects were refused, as a word for logs and metrics; "": nothing was
	Refused uint32      // LFS objects of a batch that cannot be transferred
	Updates []RefUpdate // ref updates of a push with their results, in the client's order
}

// Mirror is how a mirror answered a request, as a word for logs and metrics.
type Mirror string

const (
	MirrorLocal  Mirror = "local"  // from its repository
	MirrorFollow Mirror = "follow" // from the first update while it arrived
	MirrorRelay  Mirror = "relay"  // from the origin, which got the client's request
)

// Stored is what a request needed of the object store that has the repository.
type Stored struct {
	Record uint64        // number of the record that the answer is of, or that has the updates of a push
	Look   time.Duration // how long freshness checks took
	Append time.Duration // how long a push waited until its record was appended
	Tries  int           // records that a push tried to append
	Held   bool          // the node has all packs of the record on its disk, so that it answers fetches without the store
}

// Made is how a pack was made. The zero value means that the request did not make one.
type Made struct {
	Source   string // "native" (in process) or "git"
	Fallback string // why git made it although the native source was to, as a word for logs; "" otherwise

	// Durations of the stages: selecting the objects, and copying or encoding them. The native source sets Select.
	Select, Write time.Duration
}

// RefUpdate is one ref update of a push and its result.
type RefUpdate struct {
	Ref    string       `json:"ref"` // as sent by the client; may be an invalid name
	Old    git.ObjectID `json:"old"`
	New    git.ObjectID `json:"new"`
	Result string       `json:"result"` // UpdateOK, UpdateUnchanged, UpdateUnknown, or why the ref was not changed
}

// Results of a RefUpdate. All others are reasons that git reports.
const (
	UpdateOK        = "ok"
	UpdateUnchanged = "not changed"
	UpdateUnknown   = "unknown" // the server could not determine the result
)

// Reported reports whether git's own report names a ref that was not changed. Such a session ends like a successful
// one.
func (o *Outcome) Reported() bool {
	return slices.ContainsFunc(o.Updates, func(u RefUpdate) bool {
		return u.Result != UpdateOK && u.Result != UpdateUnchanged && u.Result != UpdateUnknown
	})
}
