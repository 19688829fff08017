package uploadpack

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
)

const (
	maxShapeRepos = 1000 // repositories with shapes
	maxShapes     = 16   // shapes of each repository
	maxShapeNames = 16   // refs of a shape
	maxShapeIDs   = 256  // haves of a shape, and boundary commits

	maxShapeTips = 1_000_000 // refs in the scope of a shape for which a pack is made

	// searchShare bounds the CPU time of searches for names in a repository. After a search there is no other one for
	// this many times its duration.
	searchShare = 100
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
	tips    digest         // of the last request, or of the last warm-up
	count   int            // requests without a pause longer than the window
	last    time.Time      // of the last request
	bytes   int64          // size of the last pack
	took    time.Duration  // to make the last pack; zero: unknown

	isUnused  bool // the warm-up has made a pack since the last request
	isGuarded bool // the rule for wants needs the list of tips
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
	used       time.Time
	byKey      map[string]*shape
	nextSearch time.Time // see searchShare
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
	r := s.ofLocked(incarnation)
	kept := r.byKey[key]
	if kept == nil {
		dropOldest(r.byKey, maxShapes, func(one *shape) time.Time { return one.last })
		kept = new
		r.byKey[key] = kept
	}
	s.count(kept, now)
	kept.tips, kept.isGuarded = new.tips, kept.isGuarded || new.isGuarded
	return kept
}

// ofLocked returns the shapes of a repository that is in use.
func (s *shapes) ofLocked(incarnation string) *repoShapes {
	r := s.repos[incarnation]
	if r == nil {
		dropOldest(s.repos, maxShapeRepos, func(r *repoShapes) time.Time { return r.used })
		r = &repoShapes{byKey: map[string]*shape{}}
		s.repos[incarnation] = r
	}
	r.used = s.now()
	return r
}

// names returns the refs of a repository's shapes.
func (s *shapes) names(incarnation string) (names []git.RefName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.ofLocked(incarnation).byKey {
		names = append(names, one.names...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// errSearchLater means that a search for names would follow another one too soon.
var errSearchLater = errors.New("search later")

// search calls fn to search for names in a repository, or returns errSearchLater.
func (s *shapes) search(incarnation string, fn func() error) error {
	s.mu.Lock()
	r, start := s.ofLocked(incarnation), s.now()
	isEarly := start.Before(r.nextSearch)
	if !isEarly {
		r.nextSearch = start.Add(time.Minute) // this one is running
	}
	s.mu.Unlock()
	if isEarly {
		return errSearchLater
	}
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		end := s.now()
		r.nextSearch = end.Add(searchShare * end.Sub(start))
	}()
	return fn()
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
	one.count, one.last, one.isUnused = one.count+1, now, false
}

// setBytes sets the size of a shape's last pack.
func (s *shapes) setBytes(one *shape, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	one.bytes = bytes
}

// setTook sets the time that it took to make a shape's last pack.
func (s *shapes) setTook(one *shape, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	one.took = took
}

// popularShape is a copy of a shape.
type popularShape struct {
	shape
	kept    *shape
	isQuick bool // the last pack was quick to make: with those before it, it took at most QuickWarmup
}

// popular returns the shapes of a repository with at least the given number of requests, the most popular first.
func (s *shapes) popular(incarnation string, least int) (popular []popularShape) {
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.repos[incarnation]
	if r == nil {
		return nil
	}
	var shapes []*shape
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
	left := QuickWarmup
	for _, one := range shapes {
		isQuick := one.took > 0 && one.took <= left
		if isQuick {
			left -= one.took
		}
		popular = append(popular, popularShape{*one, one, isQuick})
	}
	return popular
}

// advance moves a shape to the tips for which its pack was made.
func (s *shapes) advance(incarnation string, one *shape, to shape) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := one.key()
	one.tips, one.haves, one.shallow = to.tips, to.haves, to.shallow
	one.bytes, one.took = to.bytes, to.took
	one.isUnused = to.isUnused && one.count == to.count // no request meanwhile
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
	if len(m) >= limit {
		older := func(a, b string) int { return used(m[a]).Compare(used(m[b])) }
		delete(m, slices.MinFunc(slices.Collect(maps.Keys(m)), older))
	}
}

// digest is a hash of a sorted list of object IDs.
type digest uint64

var digestSeed = maphash.MakeSeed()

func digestOf(sorted []git.ObjectID) digest {
	var h maphash.Hash
	h.SetSeed(digestSeed)
	for i := range sorted {
		h.Write(sorted[i].Raw())
	}
	return digest(h.Sum64())
}

// scopeDigests are the digests of a snapshot's tips by scope. Zero: not known yet.
type scopeDigests [all + 1]atomic.Uint64

// prefixes are the beginnings of the names of the refs in each scope.
var prefixes = [all + 1][]string{branches: {"refs/heads/"}, cloned: {"refs/heads/", "refs/tags/"}, all: {""}}

// eachTip calls fn for the tip of each ref in a scope.
func eachTip(snapshot *refs.Snapshot, s scope, fn func(git.ObjectID) error) error {
	for _, prefix := range prefixes[s] {
		if err := snapshot.Each(prefix, func(ref refs.Ref) error { return fn(ref.ID) }); err != nil {
			return err
		}
	}
	return nil
}

// wantedScope returns the scope whose tips are the wants, or byName if no scope has these tips.
func (f *fetch) wantedScope(wanted digest) (scope, error) {
	known, _, _ := f.scopes.get(f.snapshot, func() (*scopeDigests, bool, error) { return &scopeDigests{}, true, nil })
	order := []scope{cloned, branches, all}
	for _, s := range order {
		if digest(known[s].Load()) == wanted {
			return s, nil
		}
	}
	for _, s := range order {
		if known[s].Load() != 0 {
			continue
		}
		is, err := f.wantsScope(s)
		if err != nil {
			return byName, err
		}
		if is {
			known[s].Store(uint64(wanted))
			return s, nil
		}
	}
	return byName, nil
}

// errOther ends a comparison of wants with the tips of a scope.
var errOther = errors.New("another tip")

// wantsScope reports whether the wants are the tips of a scope. It stops at the first difference.
func (f *fetch) wantsScope(s scope) (bool, error) {
	seen, missing := make([]bool, len(f.wants)), len(f.wants)
	err := eachTip(f.snapshot, s, func(id git.ObjectID) error {
		i, ok := slices.BinarySearchFunc(f.wants, id, git.ObjectID.Compare)
		if !ok {
			return errOther
		}
		if !seen[i] {
			seen[i] = true
			missing--
		}
		return nil
	})
	if err == errOther {
		return false, nil
	}
	return missing == 0, err
}

// tipsOf returns the tips of a snapshot that a shape wants. ok is false if one of its refs does not exist any more, or
// if there are too many.
func tipsOf(snapshot *refs.Snapshot, one *shape) (ids []git.ObjectID, ok bool, err error) {
	if one.scope != byName {
		err := eachTip(snapshot, one.scope, func(id git.ObjectID) error {
			if len(ids) == maxShapeTips {
				return errOther
			}
			ids = append(ids, id)
			return nil
		})
		if err == errOther {
			return nil, false, nil
		}
		return protocol.SortIDs(ids), len(ids) > 0, err
	}
	err = snapshot.LookupAll(one.names, func(_ int, ref refs.Ref, exists bool) error {
		if !exists {
			return errOther
		}
		ids = append(ids, ref.ID)
		return nil
	})
	if err == errOther {
		return nil, false, nil
	}
	return protocol.SortIDs(ids), err == nil, err
}

// shape returns the shape of a request. It is nil if the request cannot be applied to other tips, or is unlikely to be
// repeated. errSearchLater means that it is not known.
func (f *fetch) shape(ctx context.Context, spec *packsource.Spec) (*shape, error) {
	req := f.request
	if req.DeepenRelative || strings.Contains(spec.Filter, "sparse:") || len(spec.Haves) > maxShapeIDs {
		return nil, nil
	}
	one := &shape{depth: req.Depth, since: req.DeepenSince, not: slices.Clone(req.DeepenNot), filter: spec.Filter,
		thin: req.ThinPack, offset: req.OfsDelta, tags: req.IncludeTag, tips: digestOf(f.wants)}
	one.isReturning = len(spec.Haves)+len(f.clientShallow) > 0
	one.isGuarded = f.session.Version != protocol.V2 || f.wantRule(f.repo, f.session) != WantsAny
	var err error
	if len(f.wants) > 1 && !one.isReturning {
		one.scope, err = f.wantedScope(one.tips)
		if one.scope != byName || err != nil {
			return one, err
		}
	}
	if len(f.wants) > maxShapeNames {
		return nil, nil
	}
	if one.names, err = f.wantedNames(); err != nil || one.names == nil {
		return nil, err
	}
	slices.Sort(one.names)
	if one.isReturning {
		one.haves, one.shallow, err = f.nextHaves(ctx, spec)
		if err != nil || len(one.shallow) > maxShapeIDs || len(one.haves) > maxShapeIDs {
			return nil, err
		}
	}
	return one, nil
}

// wantedNames returns a ref for each want; nil if one of them is not the tip of a ref. It tries HEAD and the refs of
// known shapes before it searches all refs.
func (f *fetch) wantedNames() ([]git.RefName, error) {
	names := make([]git.RefName, len(f.wants))
	missing := len(names)
	found := func(id git.ObjectID, name git.RefName) {
		if i, ok := slices.BinarySearchFunc(f.wants, id, git.ObjectID.Compare); ok && names[i] == "" && name != "" {
			names[i] = name
			missing--
		}
	}
	if head := f.snapshot.Head(); head.Target != "" {
		found(head.ID, git.RefName(strings.Clone(string(head.Target))))
	}
	shapes := f.warmth.shapes
	if missing > 0 {
		known := shapes.names(f.repo.Incarnation)
		err := f.snapshot.LookupAll(known, func(i int, ref refs.Ref, ok bool) error {
			if ok {
				found(ref.ID, known[i])
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	if missing > 0 {
		err := shapes.search(f.repo.Incarnation, func() error {
			others, err := f.snapshot.Names(f.wants)
			for i, name := range others {
				found(f.wants[i], name)
			}
			return err
		})
		if err != nil || missing > 0 {
			return nil, err
		}
	}
	return names, nil
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
