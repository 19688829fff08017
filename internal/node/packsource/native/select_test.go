package native

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/graph"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
)

// chooser selects objects of a repository in tests.
type chooser struct {
	t      testing.TB
	r      *gittest.Repo
	format git.ObjectFormat
	store  *pack.Store
	graph  *graph.Graph
	ticks  int
	budget int64

	bitmaps *bitmaps
	earlier []*source
	last    []byte // the last pack that git made
}

func newChooser(t testing.TB, r *gittest.Repo, format git.ObjectFormat) *chooser {
	t.Helper()
	store, err := pack.Open(r.Dir+"/objects", pack.Options{Format: format})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	return &chooser{t: t, r: r, format: format, store: store,
		graph: graph.New(store, store.Dirs, graph.Options{Format: format})}
}

// try returns the hexadecimal IDs of the chosen and the known objects, sorted.
func (c *chooser) try(spec *packsource.Spec) (chosen, known []string, err error) {
	c.t.Helper()
	err = c.store.Raw(100, func(packs []*pack.Raw) error {
		s := &selection{ctx: context.Background(), spec: spec, store: c.store, graph: c.graph, budget: c.budget,
			view: newView(c.format, slices.Clone(c.earlier),
				packs), bitmaps: c.bitmaps, tick: func(int) error { c.ticks++; return nil }}
		a, b, err := s.run()
		chosen, known = listSet(c.t, a), listSet(c.t, b)
		return err
	})
	return chosen, known, err
}

func (c *chooser) choose(spec *packsource.Spec) (chosen, known []string) {
	c.t.Helper()
	chosen, known, err := c.try(spec)
	if err != nil {
		c.t.Fatal(err)
	}
	return chosen, known
}

// listSet lists a set, and checks that each object is at one place only.
func listSet(t testing.TB, s *objectSet) (ids []string) {
	t.Helper()
	if s == nil {
		return nil
	}
	for i, source := range s.view.sources {
		for pos := range source.Len() {
			if s.has(place{i, pos}) {
				ids = append(ids, fmt.Sprintf("%x", source.ID(pos)))
			}
		}
	}
	for _, id := range s.looseIDs() {
		ids = append(ids, id.String())
	}
	slices.Sort(ids)
	if n := len(ids); len(slices.Compact(ids)) != n || s.len() != n {
		t.Errorf("the set has objects at several places, or a wrong length of %d", s.len())
	}
	return ids
}

// packed lists the objects of the pack that git makes for a spec.
func (c *chooser) packed(spec *packsource.Spec, args ...string) []string {
	c.t.Helper()
	args = append([]string{"pack-objects", "--revs", "-q", "--delta-base-offset"}, args...)
	if spec.Filter != "" {
		args = append(args, "--filter="+spec.Filter)
	}
	if len(spec.Shallow) > 0 {
		args = append([]string{"--shallow-file", ""}, append(args, "--shallow")...)
	}
	if len(spec.Tags) > 0 {
		args = append(args, "--include-tag")
	}
	var in strings.Builder
	for _, id := range spec.Shallow {
		fmt.Fprintf(&in, "--shallow %s\n", id)
	}
	for _, id := range slices.Concat(spec.First, spec.Wants) {
		fmt.Fprintf(&in, "%s\n", id)
	}
	fmt.Fprintf(&in, "--not\n")
	for _, id := range spec.Haves {
		fmt.Fprintf(&in, "%s\n", id)
	}
	args = append(args, "--stdout")
	cmd := exec.Command("git", args...)
	cmd.Dir, cmd.Env, cmd.Stdin = c.r.Dir, gittest.Env(), strings.NewReader(in.String())
	data, err := cmd.Output()
	if err != nil {
		c.t.Fatalf("git %q: %v", args, err)
	}
	c.last = data
	content, err := gittest.ReadPack(data, c.format, func(id git.ObjectID) (git.ObjectType, []byte, error) {
		return 0, nil, fmt.Errorf("base %v is outside of the pack", id)
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return content.IDs()
}

func checkSame(t testing.TB, what string, got, want []string) {
	t.Helper()
	for _, id := range want {
		if _, ok := slices.BinarySearch(got, id); !ok {
			t.Errorf("%s: object %s is not chosen", what, id)
		}
	}
	for _, id := range got {
		if _, ok := slices.BinarySearch(want, id); !ok {
			t.Errorf("%s: object %s is chosen, but should not be", what, id)
		}
	}
}

// layouts are ways to store a repository's objects.
var layouts = map[string]func(r *gittest.Repo){
	"one pack": func(r *gittest.Repo) { r.Git("repack", "-adq") },
	"loose":    func(r *gittest.Repo) { unpack(r) },
	"packs": func(r *gittest.Repo) {
		r.GitIn("refs/heads/main\n", "pack-objects", "-q", "--revs", r.Dir+"/objects/pack/pack")
		r.Git("commit-graph", "write", "--reachable")
	},
	"index version 1": func(r *gittest.Repo) {
		r.Git("-c", "pack.indexVersion=1", "repack", "-adfq", "--depth=2")
	},
}

// unpack makes all objects loose.
func unpack(r *gittest.Repo) {
	r.Git("repack", "-adq")
	packs, _ := filepath.Glob(r.Dir + "/objects/pack/*.pack")
	for _, path := range packs {
		moved := filepath.Join(r.Dir, filepath.Base(path))
		os.Rename(path, moved)
		os.Remove(strings.TrimSuffix(path, "pack") + "idx")
		data, _ := os.ReadFile(moved)
		r.GitIn(string(data), "unpack-objects", "-q")
	}
}

// TestSelectAll compares full histories with git's.
func TestSelectAll(t *testing.T) {
	t.Parallel()
	for _, format := range []git.ObjectFormat{git.SHA1, git.SHA256} {
		for name, arrange := range layouts {
			for seed := range uint64(2) {
				t.Run(fmt.Sprintf("%s, %s, seed %d", format, name, seed), func(t *testing.T) {
					t.Parallel()
					r := gittest.Random(t, seed, gittest.Shape{Merge: 0.3, Skew: true, Format: format.String()})
					arrange(r)
					c := newChooser(t, r, format)
					w := newWorld(r, seed)
					all := &packsource.Spec{Wants: sortIDs(w.tips)}
					chosen, known := c.choose(all)
					checkSame(t, "all", chosen, r.Objects())
					if known != nil {
						t.Errorf("%d objects are known without haves", len(known))
					}
					for range 4 {
						spec := w.spec()
						spec.Haves = nil
						chosen, _ := c.choose(spec)
						checkSame(t, describe(spec), chosen, c.packed(spec))
					}
				})
			}
		}
	}
}

// world is what random specs are made of.
type world struct {
	r       *gittest.Repo
	rnd     *rand.Rand
	tips    []git.ObjectID // of refs, of any type
	commits []git.ObjectID
	parents map[git.ObjectID][]git.ObjectID
	tags    []packsource.Tag
}

func newWorld(r *gittest.Repo, seed uint64) *world {
	w := &world{r: r, rnd: rand.New(rand.NewPCG(seed, 3)), parents: map[git.ObjectID][]git.ObjectID{}}
	for line := range strings.Lines(r.Git("show-ref", "--dereference")) { // "ID REF", and "ID REF^{}" after a tag's
		id, ref, _ := strings.Cut(strings.TrimSpace(line), " ")
		if strings.HasSuffix(ref, "^{}") {
			tag := w.tips[len(w.tips)-1]
			w.tags = append(w.tags, packsource.Tag{ID: tag, Peeled: git.MustParseObjectID(id)})
		} else {
			w.tips = append(w.tips, git.MustParseObjectID(id))
		}
	}
	for line := range strings.Lines(r.Git("rev-list", "--parents", "--all")) {
		f := strings.Fields(line)
		id := git.MustParseObjectID(f[0])
		w.commits = append(w.commits, id)
		for _, p := range f[1:] {
			w.parents[id] = append(w.parents[id], git.MustParseObjectID(p))
		}
	}
	slices.SortFunc(w.tags, func(a, b packsource.Tag) int { return a.ID.Compare(b.ID) })
	w.tags = slices.Compact(w.tags)
	return w
}

func sortIDs(ids []git.ObjectID) []git.ObjectID { return protocol.SortIDs(slices.Clone(ids)) }

func (w *world) pick(from []git.ObjectID, most int) (ids []git.ObjectID) {
	for range 1 + w.rnd.IntN(most) {
		ids = append(ids, from[w.rnd.IntN(len(from))])
	}
	return sortIDs(ids)
}

func (w *world) spec() *packsource.Spec {
	s := &packsource.Spec{Wants: w.pick(slices.Concat(w.tips, w.commits), 3), Haves: w.pick(w.commits, 3),
		Thin: w.rnd.IntN(2) == 0}
	if w.rnd.IntN(2) == 0 {
		s.Tags = w.tags
	}
	if w.rnd.IntN(3) == 0 {
		s.Shallow = w.boundary(1 + w.rnd.IntN(3))
	}
	return s
}

// boundary is the commits at a depth below random commits.
func (w *world) boundary(depth int) []git.ObjectID {
	level := w.pick(w.commits, 2)
	for range depth {
		var next []git.ObjectID
		for _, id := range level {
			next = append(next, w.parents[id]...)
		}
		if len(next) == 0 {
			break
		}
		level = next
	}
	return sortIDs(level)
}

// TestSelectNew checks packs for clients that have something: they have all that the client lacks, and nothing that git
// would not send.
func TestSelectNew(t *testing.T) {
	t.Parallel()
	for _, format := range []git.ObjectFormat{git.SHA1, git.SHA256} {
		for name, arrange := range layouts {
			for seed := range uint64(2) {
				t.Run(fmt.Sprintf("%s, %s, seed %d", format, name, seed), func(t *testing.T) {
					t.Parallel()
					r := gittest.Random(t, seed, gittest.Shape{Commits: 60, Merge: 0.3, Skew: true, Format: format.String()})
					arrange(r)
					c := newChooser(t, r, format)
					w := newWorld(r, seed)
					ours, gits := 0, 0
					for range 8 {
						spec := w.spec()
						if w.rnd.IntN(2) == 0 {
							spec.Filter = testFilters[w.rnd.IntN(len(testFilters))]
							spec.First = c.first(spec.Wants)
						}
						n, git := c.checkNew(spec)
						ours, gits = ours+n, gits+git
					}
					if ours > gits+gits/10 {
						t.Errorf("%d objects are chosen, git sends %d", ours, gits)
					}
				})
			}
		}
	}
}

// checkNew checks the selection for a client with haves. It returns the number of objects, and that of git.
func (c *chooser) checkNew(spec *packsource.Spec) (chosenCount, gitCount int) {
	c.t.Helper()
	what := describe(spec)
	chosen, known := c.choose(spec)
	all := *spec
	all.Haves = nil
	had := all
	had.Wants, had.First, had.Tags, had.Filter = spec.Haves, nil, nil, ""
	untagged := all
	untagged.Tags = nil
	wanted, client := c.packed(&all), c.packed(&had)
	for _, id := range c.packed(&untagged) {
		_, sent := slices.BinarySearch(chosen, id)
		if _, has := slices.BinarySearch(client, id); !has && !sent {
			c.t.Errorf("%s: object %s is not chosen", what, id)
		}
	}
	for _, id := range chosen {
		if _, ok := slices.BinarySearch(wanted, id); !ok {
			c.t.Errorf("%s: object %s is chosen, but not wanted", what, id)
		}
	}
	for _, id := range known {
		if _, ok := slices.BinarySearch(client, id); !ok {
			c.t.Errorf("%s: object %s is not known to the client", what, id)
		}
		if _, ok := slices.BinarySearch(chosen, id); ok {
			c.t.Errorf("%s: object %s is known, but chosen", what, id)
		}
	}
	if !spec.Thin && known != nil {
		c.t.Errorf("%s: %d objects are known, but the pack is not thin", what, len(known))
	}
	return len(chosen), len(c.packed(spec, "--sparse"))
}

func describe(spec *packsource.Spec) string {
	return fmt.Sprintf("wants %.7s haves %.7s shallow %.7s filter %q, %d tags", spec.Wants, spec.Haves, spec.Shallow,
		spec.Filter, len(spec.Tags))
}
