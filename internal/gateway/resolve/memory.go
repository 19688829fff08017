package resolve

import (
	"math"
	"strings"
	"sync/atomic"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node"
)

// state is one version of a repository's refs, with the answers for it. When it ends, all its entries become invalid at
// once.
type state struct {
	version git.Version
	over    atomic.Bool  // a newer version is, or may be, known
	until   atomic.Int64 // end unless it is confirmed; forever if events end it
	used    atomic.Bool  // used since the last sweep
	at      int64        // last time it was known to be current, without events; guarded by the lock of the Tiers
}

const forever = math.MaxInt64

// holds reports whether the state is valid. It calls now only if the time matters.
func (s *state) holds(now func() int64) bool {
	if s.over.Load() {
		return false
	}
	until := s.until.Load()
	return until == forever || now() < until
}

// repository is the record of a repository in Tiers. It is guarded by their lock.
type repository struct {
	path  git.RepoPath
	state *state // newest known state, or nil
	// fence counts new information. Two answers from before and after it cannot be compared if their versions cannot.
	fence uint64

	stream  *stream     // source of events, or nil
	joining *stream     // future source, after its first event
	queued  bool        // waits to be watched
	heard   git.Version // version of the stream's latest event; zero if the repository does not exist

	flights int // flights that use the record
	entries int
}

// comparable reports whether the generations of two versions can be compared.
func comparable(a, b git.Version) bool { return a.Incarnation == b.Incarnation && a.Epoch == b.Epoch }

// learn records that a look-up was answered from a version. The look-up started at a time with the given fence. learn
// returns false if a newer version is known, or the version cannot be compared with later information. t.mu is held.
func (t *Tiers) learn(r *repository, fence uint64, v git.Version, began int64) (isCurrent bool) {
	s := r.state
	switch {
	case s != nil && comparable(s.version, v) && v.Generation < s.version.Generation:
		return false
	case s != nil && s.version == v:
		t.confirm(r, began)
		return true
	case s != nil && comparable(s.version, v), r.fence == fence:
		if s != nil {
			t.o.Metrics.stale.Observe(time.Duration(t.unknownFor(r, s)).Seconds())
		}
		t.begin(r, v, began)
		return true
	}
	t.end(r) // both may have been current; the next look-up decides
	return false
}

// unknownFor returns the time without information about a state that turns out to be old.
func (t *Tiers) unknownFor(r *repository, s *state) int64 {
	if s.until.Load() == forever {
		return 0 // its event will arrive
	}
	return min(t.now(), s.until.Load()) - s.at
}

// begin replaces the state as of a time. t.mu is held.
func (t *Tiers) begin(r *repository, v git.Version, at int64) {
	t.end(r)
	r.state = &state{version: v}
	t.confirm(r, at)
}

// confirm records that the state was current at a time. t.mu is held.
func (t *Tiers) confirm(r *repository, at int64) {
	s := r.state
	if r.stream != nil && comparable(r.heard, s.version) {
		s.until.Store(forever)
		return
	}
	s.at = max(s.at, at)
	s.until.Store(s.at + int64(t.o.TTL))
	if r.stream == nil {
		t.watchSoon(r)
	}
}

// end drops the answers of a repository. t.mu is held.
func (t *Tiers) end(r *repository) {
	if r.state != nil {
		r.state.over.Store(true)
		r.state = nil
	}
	r.fence++
}

// hear processes an event of the repository's stream. t.mu is held.
//
// It ends or confirms the state, and never starts a state of another incarnation or epoch. An event may have been
// delayed for long, and only an answer of the node has the current version.
func (t *Tiers) hear(r *repository, e node.Event) {
	r.heard = e.Version
	s := r.state
	switch {
	case e.Gone:
		r.heard = git.Version{}
		t.end(r)
	case s == nil:
		r.fence++
	case comparable(s.version, e.Version) && e.Version.Generation <= s.version.Generation:
		t.confirm(r, t.now())
	case comparable(s.version, e.Version):
		waited := int64(0)
		if s.until.Load() != forever {
			waited = t.unknownFor(r, s)
		}
		t.o.Metrics.stale.Observe(time.Duration(waited).Seconds())
		t.begin(r, e.Version, t.now())
	default:
		t.end(r)
	}
}

// unwatched records that no further events arrive. t.mu is held.
func (t *Tiers) unwatched(r *repository) {
	r.stream, r.heard = nil, git.Version{}
	if s := r.state; s != nil && s.until.Load() == forever {
		s.at = t.now()
		s.until.Store(s.at + int64(t.o.TTL))
	}
}

const (
	// maxKept is the maximum total length of path, revision and ref of a stored answer, in bytes.
	maxKept = 2048
	// missShare is the share of the memory tier for errors: a quarter.
	missShare = 4
)

// keep stores an answer that was current at a time for the repository's state. t.mu is held.
func (t *Tiers) keep(r *repository, q node.Question, result node.Result, at int64) {
	if r.state == nil || r.state.version != result.Version ||
		len(q.Repository.String())+len(q.Revision)+len(result.Ref) > maxKept {
		return
	}
	until, ok := t.until(q, result, at)
	if !ok || result.Err != nil && t.misses >= (t.o.Entries+missShare-1)/missShare {
		return
	}
	q.Repository, q.Revision = r.path, strings.Clone(q.Revision)
	r.entries++
	if result.Err != nil {
		t.misses++
	}
	t.answers.Remove(q)
	t.answers.Add(q, &entry{result: result, state: r.state, until: until, repo: r})
}

// entry is one answer. It is immutable.
type entry struct {
	result node.Result
	state  *state
	until  int64 // end of the entry, if its state does not end before; zero means the end of the state
	repo   *repository
}

// removed counts an entry that was removed from memory. t.mu is held.
func (t *Tiers) removed(_ node.Question, e *entry) {
	if e.result.Err != nil {
		t.misses--
	}
	e.repo.entries--
	t.release(e.repo)
}

// until returns the time limit of an answer in addition to its state, or zero if there is none.
//
// Refs change with the state, but objects come and go without it. Missing objects, abbreviations that may become
// ambiguous, and revisions that begin with an object ID are therefore stored for a limited time only.
func (t *Tiers) until(q node.Question, result node.Result, at int64) (until int64, ok bool) {
	switch {
	case fault.Is(result.Err, fault.NotFound), fault.Is(result.Err, fault.Exists), fault.Is(result.Err, fault.Invalid):
		return at + int64(t.o.MissingTTL), true
	case result.Err != nil:
		return 0, false
	case result.Ref != "":
		return 0, true
	case hexes(q.Revision) < result.ID.Format().HexSize():
		return at + int64(t.o.MissingTTL), true
	}
	return at + int64(t.o.TTL), true
}

// hexes returns the number of leading hexadecimal digits of a revision.
func hexes(revision string) (n int) {
	for n < len(revision) && strings.IndexByte("0123456789abcdefABCDEF", revision[n]) >= 0 {
		n++
	}
	return n
}

// recall returns an answer from memory.
func (t *Tiers) recall(q node.Question, into *node.Result) bool {
	e, ok := t.answers.Get(q)
	if !ok || !e.state.holds(t.now) || e.until != 0 && e.until <= t.now() {
		return false
	}
	if !e.state.used.Load() {
		e.state.used.Store(true)
	}
	*into = e.result
	t.o.Metrics.hit.Inc()
	return true
}

// repository returns the record of a repository. t.mu is held.
func (t *Tiers) repository(path git.RepoPath) *repository {
	r := t.repos[path]
	if r == nil {
		if copied, err := git.ParseRepoPath(strings.Clone(path.String())); err == nil && copied == path {
			path = copied // so that it does not keep the request in memory
		}
		r = &repository{path: path}
		t.repos[path] = r
	}
	return r
}

// release removes an unused record. t.mu is held.
func (t *Tiers) release(r *repository) {
	if r.flights > 0 || r.entries > 0 || r.stream != nil || r.joining != nil || r.queued {
		return
	}
	delete(t.repos, r.path)
}
