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
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/packsource"
	"github.com/packhorse-git/packhorse/internal/repo"
)

const (
	maxQuestion = 256 << 10 // longest request that is remembered, in bytes
	maxAnswers  = 16 << 20  // bytes of requests and answers together
	maxAnswer   = 1 << 20   // bytes of one of them
	answerCost  = 1 << 10   // bytes that one takes beside its request and answer, generously
)

// answers caches the results of the latest fetches of fresh clients, by the bytes of the request. It caches no pack,
// only the negotiation. A clone of 1,500 refs takes 2 ms to parse, look up and bring into canonical form. That is a
// third of the cost of sending 67 MB from the cache.
//
// An answer is reused only for the same bytes, in the same repository, while the ref snapshot is the same object. Only
// requests without haves and boundary, whose wants are all tips of that snapshot, are cached. So a new negotiation
// would give the same answer. Safe for concurrent use; the zero value is ready.
type answers struct {
	once sync.Once
	seed maphash.Seed

	mu     sync.Mutex
	byHash map[uint64]*knownAnswer
	bytes  int
}

// knownAnswer is what a request led to. Immutable.
type knownAnswer struct {
	request     []byte
	session     node.Session
	incarnation string
	snapshot    weak.Pointer[refs.Snapshot]

	sections []byte // without spare capacity: what is appended goes elsewhere
	spec     *packsource.Spec
	form     form
	outcome  node.Outcome
	shape    *shape // nil: none
}

func (a *knownAnswer) size() int {
	return answerCost + len(a.request) + len(a.sections) +
		(len(a.spec.Wants)+len(a.spec.Shallow)+2*len(a.spec.Tags))*git.SHA256.Size()
}

// question is a request that may be remembered.
type question struct {
	raw      []byte // in the request's buffer; nil: not a candidate
	session  node.Session
	hash     uint64
	snapshot *refs.Snapshot
	answer   *knownAnswer // nil: not known yet
}

// fetchBegins is the text after the first packet's length in a fetch.
var fetchBegins = [...]string{protocol.V0: "want ", protocol.V1: "want ", protocol.V2: "command=fetch"}

// ask looks whether a request was answered before. The request stays unread.
func (a *answers) ask(ctx context.Context, r *repo.Repo, session node.Session, request *pktline.Reader) (question,
	error) {
	if !session.Stateless {
		return question{}, nil // it has no end before it is answered
	}
	raw, whole := request.Whole(maxQuestion)
	if !whole || len(raw) < 4 || !bytes.HasPrefix(raw[4:], []byte(fetchBegins[session.Version])) {
		return question{}, nil
	}
	if shallow, err := r.Shallow(); err != nil || len(shallow) > 0 {
		return question{}, err
	}
	snapshot, err := r.Refs.Snapshot(ctx)
	if err != nil {
		return question{}, err
	}
	a.once.Do(func() { a.seed = maphash.MakeSeed() })
	q := question{raw: raw, session: session, hash: maphash.Bytes(a.seed, raw), snapshot: snapshot}
	a.mu.Lock()
	known := a.byHash[q.hash]
	a.mu.Unlock()
	if known != nil && known.session == session && known.incarnation == r.Incarnation &&
		known.snapshot == weak.Make(snapshot) &&
		bytes.Equal(known.request, raw) {
		if err := r.Objects.Refresh(); err != nil { // alternates may lead out of the root now
			return question{}, err
		}
		q.answer = known
	}
	return q, nil
}

// keep remembers an answer if it may be used again.
func (a *answers) keep(f *fetch, spec *packsource.Spec, form form, shape *shape) {
	q, req := f.question, f.request
	if f.outcome.Session != "" || f.tagsMissing {
		// such a request never comes again, or those tags may be mended before it does
		return
	}
	if q.raw == nil || q.snapshot != f.snapshot || f.outcome.Haves+len(req.Shallow)+len(f.serverShallow) > 0 {
		return
	}
	if maphash.Bytes(a.seed, q.raw) != q.hash {
		return // the buffer has been used for something else
	}
	tips, err := f.visibleTips()
	if err != nil {
		return
	}
	if len(others(f.wants, tips)) > 0 {
		return
	}
	known := &knownAnswer{
		request: bytes.Clone(q.raw), session: q.session, incarnation: f.repo.Incarnation,
		snapshot: weak.Make(f.snapshot),
		sections: slices.Clip(bytes.Clone(f.lines.Buf)), spec: spec, form: form, shape: shape,
		outcome: node.Outcome{Command: protocol.CommandFetch, Agent: f.outcome.Agent, Wants: f.outcome.Wants},
	}
	if known.size() > maxAnswer {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.byHash == nil {
		a.byHash = make(map[uint64]*knownAnswer)
	}
	a.forget(q.hash)
	for hash := range a.byHash { // any will do: those in demand come back at once
		if a.bytes+known.size() <= maxAnswers {
			break
		}
		a.forget(hash)
	}
	a.byHash[q.hash] = known
	a.bytes += known.size()
}

func (a *answers) forget(hash uint64) {
	if old := a.byHash[hash]; old != nil {
		a.bytes -= old.size()
		delete(a.byHash, hash)
	}
}
