package graph

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
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
	"github.com/packhorse-git/packhorse/internal/git/pack"
)

// variants are the ways in which a commit-graph may cover a repository.
var variants = []string{"none", "full", "changed-paths", "levels", "chain", "mixed-chain", "partial"}

// writeGraph makes the commit-graph of a variant.
func writeGraph(r *gittest.Repo, variant string) {
	commits := strings.Fields(r.Git("rev-list", "--all"))
	old := strings.Join(commits[2*len(commits)/3:], "\n") // some of the older ones, and so all that they reach
	middle := strings.Join(commits[len(commits)/3:], "\n")
	write := func(stdin string, args ...string) {
		if stdin == "" {
			args = append(args, "--reachable")
		} else {
			args = append(args, "--stdin-commits")
		}
		r.GitIn(stdin, append([]string{"-c", "core.commitGraph=true"}, args...)...)
	}
	switch variant {
	case "none":
	case "full":
		write("", "commit-graph", "write", "--no-changed-paths")
	case "changed-paths":
		write("", "commit-graph", "write", "--changed-paths")
	case "levels":
		write("", "-c", "commitGraph.generationVersion=1", "commit-graph", "write")
	case "chain":
		write(old, "commit-graph", "write", "--split=no-merge")
		write(middle, "commit-graph", "write", "--split=no-merge")
		write("", "commit-graph", "write", "--split=no-merge")
	case "mixed-chain":
		write(old, "-c", "commitGraph.generationVersion=1", "commit-graph", "write", "--split=no-merge")
		write("", "commit-graph", "write", "--split=no-merge")
	case "partial":
		write(old, "commit-graph", "write")
	default:
		panic("no variant " + variant)
	}
}

func openGraph(t testing.TB, r *gittest.Repo, o Options) *Graph {
	t.Helper()
	if r.Format() == git.SHA256 {
		o.Format = git.SHA256
	}
	s := openStore(t, r, o.Format)
	g := New(s, s.Dirs, o)
	if err := g.Refresh(); err != nil {
		t.Fatal(err)
	}
	return g
}

func openStore(t testing.TB, r *gittest.Repo, format git.ObjectFormat) *pack.Store {
	t.Helper()
	s, err := pack.Open(filepath.Join(r.Dir, "objects"), pack.Options{Format: format})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// model is a history as git lists it, to compute expected answers in the plainest way.
type model struct {
	ids     []git.ObjectID // all commits, newest first
	parents map[git.ObjectID][]git.ObjectID
	dates   map[git.ObjectID]int64
	tips    []git.ObjectID // what refs name, tags not peeled
	tags    map[git.ObjectID]git.ObjectID
}

func newModel(r *gittest.Repo) *model {
	m := &model{parents: map[git.ObjectID][]git.ObjectID{}, dates: map[git.ObjectID]int64{},
		tags: map[git.ObjectID]git.ObjectID{}}
	for line := range strings.SplitSeq(r.Git("rev-list", "--all", "--parents", "--timestamp"), "\n") {
		f := strings.Fields(line)
		id := git.MustParseObjectID(f[1])
		m.ids = append(m.ids, id)
		m.parents[id] = []git.ObjectID{}
		m.dates[id], _ = strconv.ParseInt(f[0], 10, 64)
		for _, p := range f[2:] {
			m.parents[id] = append(m.parents[id], git.MustParseObjectID(p))
		}
	}
	for _, s := range strings.Fields(r.Git("for-each-ref", "--format=%(objectname)")) {
		m.tips = append(m.tips, git.MustParseObjectID(s))
	}
	for line := range strings.SplitSeq(r.Git("cat-file", "--batch-all-objects",
		"--batch-check=%(objectname) %(objecttype)"), "\n") {
		if name, isTag := strings.CutSuffix(line, " tag"); isTag {
			object, _, _ := strings.Cut(r.Git("cat-file", "tag", name), "\n")
			m.tags[git.MustParseObjectID(name)] = git.MustParseObjectID(strings.TrimPrefix(object, "object "))
		}
	}
	return m
}

// reach returns the commits that are reachable from starts, including starts.
func (m *model) reach(shallow Commits, starts ...git.ObjectID) Commits {
	seen := Commits{}
	stack := slices.Clone(starts)
	for len(stack) > 0 {
		id := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if _, commit := m.parents[id]; !commit || seen.Has(id) {
			continue
		}
		seen[id] = struct{}{}
		if !shallow.Has(id) {
			stack = append(stack, m.parents[id]...)
		}
	}
	return seen
}

// some picks up to n commits, or other tips now and then.
func (m *model) some(rnd *rand.Rand, n int) []git.ObjectID {
	ids := make([]git.ObjectID, 0, n)
	for range 1 + rnd.IntN(n) {
		if len(m.tips) > 0 && rnd.IntN(8) == 0 {
			ids = append(ids, m.tips[rnd.IntN(len(m.tips))])
		} else {
			ids = append(ids, m.ids[rnd.IntN(len(m.ids))])
		}
	}
	return ids
}

// someCommits returns up to n random commits.
func (m *model) someCommits(rnd *rand.Rand, n int) Commits {
	c := Commits{}
	for range rnd.IntN(n + 1) {
		c[m.ids[rnd.IntN(len(m.ids))]] = struct{}{}
	}
	return c
}

// peeled gives the commits that objects name through tags.
func (m *model) peeled(g *Graph, ids []git.ObjectID) []git.ObjectID {
	var commits []git.ObjectID
	for _, id := range ids {
		if id, typ, err := g.Peel(id); err == nil && typ == git.Commit {
			commits = append(commits, id)
		}
	}
	return commits
}

// fixture is a random repository in one variant.
type fixture struct {
	*gittest.Repo
	*model
	g      *Graph
	rnd    *rand.Rand
	server Commits // where the repository's own history ends
}

// checks are run on every random repository, with every kind of commit-graph.
var checks = []struct {
	name string
	run  func(*testing.T, fixture)
}{
	{"Commit", checkCommit}, {"Unreachable", checkUnreachable}, {"AllReach", checkAllReach}, {"Maximal", checkMaximal},
	{"Missing", checkMissing}, {"Met", checkMet}, {"Ready", checkReady}, {"Depth", checkDepth},
	{"DepthRelative", checkDepthRelative}, {"Since", checkSince}, {"Between", checkBetween},
	{"BetweenStop", checkBetweenStop}, {"BetweenGit", checkBetweenGit},
	{"MergeBases", checkMergeBases}, {"AheadBehind", checkAheadBehind},
}

func TestRandomRepositories(t *testing.T) {
	t.Parallel()
	seeds := uint64(2)
	if testing.Short() {
		seeds = 1
	}
	for seed := range seeds {
		for i, variant := range variants {
			t.Run(fmt.Sprintf("seed%d/%s", seed, variant), func(t *testing.T) {
				t.Parallel()
				shape := gittest.Shape{Commits: 60, Branches: 6, Merge: 0.3, Skew: (int(seed)+i)%2 == 0}
				if (int(seed)+i)%5 == 4 {
					shape.Format = "sha256"
				}
				r := gittest.Random(t, seed, shape)
				addOctopus(r)
				writeGraph(r, variant)
				rnd := rand.New(rand.NewPCG(seed, uint64(i)))
				f := fixture{Repo: r, model: newModel(r), g: openGraph(t, r, Options{}), rnd: rnd}
				for _, check := range checks {
					t.Run(check.name, func(t *testing.T) { check.run(t, f) })
				}
			})
		}
	}
}

// addOctopus adds merges of three and four commits, and a commit on them.
func addOctopus(r *gittest.Repo) {
	var tips []git.ObjectID
	for _, s := range strings.Fields(r.Git("for-each-ref", "--format=%(objectname)", "refs/heads")) {
		tips = append(tips, git.MustParseObjectID(s))
	}
	slices.SortFunc(tips, git.ObjectID.Compare)
	tips = slices.Compact(tips)
	top := r.Commit("three", tips[:min(3, len(tips))]...)
	four := r.Commit("four", append([]git.ObjectID{top}, tips[:min(3, len(tips))]...)...)
	r.Git("update-ref", "refs/heads/octopus", r.Commit("on top", four).String())
}

func checkCommit(t *testing.T, f fixture) {
	for _, id := range f.ids {
		c, err := f.g.Commit(id)
		if err != nil {
			t.Fatal(err)
		}
		if c.ID != id || !slices.Equal(c.Parents, f.parents[id]) || c.Date != f.dates[id] {
			t.Errorf("commit %s: got %v; want parents %v, date %d", id, c, f.parents[id], f.dates[id])
		}
		for _, p := range c.Parents {
			parent, err := f.g.Commit(p)
			if err != nil {
				t.Fatal(err)
			}
			if parent.Generation >= c.Generation && c.Generation != NoGeneration {
				t.Errorf("generation of %s is %d, of its parent %d", id, c.Generation, parent.Generation)
			}
		}
	}
	_, err := f.g.Commit(f.ID("HEAD^{tree}"))
	if !fault.Is(err, fault.Invalid) {
		t.Errorf("a tree as commit: got %v, want Invalid", err)
	}
	none := slices.Clone(f.ids[0].Raw())
	none[3] ^= 0x55
	if _, err := f.g.Commit(git.RawObjectID(none)); !fault.Is(err, fault.NotFound) {
		t.Errorf("no object as commit: got %v, want NotFound", err)
	}
}

func TestPeel(t *testing.T) {
	t.Parallel()
	r := gittest.Random(t, 1, gittest.Shape{})
	g := openGraph(t, r, Options{})
	for range 2 { // read, then remembered
		for line := range strings.SplitSeq(r.Git("for-each-ref",
			"--format=%(objectname) %(objecttype) %(*objectname) %(*objecttype)"), "\n") {
			id := git.MustParseObjectID(strings.Fields(line)[0])
			want := r.ID(id.String() + "^{}")
			typ := r.Git("cat-file", "-t", want.String())
			got, gotType, err := g.Peel(id)
			if err != nil || got != want || gotType.String() != typ {
				t.Errorf("peel %s: got %s %s, %v; want %s %s", id, gotType, got, err, typ, want)
			}
		}
	}
	big := r.GitIn(strings.Repeat("x", 3<<20), "hash-object", "-w", "--stdin")
	if _, typ, err := g.Peel(git.MustParseObjectID(big)); err != nil || typ != git.Blob {
		t.Errorf("peel a large blob: got %s, %v", typ, err)
	}
}

func checkUnreachable(t *testing.T, f fixture) {
	for range 60 {
		tips, targets, shallow := f.some(f.rnd, 3), f.some(f.rnd, 4), f.someCommits(f.rnd, 3)
		reached := f.reach(shallow, f.peeled(f.g, tips)...)
		var want git.ObjectID
		for _, id := range targets {
			if !reached.Has(id) && !f.chains(tips).Has(id) {
				want = id
				break
			}
		}
		got, found, err := f.g.FirstUnreachable(context.Background(), tips, targets, shallow)
		if err != nil {
			t.Fatal(err)
		}
		if got != want || found != !want.IsZero() {
			t.Fatalf("tips %v, targets %v, shallow %v: got %s %v, want %s", tips, targets, shallow.IDs(), got, found, want)
		}
	}
	for range 10 { // and git's own word
		a, b := f.ids[f.rnd.IntN(len(f.ids))], f.ids[f.rnd.IntN(len(f.ids))]
		_, err := f.Try("merge-base", "--is-ancestor", a.String(), b.String())
		_, found, _ := f.g.FirstUnreachable(context.Background(), []git.ObjectID{b}, []git.ObjectID{a}, nil)
		if found != (err != nil) {
			t.Errorf("is %s an ancestor of %s: got %v, git says %v", a, b, !found, err)
		}
	}
}

// chains is every object on the tag chains from tips.
func (m *model) chains(tips []git.ObjectID) Commits {
	c := Commits{}
	for _, id := range tips {
		for !id.IsZero() {
			c[id] = struct{}{}
			id = m.tags[id]
		}
	}
	return c
}

// checkAllReach has a have that is older than all other commits, so that every walk reaches it.
func checkAllReach(t *testing.T, f fixture) {
	oldest := slices.MinFunc(f.ids, func(a, b git.ObjectID) int { return cmp.Compare(f.dates[a], f.dates[b]) })
	for range 80 {
		wants, haves, shallow := f.some(f.rnd, 4), f.some(f.rnd, 3), f.someCommits(f.rnd, 4)
		haves = append(haves, oldest)
		known := NewCommits(f.peeled(f.g, haves)...)
		named := len(known) // and their parents, as often as they are such
		for id := range maps.Clone(known) {
			if !shallow.Has(id) {
				named += len(f.parents[id])
				for _, p := range f.parents[id] {
					known[p] = struct{}{}
				}
			}
		}
		want := true
		for _, id := range f.peeled(f.g, wants) {
			reaches := false
			for r := range f.reach(shallow, id) {
				reaches = reaches || known.Has(r)
			}
			want = want && reaches
		}
		got, visited, err := f.g.AllReach(context.Background(), wants, haves, shallow)
		if err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Fatalf("wants %v, haves %v, shallow %v: got %v", wants, haves, shallow.IDs(), got)
		}
		if visited < named || visited > named+len(f.ids) {
			t.Fatalf("%d commits visited of %d, for %d haves and their parents", visited, len(f.ids), named)
		}
	}
}

func checkMaximal(t *testing.T, f fixture) {
	for range 60 {
		haves, shallow := f.some(f.rnd, 8), f.someCommits(f.rnd, 4)
		got, err := f.g.Maximal(context.Background(), haves, shallow)
		if err != nil {
			t.Fatal(err)
		}
		var want []git.ObjectID
		for _, id := range sorted(slices.Clone(haves)) {
			behind := false
			for _, other := range haves {
				behind = behind || other != id && f.reach(shallow, other).Has(id)
			}
			if !behind {
				want = append(want, id)
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("haves %v, shallow %v:\ngot  %v\nwant %v", haves, shallow.IDs(), got, want)
		}
		cut, err := f.g.maximal(context.Background(), haves, shallow, f.rnd.IntN(20))
		if err != nil {
			t.Fatal(err)
		}
		all, kept := f.reach(shallow, f.peeled(f.g, haves)...), f.reach(shallow, f.peeled(f.g, cut)...)
		if !maps.Equal(all, kept) {
			t.Fatalf("haves %v, shallow %v: cut to %v, which reach less", haves, shallow.IDs(), cut)
		}
	}
	var args []string
	for range 6 {
		args = append(args, f.ids[f.rnd.IntN(len(f.ids))].String())
	}
	got, err := f.g.Maximal(context.Background(), parseIDs(args), nil)
	if err != nil {
		t.Fatal(err)
	}
	want := sorted(parseIDs(strings.Fields(f.Git(append([]string{"merge-base", "--independent"}, args...)...))))
	if !slices.Equal(got, want) {
		t.Errorf("independent of %v: got %v, git says %v", args, got, want)
	}
}

func parseIDs(list []string) []git.ObjectID {
	var ids []git.ObjectID
	for _, s := range list {
		ids = append(ids, git.MustParseObjectID(s))
	}
	return ids
}

func checkMissing(t *testing.T, f fixture) {
	for range 60 {
		wants, haves, shallow := f.some(f.rnd, 3), f.some(f.rnd, 3), f.someCommits(f.rnd, 3)
		got, more, err := f.g.Missing(context.Background(), wants, haves, shallow, 0)
		if err != nil || more {
			t.Fatal(more, err)
		}
		want := f.reach(shallow, f.peeled(f.g, wants)...)
		for id := range f.reach(shallow, f.peeled(f.g, haves)...) {
			delete(want, id)
		}
		if !maps.Equal(got, want) {
			t.Fatalf("wants %v, haves %v, shallow %v:\ngot  %v\nwant %v", wants, haves, shallow.IDs(), got.IDs(), want.IDs())
		}
		if len(want) < 2 {
			continue
		}
		some, more, err := f.g.Missing(context.Background(), wants, haves, shallow, len(want)-1)
		if err != nil || !more || len(some) > len(want)-1 {
			t.Fatalf("limit %d: got %d, %v, %v", len(want)-1, len(some), more, err)
		}
	}
}

func checkMet(t *testing.T, f fixture) {
	for range 60 {
		starts, shallow := f.some(f.rnd, 3), f.someCommits(f.rnd, 4)
		reached := f.reach(shallow, f.peeled(f.g, starts)...)
		want := maps.Clone(shallow)
		maps.DeleteFunc(want, func(id git.ObjectID, _ struct{}) bool { return !reached.Has(id) })
		got, err := f.g.Met(context.Background(), starts, shallow, math.MaxInt)
		if err != nil || !maps.Equal(got, want) {
			t.Fatalf("starts %v, shallow %v: %v\ngot  %v\nwant %v", starts, shallow.IDs(), err, got.IDs(), want.IDs())
		}
		if got, err = f.g.Met(context.Background(), starts, shallow, 0); err != nil || len(reached) > 0 &&
			!maps.Equal(got, shallow) {
			t.Fatalf("with a limit of 0: got %v, %v; want %v", got.IDs(), err, shallow.IDs())
		}
	}
}

// TestLyingClocks has dates that decrease by years. Exact answers stay exact, and the others are wrong in the safe
// direction.
func TestLyingClocks(t *testing.T) {
	t.Parallel()
	r := gittest.Init(t)
	rnd := rand.New(rand.NewPCG(3, 3))
	var in strings.Builder
	for i := 1; i <= 80; i++ {
		fmt.Fprintf(&in, "commit refs/heads/b%d\nmark :%d\ncommitter C <c@x> %d +0000\ndata 1\nx\n", i, i,
			rnd.IntN(1_700_000_000))
		if i > 1 {
			fmt.Fprintf(&in, "from :%d\nmerge :%d\n", max(1, i-1-rnd.IntN(3)), 1+rnd.IntN(i-1))
		}
		in.WriteString("\n")
	}
	r.GitIn(in.String(), "fast-import", "--quiet", "--force")
	for _, variant := range []string{"none", "partial", "full", "levels"} {
		writeGraph(r, variant)
		m, g := newModel(r), openGraph(t, r, Options{})
		m.tips = nil
		for range 50 {
			a, b, shallow := m.some(rnd, 3), m.some(rnd, 3), m.someCommits(rnd, 2)
			if _, found, err := g.FirstUnreachable(t.Context(), a, b[:1], shallow); err != nil ||
				found == m.reach(shallow, a...).Has(b[0]) {
				t.Fatalf("%s: unreachable %v from %v: got %v, %v", variant, b[0], a, found, err)
			}
			max, err := g.Maximal(t.Context(), a, shallow)
			if err != nil || !maps.Equal(m.reach(shallow, a...), m.reach(shallow, max...)) {
				t.Fatalf("%s: maximal of %v is %v, %v", variant, a, max, err)
			}
			missing, _, err := g.Missing(t.Context(), a, b, shallow, 0)
			if err != nil {
				t.Fatal(err)
			}
			had := m.reach(shallow, b...)
			for id := range m.reach(shallow, a...) {
				if !had.Has(id) && !missing.Has(id) {
					t.Fatalf("%s: %s is not named as missing", variant, id)
				}
			}
			checkBetweenIsSafe(t, g, m, a, b, shallow)
			checkBasesOf(t, g, m, a[0], b, shallow)
		}
	}
}

func TestContext(t *testing.T) {
	t.Parallel()
	g := openGraph(t, gittest.Random(t, 5, gittest.Shape{}), Options{})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	id := gittest.At(t, filepath.Dir(g.objectDirs()[0])).ID("HEAD")
	if _, err := g.Depth(ctx, []git.ObjectID{id}, 2, nil, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the context's error", err)
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}
