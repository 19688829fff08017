package uploadpack

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/packsource"
)

const (
	maxShapeRepos = 1000   // repositories with shapes
	maxShapes     = 16     // shapes of each repository
	maxShapeNames = 16     // refs of a shape
	maxShapeIDs   = 256    // haves of a shape, and boundary commits
	maxNamedRefs  = 50_000 // repositories with more refs have no shapes
)

// scope is the set of refs that a request wants.
type scope uint8

const (
	byName   scope = iota // those in shape.names
	branches              // refs/heads/
	cloned                // refs/heads/ and refs/tags/, as git clone does
	all                   // every ref, as git clone --mirror does
)

// shape is a request with ref names instead of object IDs, so that it can be applied to later tips. The fields up to
// isReturning do not change; the others are guarded by shapes.mu.
type shape struct {
	scope       scope
	names       []git.RefName // sorted
	depth       int
	since       int64
	not         []string
	filter      string // with all names resolved
	thin        bool
	offset      bool
	tags        bool
	isReturning bool // the client had commits. Its next request is assumed to have the tips that it was sent.

	haves   []git.ObjectID // of the next request
	shallow []git.ObjectID // boundary of the client at the next request
	wants   []git.ObjectID // tips of the last request, or of the last warm-up
	count   int            // requests without a pause longer than the window
	last    time.Time      // of the last request
	bytes   int64          // size of the last pack
}

// shapes keeps the shapes of recent requests. It is safe for concurrent use.
type shapes struct {
	window time.Duration
	now    func() time.Time

	mu    sync.Mutex
	repos map[string]*repoShapes // by incarnation
}

// repoShapes are the shapes of one repository.
type repoShapes struct {
	used  time.Time
	byKey map[string]*shape
}

func newShapes(window time.Duration) *shapes {
	return &shapes{window: window, now: time.Now, repos: map[string]*repoShapes{}}
}

// key identifies a shape. Clients with other haves get other packs.
func (one *shape) key() string {
	key := fmt.Sprint(one.scope, one.names, one.depth, one.since, one.not, one.filter, one.thin, one.offset, one.tags,
		one.isReturning)
	if one.isReturning {
		key += fmt.Sprint(one.haves, one.shallow)
	}
	return key
}

// add counts a shape, and returns the kept one with the same key.
func (s *shapes) add(incarnation string, new *shape) *shape {
	key := new.key()
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.repos[incarnation]
	if r == nil {
		dropOldest(s.repos, maxShapeRepos, func(r *repoShapes) time.Time { return r.used })
		r = &repoShapes{byKey: map[string]*shape{}}
		s.repos[incarnation] = r
	}
	r.used = now
	kept := r.byKey[key]
	if kept == nil {
		dropOldest(r.byKey, maxShapes, func(one *shape) time.Time { return one.last })
		kept = new
		r.byKey[key] = kept
	}
	s.count(kept, now)
	kept.wants = new.wants
	return kept
}

// countRepeat counts a request that was answered from the answer cache.
func (s *shapes) countRepeat(one *shape) {
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count(one, now)
}

func (s *shapes) count(one *shape, now time.Time) {
	if now.Sub(one.last) > s.window {
		one.count = 0
	}
	one.count, one.last = one.count+1, now
}

// setBytes sets the size of a shape's last pack.
func (s *shapes) setBytes(one *shape, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	one.bytes = bytes
}

// popular returns the shapes of a repository with at least the given number of requests, the most popular first, and
// copies of them.
func (s *shapes) popular(incarnation string, least int) (copies []shape, shapes []*shape) {
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.repos[incarnation]
	if r == nil {
		return nil, nil
	}
	for _, one := range r.byKey {
		if one.count >= least && now.Sub(one.last) <= s.window {
			shapes = append(shapes, one)
		}
	}
	slices.SortFunc(shapes, func(a, b *shape) int {
		if a.count != b.count {
			return b.count - a.count
		}
		return b.last.Compare(a.last)
	})
	for _, one := range shapes {
		copies = append(copies, *one)
	}
	return copies, shapes
}

// advance moves a shape to the tips for which its pack was made.
func (s *shapes) advance(incarnation string, one *shape, to shape) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := one.key()
	one.wants, one.haves, one.shallow = to.wants, to.haves, to.shallow
	after, r := one.key(), s.repos[incarnation]
	if after == before || r == nil || r.byKey[before] != one {
		return
	}
	delete(r.byKey, before)
	if other := r.byKey[after]; other != nil { // a client was faster
		one.count = max(one.count, other.count)
	}
	r.byKey[after] = one
}

// dropOldest makes room for one more entry in a map of limited size.
func dropOldest[V any](m map[string]V, limit int, used func(V) time.Time) {
	if len(m) < limit {
		return
	}
	oldest, at := "", time.Time{}
	for key, value := range m {
		if t := used(value); oldest == "" || t.Before(at) {
			oldest, at = key, t
		}
	}
	delete(m, oldest)
}

// tipSets are a snapshot's tips by scope.
type tipSets struct {
	sets  [all + 1][]git.ObjectID // sorted; byName is empty
	names map[git.ObjectID]git.RefName
}

var errManyRefs = errors.New("too many refs")

// tipSets returns the tips of a snapshot by scope; nil if there are too many.
func (s *Server) tipSets(snapshot *refs.Snapshot) (*tipSets, error) {
	sets, _, err := s.sets.get(snapshot, func() (*tipSets, bool, error) {
		t := &tipSets{names: map[git.ObjectID]git.RefName{}}
		n := 0
		err := snapshot.Each("", func(ref refs.Ref) error {
			if n++; n > maxNamedRefs {
				return errManyRefs
			}
			name := string(ref.Name)
			t.sets[all] = append(t.sets[all], ref.ID)
			if strings.HasPrefix(name, "refs/heads/") {
				t.sets[branches] = append(t.sets[branches], ref.ID)
			}
			if strings.HasPrefix(name, "refs/heads/") || strings.HasPrefix(name, "refs/tags/") {
				t.sets[cloned] = append(t.sets[cloned], ref.ID)
			}
			if _, known := t.names[ref.ID]; !known { // branches come before tags
				t.names[ref.ID] = git.RefName(strings.Clone(name))
			}
			return nil
		})
		if err == errManyRefs {
			return nil, true, nil
		}
		if head := snapshot.Head(); head.Target != "" && !head.ID.IsZero() {
			t.names[head.ID] = git.RefName(strings.Clone(string(head.Target)))
		}
		for i := range t.sets {
			t.sets[i] = protocol.SortIDs(t.sets[i])
		}
		return t, true, err
	})
	return sets, err
}

// tipsOf returns the tips of a snapshot that a shape wants. ok is false if one of its refs does not exist any more.
func (s *Server) tipsOf(snapshot *refs.Snapshot, one *shape) (ids []git.ObjectID, ok bool, err error) {
	if one.scope != byName {
		sets, err := s.tipSets(snapshot)
		if err != nil || sets == nil {
			return nil, false, err
		}
		return sets.sets[one.scope], len(sets.sets[one.scope]) > 0, nil
	}
	for _, name := range one.names {
		ref, ok, err := snapshot.Lookup(name)
		if err != nil || !ok {
			return nil, false, err
		}
		ids = append(ids, ref.ID)
	}
	return protocol.SortIDs(ids), true, nil
}

// shape returns the shape of a request. It is nil if the request cannot be applied to other tips, or is unlikely to be
// repeated.
func (f *fetch) shape(ctx context.Context, spec *packsource.Spec) *shape {
	req := f.request
	if req.DeepenRelative || strings.Contains(spec.Filter, "sparse:") || len(spec.Haves) > maxShapeIDs {
		return nil
	}
	sets, err := f.tipSets(f.snapshot)
	if err != nil || sets == nil {
		return nil
	}
	one := &shape{depth: req.Depth, since: req.DeepenSince, not: slices.Clone(req.DeepenNot), filter: spec.Filter,
		thin: req.ThinPack, offset: req.OfsDelta, tags: req.IncludeTag, wants: slices.Clone(f.wants)}
	one.isReturning = len(spec.Haves)+len(f.clientShallow) > 0
	if len(f.wants) > 1 && !one.isReturning {
		for _, scope := range []scope{cloned, branches, all} {
			if slices.Equal(f.wants, sets.sets[scope]) {
				one.scope = scope
				return one
			}
		}
	}
	if len(f.wants) > maxShapeNames {
		return nil
	}
	for _, id := range f.wants {
		name, ok := sets.names[id]
		if !ok {
			return nil
		}
		one.names = append(one.names, name)
	}
	slices.Sort(one.names)
	if one.isReturning {
		one.haves, one.shallow, err = f.nextHaves(ctx, spec)
		if err != nil || len(one.shallow) > maxShapeIDs || len(one.haves) > maxShapeIDs {
			return nil
		}
	}
	return one
}

// nextHaves predicts the haves and the boundary of the client's next request. Clients do not send commits whose
// descendants they have, even if their boundary lies between them.
func (f *fetch) nextHaves(ctx context.Context, spec *packsource.Spec) (haves, shallow []git.ObjectID, err error) {
	haves, err = f.repo.Graph.Maximal(ctx, slices.Concat(spec.Haves, f.wants), f.serverShallow)
	for id := range f.clientShallow {
		if !slices.Contains(f.boundary.Unshallow, id) {
			shallow = append(shallow, id)
		}
	}
	return haves, protocol.SortIDs(append(shallow, f.boundary.Shallow...)), err
}
