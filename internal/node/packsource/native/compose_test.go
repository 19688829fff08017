package native_test

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/node/packcache"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
	"github.com/packhorse-git/packhorse/internal/node/packsource/sourcetest"
)

// newCache opens a cache before a native Source that composes packs from it.
func newCache(t testing.TB, dir string, maxBytes int64) *packcache.Cache {
	t.Helper()
	source := newSource(t, true)
	cache, err := packcache.Open(source, packcache.Options{Dir: dir, MaxBytes: maxBytes, MinFree: -1,
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cache.Close(); err != nil {
			t.Error(err)
		}
	})
	source.SetLibrary(cache)
	return cache
}

// session is a repository that receives pushes, and the state that the next pushes and packs depend on.
type session struct {
	*gittest.Repo
	rnd      *rand.Rand
	branches []string
	next     int // number of the next branch
	before   []git.ObjectID
}

func newSession(t testing.TB, seed uint64, format string) *session {
	return &session{Repo: gittest.Random(t, seed, gittest.Shape{Format: format, Branches: 2}),
		rnd: rand.New(rand.NewPCG(seed, 4)), branches: []string{"main"}}
}

// push does what users do, and maintenance.
func (s *session) push() {
	branch := s.branches[s.rnd.IntN(len(s.branches))]
	switch n := s.rnd.IntN(10); {
	case n < 4:
		s.Push(s.rnd, branch, branch, 1+s.rnd.IntN(4))
	case n < 6: // by force
		commits := strings.Fields(s.Git("rev-list", "--max-count=20", branch))
		s.Push(s.rnd, branch, commits[s.rnd.IntN(len(commits))], 1+s.rnd.IntN(2))
	case n == 6 && len(s.branches) > 1 && branch != "main":
		s.Git("update-ref", "-d", "refs/heads/"+branch)
		s.branches = slices.DeleteFunc(s.branches, func(b string) bool { return b == branch })
	case n == 7:
		s.Git("tag", "-f", "-a", "-m", fmt.Sprint(s.rnd.Int()), fmt.Sprintf("t%d", s.rnd.IntN(3)), branch)
	default:
		name := fmt.Sprintf("b%d", s.next)
		s.next++
		s.Push(s.rnd, name, branch, 1+s.rnd.IntN(2))
		s.branches = append(s.branches, name)
	}
	maintenance := [][]string{{"gc", "-q", "--prune=now"}, {"repack", "-qd"}, {"repack", "-qadb"}, {"repack", "-qadf"},
		{"multi-pack-index", "write", "--bitmap"}, {"prune-packed", "-q"}, {"commit-graph", "write", "--reachable"}}
	if s.rnd.IntN(3) == 0 {
		if args := maintenance[s.rnd.IntN(len(maintenance))]; args[0] != "multi-pack-index" || s.hasPacks() {
			s.Git(args...)
		}
	}
}

func (s *session) hasPacks() bool { return !strings.Contains(s.Git("count-objects", "-v"), "packs: 0") }

// specs lists the popular shapes for the current refs, and packs of them without the last branch: its objects must not
// get there from packs that have them.
func (s *session) specs() (list []*packsource.Spec) {
	repo := sourcetest.Repository(s.Repo)
	ids := func(names ...string) (ids []git.ObjectID) {
		for _, name := range names {
			ids = append(ids, s.ID(name))
		}
		slices.SortFunc(ids, git.ObjectID.Compare)
		return slices.Compact(ids)
	}
	main, all := ids("main"), ids(s.branches...)
	visible := ids(s.branches[:max(1, len(s.branches)-1)]...)
	shallow := func(wants []git.ObjectID) []git.ObjectID {
		return slices.DeleteFunc(slices.Clone(wants), func(id git.ObjectID) bool {
			return s.Git("log", "-1", "--format=%P", id.String()) == ""
		})
	}
	for _, wants := range [][]git.ObjectID{all, visible} {
		list = append(list, &packsource.Spec{Repo: repo, Wants: wants, Offset: true})
		list = append(list, &packsource.Spec{Repo: repo, Wants: wants, Offset: true, Filter: "blob:none"})
	}
	list = append(list, &packsource.Spec{Repo: repo, Wants: all},
		&packsource.Spec{Repo: repo, Wants: main, Shallow: shallow(main), Offset: true},
		&packsource.Spec{Repo: repo, Wants: all, Shallow: shallow(all), Offset: true, Filter: "tree:2"})
	if len(s.before) > 0 {
		list = append(list, &packsource.Spec{Repo: repo, Wants: all, Haves: s.before, Thin: true, Offset: true})
	}
	s.rnd.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	s.before = main
	return list
}

// TestComposed makes packs of a repository that receives pushes, each from those that were made before.
func TestComposed(t *testing.T) {
	sessions, pushes := 2, 4
	if !testing.Short() {
		sessions, pushes = 10, 40
	}
	for seed := range uint64(sessions) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			t.Parallel()
			s := newSession(t, seed, []string{"sha1", "sha256"}[seed%2])
			cache := newCache(t, t.TempDir(), 1<<30)
			var reused, encoded int64
			for range pushes {
				s.push()
				for _, spec := range s.specs() {
					if len(spec.Haves) > 0 && !s.has(spec.Haves) { // gc has removed what a client had
						continue
					}
					info := sourcetest.FetchAndCheck(t, cache, s.Repo, spec)
					if t.Failed() {
						t.Fatalf("%+v", *spec)
					}
					reused += info.Made.ReusedCache.Objects
					encoded += info.Made.Encoded.Objects
				}
			}
			if t.Logf("%d objects from earlier packs, %d encoded", reused, encoded); reused == 0 {
				t.Error("no pack was composed: the test tests nothing")
			}
		})
	}
}

// TestFetchedBlob composes a clone of the clone before, although a client has fetched a blob meanwhile.
func TestFetchedBlob(t *testing.T) {
	t.Parallel()
	r := gittest.Random(t, 1, gittest.Shape{})
	cache := newCache(t, t.TempDir(), 1<<30)
	clone := func() *packsource.Spec {
		spec := *sourcetest.Full(r)
		spec.Filter = "blob:none"
		return &spec
	}
	sourcetest.Fetch(t, cache, clone())
	blob := clone()
	blob.Wants = []git.ObjectID{git.MustParseObjectID(strings.Fields(r.Git("ls-tree", "-r", "main"))[2])}
	blob.First = blob.Wants
	sourcetest.Fetch(t, cache, blob)
	r.Push(rand.New(rand.NewPCG(1, 1)), "main", "main", 2)
	if info := sourcetest.FetchAndCheck(t, cache, r, clone()); info.Made.ReusedCache.Objects == 0 {
		t.Errorf("the clone is made so: %+v, want objects of the cache", info.Made)
	}
}

func (s *session) has(ids []git.ObjectID) bool {
	for _, id := range ids {
		if _, err := s.Try("cat-file", "-e", id.String()); err != nil {
			return false
		}
	}
	return true
}
