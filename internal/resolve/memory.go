package resolve

import (
	"math"
	"strings"
	"sync/atomic"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
)

// state is one version of a repository's refs, and what was answered from it. When it is over, all its entries are, at
// once.
type state struct {
	version git.Version
	over    atomic.Bool  // something newer is known, or may be
	until   atomic.Int64 // when it is over unless it is confirmed; forever: events will tell
	used    atomic.Bool  // asked for since the last sweep
	at      int64        // when it was known to be current last, while no events tell; guarded by the lock of the Tiers
}

const forever = math.MaxInt64

// holds tells whether nothing newer can be known; now is asked for the time only if it matters.
func (s *state) holds(now func() int64) bool {
	if s.over.Load() {
		return false
	}
	until := s.until.Load()
	return until == forever || now() < until
}

// repository is what Tiers know of one. Guarded by their lock.
type repository struct {
	path  git.RepoPath
	state *state // the newest that is known; nil: none
	// fence counts what became known: an answer from before and one from after cannot be compared if their versions
	// cannot.
	fence uint64

	stream  *stream     // tells of events; nil: none does
	joining *stream     // will, when its first event has come
	queued  bool        // is to be watched
	heard   git.Version // that of the stream's latest event; zero: the repository is not there

	flights int // which use this
	entries int
}

// verdict is what becomes of an answer of the node.
type verdict int

const (
	current verdict = iota // nothing newer is known
	old                    // something newer is
	unsure                 // its version cannot be compared with what became known meanwhile
)

// comparable tells whether two versions' generations can be compared.
func comparable(a, b git.Version) bool { return a.Incarnation == b.Incarnation && a.Epoch == b.Epoch }

// learn takes in that a look-up which began at a time, when the fence was this, was answered from a version. t.mu is
// held.
func (t *Tiers) learn(r *repository, fence uint64, v git.Version, began int64) verdict {
	s := r.state
	switch {
	case s != nil && comparable(s.version, v) && v.Generation < s.version.Generation:
		return old
	case s != nil && s.version == v:
		t.confirm(r, began)
		return current
	case s != nil && comparable(s.version, v), r.fence == fence:
		if s != nil {
			t.o.Metrics.stale.Observe(time.Duration(t.unknownFor(r, s)).Seconds())
		}
		t.begin(r, v, began)
		return current
	}
	t.end(r) // both may be true of a moment since; whoever asks next knows more
	return unsure
}

// unknownFor is for how long nothing was known of a state that turns out to be old.
func (t *Tiers) unknownFor(r *repository, s *state) int64 {
	if s.until.Load() == forever {
		return 0 // its event is on the way
	}
	return min(t.now(), s.until.Load()) - s.at
}

// begin puts a new state in the place of what was known, as of a time. t.mu is held.
func (t *Tiers) begin(r *repository, v git.Version, at int64) {
	t.end(r)
	r.state = &state{version: v}
	t.confirm(r, at)
}

// confirm notes that the state was current at a time. t.mu is held.
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

// end forgets a repository's answers. t.mu is held.
func (t *Tiers) end(r *repository) {
	if r.state != nil {
		r.state.over.Store(true)
		r.state = nil
	}
	r.fence++
}

// hear takes in an event of the repository's stream. t.mu is held.
//
// It ends what was known, or confirms it, and never begins a state of another incarnation or epoch: an event may have
// been on its way for long, and only an answer to a question says where things are now.
func (t *Tiers) hear(r *repository, e Event) {
	r.heard = e.Version
	s := r.state
	kind := "other"
	switch {
	case e.Gone:
		kind = "gone"
		r.heard = git.Version{}
		t.end(r)
	case s == nil:
		r.fence++
	case comparable(s.version, e.Version) && e.Version.Generation <= s.version.Generation:
		kind = "same"
		t.confirm(r, t.now())
	case comparable(s.version, e.Version):
		kind = "change"
		waited := int64(0)
		if s.until.Load() != forever {
			waited = t.unknownFor(r, s)
		}
		t.o.Metrics.stale.Observe(time.Duration(waited).Seconds())
		t.begin(r, e.Version, t.now())
	default:
		t.end(r)
	}
	t.o.Metrics.events.WithLabelValues(kind).Inc()
}

// unwatched notes that no events come from now on. t.mu is held.
func (t *Tiers) unwatched(r *repository) {
	r.stream, r.heard = nil, git.Version{}
	if s := r.state; s != nil && s.until.Load() == forever {
		s.at = t.now()
		s.until.Store(s.at + int64(t.o.TTL))
	}
}

const (
	// maxKept is the longest path and revision, and ref in the answer, together in bytes, that are remembered.
	maxKept = 2048
	// missShare is how much of the memory tier errors may take: a quarter.
	missShare = 4
)

// keep remembers an answer that was given at a time from the repository's state. t.mu is held.
func (t *Tiers) keep(r *repository, q Question, result Result, at int64) {
	if r.state == nil || r.state.version != result.Version ||
		len(q.Repository.String())+len(q.Revision)+len(result.Ref) > maxKept {
		return
	}
	until, ok := t.until(q, result, at)
	if !ok || result.Err != nil && t.table.misses >= (t.table.capacity+missShare-1)/missShare {
		return
	}
	q.Repository, q.Revision = r.path, strings.Clone(q.Revision)
	r.entries++
	for _, gone := range t.table.put(&entry{question: q, result: result, state: r.state, until: until, repo: r}, t.over) {
		gone.repo.entries--
		t.release(gone.repo)
	}
	t.o.Metrics.entries.Set(float64(len(t.table.ring)))
}

// over tells whether an entry does not hold any more.
func (t *Tiers) over(e *entry) bool {
	return !e.state.holds(t.now) || e.until != 0 && e.until <= t.now()
}

// until tells how long an answer may be remembered besides while its state holds; 0: as long as that.
//
// What refs say changes with the state. Objects come and go without one: what is not there, an abbreviation that may
// become ambiguous, and what begins with an object ID are given again for a bounded time only.
func (t *Tiers) until(q Question, result Result, at int64) (until int64, ok bool) {
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

// hexes is how many hexadecimal digits a revision begins with.
func hexes(revision string) (n int) {
	for n < len(revision) && strings.IndexByte("0123456789abcdefABCDEF", revision[n]) >= 0 {
		n++
	}
	return n
}

// recall finds an answer in memory. It takes no lock.
func (t *Tiers) recall(q Question, into *Result) bool {
	random, began := t.o.Metrics.begin()
	e := t.table.get(q)
	if e == nil || !e.state.holds(t.now) || e.until != 0 && e.until <= t.now() {
		return false
	}
	if !e.used.Load() {
		e.used.Store(true)
	}
	if !e.state.used.Load() {
		e.state.used.Store(true)
	}
	*into = e.result
	t.o.Metrics.hit(random, began)
	return true
}

// repository gives the record of one. t.mu is held.
func (t *Tiers) repository(path git.RepoPath) *repository {
	r := t.repos[path]
	if r == nil {
		if copied, err := git.ParseRepoPath(strings.Clone(path.String())); err == nil && copied == path {
			path = copied // it does not keep the request alive that it came from
		}
		r = &repository{path: path}
		t.repos[path] = r
		t.o.Metrics.repos.Set(float64(len(t.repos)))
	}
	return r
}

// release lets go of a record that nothing uses. t.mu is held.
func (t *Tiers) release(r *repository) {
	if r.flights > 0 || r.entries > 0 || r.stream != nil || r.joining != nil || r.queued {
		return
	}
	delete(t.repos, r.path)
	t.o.Metrics.repos.Set(float64(len(t.repos)))
}
