package uploadpack

import (
	"bytes"
	"context"
	"hash/maphash"
	"slices"
	"sync"
	"weak"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
)

const (
	maxCachedRequest = 256 << 10 // longest request that is remembered, in bytes
	maxCachedBytes   = 16 << 20  // bytes of requests and answers together
	maxCachedAnswer  = 1 << 20   // bytes of one of them
	cachedAnswerCost = 1 << 10   // bytes of one besides its request and sections, an upper bound
)

// answerCache caches the negotiations of recent clones, by the bytes of the request. It does not cache packs. A clone
// of 1,500 refs takes 2 ms to parse, look up and bring into canonical form. That is a third of the cost of sending 67
// MB from the pack cache.
//
// An answer is reused only for the same bytes, in the same repository, while the ref snapshot is the same object. Only
// requests without haves and boundary, whose wants are all tips of that snapshot, are cached. So a new negotiation
// would give the same answer. It is safe for concurrent use, and the zero value is empty.
type answerCache struct {
	once sync.Once
	seed maphash.Seed

	mu     sync.Mutex
	byHash map[uint64]*cachedAnswer
	bytes  int
}

// cachedAnswer is the result of one negotiation. It is immutable.
type cachedAnswer struct {
	request     []byte
	session     node.Session
	incarnation string
	snapshot    weak.Pointer[refs.Snapshot]

	sections []byte // without spare capacity, so that append copies them
	spec     *packsource.Spec
	form     packFormat
	outcome  node.Outcome
	shape    *shape // nil: none
}

func (a *cachedAnswer) size() int {
	return cachedAnswerCost + len(a.request) + len(a.sections) +
		(len(a.spec.Wants)+len(a.spec.Shallow)+2*len(a.spec.Tags))*git.SHA256.Size()
}

// cacheLookup is a request whose answer may be cached, with the cached answer if there is one.
type cacheLookup struct {
	raw      []byte // in the request's buffer; nil: not to be cached
	session  node.Session
	hash     uint64
	snapshot *refs.Snapshot
	answer   *cachedAnswer // nil: not cached
}

// fetchBegins is the text after the first packet's length in a fetch.
var fetchBegins = [...]string{protocol.V0: "want ", protocol.V1: "want ", protocol.V2: "command=fetch"}

// lookUp looks for a cached answer to a request. The request stays unread.
func (a *answerCache) lookUp(ctx context.Context, r *repo.Repo, session node.Session,
	request *pktline.Reader) (cacheLookup,
	error) {
	if !session.Stateless {
		return cacheLookup{}, nil // the client sends the rest after our responses
	}
	raw, whole := request.Whole(maxCachedRequest)
	if !whole || len(raw) < 4 || !bytes.HasPrefix(raw[4:], []byte(fetchBegins[session.Version])) {
		return cacheLookup{}, nil
	}
	if shallow, err := r.Shallow(); err != nil || len(shallow) > 0 {
		return cacheLookup{}, err
	}
	snapshot, err := r.Refs.SnapshotOf(ctx, nil) // the wants of a cached answer are its tips
	if err != nil {
		return cacheLookup{}, err
	}
	a.once.Do(func() { a.seed = maphash.MakeSeed() })
	q := cacheLookup{raw: raw, session: session, hash: maphash.Bytes(a.seed, raw), snapshot: snapshot}
	a.mu.Lock()
	known := a.byHash[q.hash]
	a.mu.Unlock()
	if known != nil && known.session == session && known.incarnation == r.Incarnation &&
		known.snapshot == weak.Make(snapshot) && bytes.Equal(known.request, raw) {
		if err := r.Objects.Refresh(); err != nil { // it fails if alternates now lead out of the root
			return cacheLookup{}, err
		}
		q.answer = known
	}
	return q, nil
}

// add caches an answer if it may be used again.
func (a *answerCache) add(f *fetch, spec *packsource.Spec, form packFormat, shape *shape) {
	q, req := f.lookup, f.request
	switch {
	case f.outcome.Session != "": // the request contains a random session ID, so it is not repeated
		return
	case f.tagsMissing: // they may be repaired without a change of the refs
		return
	case q.raw == nil || q.snapshot != f.snapshot || f.outcome.Fetch.Haves+len(req.Shallow)+len(f.serverShallow) > 0:
		return
	case maphash.Bytes(a.seed, q.raw) != q.hash: // the buffer was reused
		return
	}
	if shape == nil { // the wants of a shape are tips
		if all, err := f.areTips(f.wants); err != nil || !all {
			return
		}
	}
	known := &cachedAnswer{
		request: bytes.Clone(q.raw), session: q.session, incarnation: f.repo.Incarnation,
		snapshot: weak.Make(f.snapshot),
		sections: slices.Clip(bytes.Clone(f.lines.Buf)), spec: spec, form: form, shape: shape,
		outcome: node.Outcome{Command: protocol.CommandFetch, Agent: f.outcome.Agent,
			Fetch: node.FetchOutcome{Wants: f.outcome.Fetch.Wants}},
	}
	if known.size() > maxCachedAnswer {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.byHash == nil {
		a.byHash = make(map[uint64]*cachedAnswer)
	}
	a.forget(q.hash)
	for hash := range a.byHash { // in any order: frequent requests are soon cached again
		if a.bytes+known.size() <= maxCachedBytes {
			break
		}
		a.forget(hash)
	}
	a.byHash[q.hash] = known
	a.bytes += known.size()
}

func (a *answerCache) forget(hash uint64) {
	if old := a.byHash[hash]; old != nil {
		a.bytes -= old.size()
		delete(a.byHash, hash)
	}
}
