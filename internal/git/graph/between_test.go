package graph

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// commitsOf returns a list as a set, and checks its trees.
func commitsOf(t *testing.T, r *gittest.Repo, l CommitList) Commits {
	t.Helper()
	c := Commits{}
	var revs strings.Builder
	var trees []string
	for id, tree := range l.All() {
		c[git.RawObjectID(id)] = struct{}{}
		fmt.Fprintf(&revs, "%x^{tree}\n", id)
		trees = append(trees, fmt.Sprintf("%x", tree))
	}
	if len(c) != l.Len() {
		t.Fatalf("%d commits in a list of %d", len(c), l.Len())
	}
	if want := strings.Fields(r.GitIn(revs.String(), "cat-file", "--batch-check=%(objectname)")); !slices.Equal(trees,
		want) {
		t.Fatalf("trees of %v: got %v, want %v", c.IDs(), trees, want)
	}
	return c
}

// checkBetween compares with the model.
func checkBetween(t *testing.T, f fixture) {
	for range 30 {
		wants, haves, shallow := f.some(f.rnd, 3), f.some(f.rnd, 3), f.someCommits(f.rnd, 3)
		if f.rnd.IntN(3) == 0 {
			haves = nil
		}
		got, err := f.g.Between(context.Background(), wants, haves, RangeOptions{Shallow: shallow})
		if err != nil {
			t.Fatal(err)
		}
		had := f.reach(shallow, f.peeled(f.g, haves)...)
		want := f.reach(shallow, f.peeled(f.g, wants)...)
		maps.DeleteFunc(want, func(id git.ObjectID, _ struct{}) bool { return had.Has(id) })
		edges := Commits{}
		for id := range want {
			for _, p := range f.parents[id] {
				if had.Has(p) && !shallow.Has(id) {
					edges[p] = struct{}{}
				}
			}
		}
		commits := commitsOf(t, f.Repo, got.Commits)
		if gotEdges := commitsOf(t, f.Repo, got.Edges); !maps.Equal(commits, want) || !maps.Equal(gotEdges, edges) {
			t.Fatalf("wants %v, haves %v, shallow %v:\ngot  %v, edges %v\nwant %v, edges %v", wants, haves, shallow.IDs(),
				commits.IDs(), gotEdges.IDs(), want.IDs(), edges.IDs())
		}
	}
}

// checkBetweenStop stops at random commits.
func checkBetweenStop(t *testing.T, f fixture) {
	for range 30 {
		wants, haves, stops := f.some(f.rnd, 3), f.some(f.rnd, 2), f.someCommits(f.rnd, 6)
		if f.rnd.IntN(3) == 0 {
			haves = nil
		}
		asked := Commits{}
		got, err := f.g.Between(context.Background(), wants, haves, RangeOptions{Stop: func(id []byte) bool {
			asked[git.RawObjectID(id)] = struct{}{}
			return stops.Has(git.RawObjectID(id))
		}})
		if err != nil {
			t.Fatal(err)
		}
		had := f.reach(nil, f.peeled(f.g, haves)...)
		want := Commits{}
		for id := range f.reach(stops, f.peeled(f.g, wants)...) {
			switch {
			case had.Has(id):
			case stops.Has(id):
				if !asked.Has(id) {
					t.Fatalf("wants %v, haves %v: the walk did not ask about %v", wants, haves, id)
				}
			default:
				want[id] = struct{}{}
			}
		}
		if commits := commitsOf(t, f.Repo, got.Commits); !maps.Equal(commits, want) {
			t.Fatalf("wants %v, haves %v, stops %v:\ngot  %v\nwant %v", wants, haves, stops.IDs(), commits.IDs(), want.IDs())
		}
	}
}

// checkBetweenIsSafe wants that no commit is omitted unless the walk stopped at it, and that all edges are in haves.
func checkBetweenIsSafe(t *testing.T, g *Graph, m *model, wants, haves []git.ObjectID, shallow Commits) {
	t.Helper()
	stops := NewCommits(m.ids[len(m.ids)/3], m.ids[len(m.ids)/2])
	listed := Commits{} // in the result, or the walk stopped there
	for _, stop := range []func([]byte) bool{nil, func(raw []byte) bool {
		id := git.RawObjectID(raw)
		if stops.Has(id) {
			listed[id] = struct{}{}
		}
		return stops.Has(id)
	}} {
		clear(listed)
		got, err := g.Between(t.Context(), wants, haves, RangeOptions{Shallow: shallow, Stop: stop})
		if err != nil {
			t.Fatal(err)
		}
		had, ends := m.reach(shallow, haves...), shallow
		if stop != nil {
			ends = shallow.With(maps.Keys(stops))
		}
		for id := range got.Commits.All() {
			if listed.Has(git.RawObjectID(id)) {
				t.Fatalf("%x is among the commits, want the walk to stop there", id)
			}
			listed[git.RawObjectID(id)] = struct{}{}
		}
		for id := range m.reach(ends, wants...) {
			if !had.Has(id) && !listed.Has(id) {
				t.Fatalf("%s is omitted", id)
			}
		}
		for id := range got.Edges.All() {
			if !had.Has(git.RawObjectID(id)) {
				t.Fatalf("haves do not reach the edge %x", id)
			}
		}
	}
}

// checkBetweenGit compares with git rev-list.
func checkBetweenGit(t *testing.T, f fixture) {
	for range 10 {
		wants, haves := f.someCommits(f.rnd, 3).IDs(), f.someCommits(f.rnd, 3).IDs()
		if len(wants) == 0 {
			continue
		}
		args := []string{"rev-list", "--boundary"}
		for _, id := range wants {
			args = append(args, id.String())
		}
		for _, id := range haves {
			args = append(args, "^"+id.String())
		}
		want, edges := Commits{}, Commits{}
		for _, s := range strings.Fields(f.Git(args...)) {
			if s, isEdge := strings.CutPrefix(s, "-"); isEdge {
				edges[git.MustParseObjectID(s)] = struct{}{}
			} else {
				want[git.MustParseObjectID(s)] = struct{}{}
			}
		}
		got, err := f.g.Between(context.Background(), wants, haves, RangeOptions{Shallow: f.server})
		if err != nil {
			t.Fatal(err)
		}
		commits, gotEdges := commitsOf(t, f.Repo, got.Commits), commitsOf(t, f.Repo, got.Edges)
		if !maps.Equal(commits, want) || !maps.Equal(gotEdges, edges) {
			t.Fatalf("git %v:\ngot  %v, edges %v\nwant %v, edges %v", args, commits.IDs(), gotEdges.IDs(), want.IDs(),
				edges.IDs())
		}
	}
}

func TestBetweenInShallowRepository(t *testing.T) {
	t.Parallel()
	for depth := 2; depth <= 8; depth += 3 {
		t.Run(fmt.Sprint("depth", depth), func(t *testing.T) {
			t.Parallel()
			r := gittest.Random(t, uint64(depth), gittest.Shape{Commits: 60, Merge: 0.3})
			dir := filepath.Join(t.TempDir(), "shallow.git")
			gittest.Run(t, "", "", "clone", "-q", "--bare", "--no-single-branch", "--depth", strconv.Itoa(depth), "file://"+
				r.Dir, dir)
			s := gittest.At(t, dir)
			file, err := os.ReadFile(filepath.Join(dir, "shallow"))
			if err != nil {
				t.Fatal(err)
			}
			f := fixture{Repo: s, model: newModel(s), g: openGraph(t, s, Options{}),
				rnd:    rand.New(rand.NewPCG(uint64(depth), 1)),
				server: NewCommits(parseIDs(strings.Fields(string(file)))...)}
			checkBetweenGit(t, f)
			checkMergeBases(t, f)
			checkAheadBehind(t, f)
		})
	}
}

// line makes a history of n commits in a line, the root first.
func line(r *gittest.Repo, n int) []git.ObjectID {
	var in strings.Builder
	for i := range n {
		fmt.Fprintf(&in, "commit refs/heads/main\ncommitter C <c@x> %d +0000\ndata 1\nx\n"+
			"M 100644 inline f\ndata 10\n%010d\n\n", 1_700_000_000+i, i)
	}
	r.GitIn(in.String(), "fast-import", "--quiet")
	ids := parseIDs(strings.Fields(r.Git("rev-list", "--reverse", "main")))
	return ids
}

func TestBetweenIsNewestFirst(t *testing.T) {
	t.Parallel()
	r := gittest.Init(t)
	ids := line(r, 20)
	for _, variant := range []string{"none", "partial", "full"} {
		writeGraph(r, variant)
		g := openGraph(t, r, Options{})
		for _, haves := range [][]git.ObjectID{nil, ids[:1]} {
			got, err := g.Between(t.Context(), ids[19:], haves, RangeOptions{})
			if err != nil || got.Commits.Len() != 20-len(haves) {
				t.Fatalf("%s: got %d commits, %v, want %d", variant, got.Commits.Len(), err, 20-len(haves))
			}
			for i := range got.Commits.Len() {
				if id := git.RawObjectID(got.Commits.ID(i)); id != ids[19-i] {
					t.Errorf("%s: commit %d is %s, want %s", variant, i, id, ids[19-i])
				}
			}
		}
	}
}

func TestBetweenMissingObjects(t *testing.T) {
	t.Parallel()
	r := gittest.Init(t)
	ids := line(r, 3)
	none := git.MustParseObjectID(strings.Repeat("ab", 20))
	tree := r.ID("main^{tree}")
	text := fmt.Sprintf("tree %s\nparent %s\nauthor A <a> 1700000100 +0000\ncommitter A <a> 1700000100 +0000\n\nx\n",
		tree, none)
	broken := git.MustParseObjectID(r.GitIn(text, "hash-object", "-w", "-t", "commit", "--stdin"))
	g := openGraph(t, r, Options{})
	for _, c := range []struct {
		wants, haves []git.ObjectID
		commits      int
		kind         fault.Kind // 0: no error
	}{
		{ids[2:], []git.ObjectID{none, ids[0]}, 2, 0},
		{[]git.ObjectID{ids[2], none}, nil, 0, fault.NotFound},
		{[]git.ObjectID{broken}, nil, 0, fault.Corrupt},
		{ids[2:], []git.ObjectID{broken}, 3, 0},
		{ids[2:], []git.ObjectID{broken, ids[1]}, 1, 0},
		{[]git.ObjectID{tree}, nil, 0, 0},
		{ids[2:], []git.ObjectID{tree}, 3, 0},
		{nil, ids, 0, 0},
	} {
		got, err := g.Between(t.Context(), c.wants, c.haves, RangeOptions{})
		if (err != nil) != (c.kind != 0) || c.kind != 0 && !fault.Is(err, c.kind) || got.Commits.Len() != c.commits {
			t.Errorf("Between(%v, %v) = %d commits, %v, want %d, %v", c.wants, c.haves, got.Commits.Len(), err, c.commits,
				c.kind)
		}
	}
}

func TestBetweenLimits(t *testing.T) {
	t.Parallel()
	r := gittest.Init(t)
	ids := line(r, 2*checkEvery+1)
	tip := ids[len(ids)-1:]
	g := openGraph(t, r, Options{})
	ticks := 0
	got, err := g.Between(t.Context(), tip, nil, RangeOptions{Tick: func() error {
		ticks++
		return nil
	}})
	if err != nil || got.Commits.Len() != len(ids) || ticks != 2 {
		t.Errorf("a walk of %d commits: got %d, %d ticks, %v", len(ids), got.Commits.Len(), ticks, err)
	}
	errEnd := errors.New("end")
	if _, err := g.Between(t.Context(), tip, nil, RangeOptions{Tick: func() error { return errEnd }}); !errors.Is(err,
		errEnd) {
		t.Errorf("got %v, want the error of Tick", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := g.Between(ctx, tip, nil, RangeOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the error of the context", err)
	}
}

// TestBetweenReadsOnce has commits without a commit-graph. They are read by the first walk only.
func TestBetweenReadsOnce(t *testing.T) {
	t.Parallel()
	r := gittest.Init(t)
	ids := line(r, 5)
	g := openGraph(t, r, Options{})
	counted := &countingObjects{Objects: g.objects}
	g.objects = counted
	for range 2 {
		if got, err := g.Between(t.Context(), ids[4:], nil, RangeOptions{}); err != nil || got.Commits.Len() != 5 {
			t.Fatalf("got %d commits, %v", got.Commits.Len(), err)
		}
		if counted.reads != 5 {
			t.Errorf("%d reads for 5 commits", counted.reads)
		}
	}
}

type countingObjects struct {
	Objects
	reads int
}

func (o *countingObjects) Read(id git.ObjectID, limit int64) (git.ObjectType, []byte, error) {
	o.reads++
	return o.Objects.Read(id, limit)
}
