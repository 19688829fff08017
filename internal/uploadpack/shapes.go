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
	maxShaped     = 1000   // repositories whose shapes are known
	maxShapes     = 16     // of each of them
	maxShapeNames = 16     // refs that a shape names
	maxShapeIDs   = 256    // haves, and boundary commits, of one
	maxNamedRefs  = 50_000 // of a repository with more refs no shapes are kept
)

// scope is which refs a request wants.
type scope uint8

const (
	byName   scope = iota // those that shape.names holds
	branches              // refs/heads/
	cloned                // refs/heads/ and refs/tags/, as git clone does
	all                   // every ref, as git clone --mirror does
)

// shape is what a request would be like for other tips: what it wants by the refs' names, and what else its pack
// depends on. Guarded by shapes.mu but for what never changes: all up to the haves.
type shape struct {
	scope    scope
	names    []git.RefName // sorted
	depth    int
	since    int64
	not      []string
	filter   string // with all names resolved
	thin     bool
	offset   bool
	tags     bool
	comeBack bool // the client had something, and is taken to have the tips that it was sent when it comes again

	haves   []git.ObjectID // that the client has now
	shallow []git.ObjectID // its boundary now
	wants   []git.ObjectID // tips that it has asked for last, or that were made for it
	count   int            // requests, none of them longer ago than the window from the next
	last    time.Time
	bytes   int64 // of the last pack
}

// shapes knows what has been asked for lately. Safe for concurrent use.
type shapes struct {
	window time.Duration
	now    func() time.Time

	mu    sync.Mutex
	repos map[string]map[string]*shape // by incarnation, then by what makes shapes alike
	used  map[string]time.Time         // by incarnation
}

func newShapes(window time.Duration) *shapes {
	return &shapes{window: window, now: time.Now, repos: map[string]map[string]*shape{}, used: map[string]time.Time{}}
}

// key identifies a shape. Clients with other haves get other packs.
func (one *shape) key() string {
	key := fmt.Sprint(one.scope, one.names, one.depth, one.since, one.not, one.filter, one.thin, one.offset, one.tags,
		one.comeBack)
	if one.comeBack {
		key += fmt.Sprint(one.haves, one.shallow)
	}
	return key
}

// add counts a shape, and gives the one that is kept.
func (s *shapes) add(incarnation string, new *shape) *shape {
	key := new.key()
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.repos[incarnation]
	if of == nil {
		forgetOldest(s.repos, maxShaped, func(i string, _ map[string]*shape) time.Time { return s.used[i] },
			func(i string) { delete(s.used, i) })
		of = map[string]*shape{}
		s.repos[incarnation] = of
	}
	s.used[incarnation] = now
	kept := of[key]
	if kept == nil {
		forgetOldest(of, maxShapes, func(_ string, one *shape) time.Time { return one.last }, func(string) {})
		kept = new
		of[key] = kept
	}
	s.count(kept, now)
	kept.wants = new.wants
	return kept
}

// again counts a shape whose request came in the very same bytes.
func (s *shapes) again(one *shape) {
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

// sent notes how large a shape's pack was.
func (s *shapes) sent(one *shape, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	one.bytes = bytes
}

// popular lists copies of a repository's shapes that were asked for often enough, beginning with the most popular, and
// the shapes themselves.
func (s *shapes) popular(incarnation string, least int) (copies []shape, shapes []*shape) {
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.repos[incarnation] {
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

// moved notes what was made for a shape: the next change begins there.
func (s *shapes) moved(incarnation string, one *shape, to shape) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of, before := s.repos[incarnation], one.key()
	one.wants, one.haves, one.shallow = to.wants, to.haves, to.shallow
	if after := one.key(); after != before && of[before] == one {
		delete(of, before)
		if there := of[after]; there != nil { // clients were faster
			one.count = max(one.count, there.count)
		}
		of[after] = one
	}
}

// forgetOldest makes room for one more.
func forgetOldest[V any](m map[string]V, most int, used func(string, V) time.Time, also func(string)) {
	if len(m) < most {
		return
	}
	oldest, at := "", time.Time{}
	for key, value := range m {
		if t := used(key, value); oldest == "" || t.Before(at) {
			oldest, at = key, t
		}
	}
	delete(m, oldest)
	also(oldest)
}

// tipSets are a snapshot's tips by the refs that clients want together.
type tipSets struct {
	sets  [all + 1][]git.ObjectID // sorted; of byName none
	names map[git.ObjectID]git.RefName
}

var errManyRefs = errors.New("too many refs")

// tipSets returns which tips belong together, or nil if there are too many.
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

// tips are what a shape wants of a snapshot; not ok: a ref of its is gone.
func (s *Server) tipsOf(snapshot *refs.Snapshot, one *shape) (ids []git.ObjectID, ok bool, err error) {
	if one.scope != byName {
		sets, err := s.tipSets(snapshot)
		if err != nil || sets == nil {
			return nil, false, err
		}
		return sets.sets[one.scope], len(sets.sets[one.scope]) > 0, nil
	}
	for _, name := range one.names {
		ref, there, err := snapshot.Lookup(name)
		if err != nil || !there {
			return nil, false, err
		}
		ids = append(ids, ref.ID)
	}
	return protocol.SortIDs(ids), true, nil
}

// shape returns the shape of a request, which can be applied to other tips. It is nil if the request has none, or is
// unlikely to be repeated.
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
	one.comeBack = len(spec.Haves)+len(f.clientShallow) > 0
	if len(f.wants) > 1 && !one.comeBack {
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
	if one.comeBack {
		one.haves, one.shallow, err = f.comesBackWith(ctx, spec)
		if err != nil || len(one.shallow) > maxShapeIDs || len(one.haves) > maxShapeIDs {
			return nil
		}
	}
	return one
}

// comesBackWith is what the client says it has when it comes again: of commits whose descendants it has, it is silent,
// also where its own history ends between them.
func (f *fetch) comesBackWith(ctx context.Context, spec *packsource.Spec) (haves, shallow []git.ObjectID, err error) {
	haves, err = f.repo.Graph.Maximal(ctx, slices.Concat(spec.Haves, f.wants), f.serverShallow)
	for id := range f.clientShallow {
		if !slices.Contains(f.boundary.Unshallow, id) {
			shallow = append(shallow, id)
		}
	}
	return haves, protocol.SortIDs(append(shallow, f.boundary.Shallow...)), err
}
