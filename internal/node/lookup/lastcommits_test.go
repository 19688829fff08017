package lookup

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/graph"
	"github.com/packhorse-git/packhorse/internal/git/repo"
)

// tangled makes a history of few contents in few paths, so that commits, merges and branches often undo each other.
// There are merges that take everything from one side or mix both, directories that become files, and wrong clocks.
func tangled(t testing.TB, seed uint64, commits int) *gittest.Repo {
	t.Helper()
	rnd := rand.New(rand.NewPCG(seed, 7))
	paths := []string{"a", "b*", "[c]", "d", "d/x", "d/y", "d/e", "d/e/z", "d/e/w", "été/ö", "été/p", "sub/deep/er/f",
		"g h"}
	type state map[string]int
	states := []state{}
	var in strings.Builder
	for i := range commits {
		var files state
		var parents []int
		if i > 0 {
			parents = append(parents, max(0, i-1-rnd.IntN(6)))
			files = maps.Clone(states[parents[0]])
		} else {
			files = state{"a": 0, "d/x": 0, "d/e/z": 1, "été/ö": 2}
		}
		for range rnd.IntN(3) {
			if other := rnd.IntN(max(i, 1)); rnd.IntN(2) == 0 && i > 1 && !slices.Contains(parents, other) {
				parents = append(parents, other)
				kind := rnd.IntN(4)
				for _, p := range paths {
					theirs, ok := states[other][p]
					switch {
					case kind == 0 || kind > 1 && rnd.IntN(2) == 0:
					case ok:
						files[p] = theirs
					default:
						delete(files, p)
					}
				}
			}
		}
		for range rnd.IntN(3) {
			p := paths[rnd.IntN(len(paths))]
			if rnd.IntN(4) == 0 {
				delete(files, p)
			} else {
				files[p] = rnd.IntN(3)
			}
		}
		for p := range maps.Clone(files) { // a file has no files below it
			for q := range files {
				if strings.HasPrefix(q, p+"/") {
					delete(files, []string{p, q}[rnd.IntN(2)])
				}
			}
		}
		states = append(states, files)
		fmt.Fprintf(&in, "commit refs/heads/b%d\nmark :%d\ncommitter C <c@x> %d +0000\ndata 1\nx\n", i%5, i+1,
			1_600_000_000+i*1000-rnd.IntN(2)*rnd.IntN(9000))
		for k, p := range parents {
			fmt.Fprintf(&in, "%s :%d\n", []string{"from", "merge"}[min(k, 1)], p+1)
		}
		in.WriteString("deleteall\n")
		for _, p := range slices.Sorted(maps.Keys(files)) {
			fmt.Fprintf(&in, "M %s inline %s\ndata 2\n%d\n\n", []string{"100644", "100755"}[files[p]%2], p, files[p]/2)
		}
		in.WriteString("\n")
	}
	in.WriteString("reset refs/heads/main\nfrom refs/heads/b0\n\n")
	r := gittest.Init(t)
	r.GitIn(in.String(), "-c", "fastimport.unpackLimit=0", "fast-import", "--quiet", "--force")
	return r
}

// graphs write commit-graphs with and without filters of changed paths.
var graphs = []struct {
	name  string
	write func(r *gittest.Repo)
}{
	{"none", func(*gittest.Repo) {}},
	{"full", func(r *gittest.Repo) { r.Git("commit-graph", "write", "--reachable", "--no-changed-paths") }},
	{"changed-paths", func(r *gittest.Repo) { r.Git("commit-graph", "write", "--reachable", "--changed-paths") }},
	{"few filters", func(r *gittest.Repo) {
		r.Git("commit-graph", "write", "--reachable", "--changed-paths", "--max-new-filters=30")
	}},
	{"levels", func(r *gittest.Repo) {
		r.Git("-c", "commitGraph.generationVersion=1", "commit-graph", "write", "--reachable", "--changed-paths")
	}},
	{"chain", func(r *gittest.Repo) {
		r.GitIn(r.Git("rev-parse", "main~3"), "commit-graph", "write", "--stdin-commits", "--split=no-merge")
		r.Git("commit-graph", "write", "--reachable", "--split=no-merge", "--changed-paths")
	}},
	{"partial", func(r *gittest.Repo) {
		r.GitIn(r.Git("rev-parse", "main~2"), "commit-graph", "write", "--stdin-commits", "--changed-paths")
	}},
}

// removeGraph removes all commit-graphs.
func removeGraph(t *testing.T, r *gittest.Repo) {
	t.Helper()
	for _, name := range []string{"commit-graph", "commit-graphs"} {
		if err := os.RemoveAll(filepath.Join(r.Dir, "objects/info", name)); err != nil {
			t.Fatal(err)
		}
	}
}

// lastCommits has git's results: for each revision and directory, the entries with their last commits.
type lastCommits map[PathIn][]string

func gitLastCommits(r *gittest.Repo, revisions []string, dirs []string) lastCommits {
	want := lastCommits{}
	for _, revision := range revisions {
		for _, dir := range dirs {
			if typ, err := r.Try("cat-file", "-t", revision+":"+dir); err != nil || strings.TrimSpace(typ) != "tree" {
				continue
			}
			var list []string
			for _, name := range strings.Split(strings.TrimSuffix(r.Git("ls-tree", "-z", "--name-only", revision+":"+dir),
				"\x00"), "\x00") {
				list = append(list, name+" "+r.Git("--literal-pathspecs", "log", "-1", "--format=%H", revision, "--",
					strings.TrimPrefix(dir+"/"+name, "/")))
			}
			want[PathIn{revision, dir}] = list
		}
	}
	return want
}

func (want lastCommits) check(t *testing.T, l func() *Reader, r *repo.Repo) {
	t.Helper()
	for in, list := range want {
		var got []string
		err := l().LastCommits(t.Context(), r, in, func(list []LastCommit) error {
			for _, e := range list {
				got = append(got, e.Name+" "+e.Commit.ID.String())
			}
			return nil
		})
		if err != nil || !slices.Equal(got, list) {
			t.Fatalf("last commits of %v: %v\ngot  %v\nwant %v", in, err, got, list)
		}
	}
}

func TestLastCommits(t *testing.T) {
	t.Parallel()
	seeds := uint64(8)
	if testing.Short() {
		seeds = 2
	}
	for seed := range seeds {
		t.Run(fmt.Sprint("seed", seed), func(t *testing.T) {
			t.Parallel()
			r := tangled(t, seed, 60)
			want := gitLastCommits(r, []string{"main", "b1", "b3", "b1~1", "main~3"},
				[]string{"", "d", "d/e", "été", "sub/deep"})
			if len(want) < 8 {
				t.Fatalf("only %d directories", len(want))
			}
			for _, g := range graphs {
				removeGraph(t, r)
				g.write(r)
				opened, shared := openRepo(t, r), New(Options{})
				shared.bounds.passedStep = 1 + int(seed%3)
				want.check(t, func() *Reader { return New(Options{}) }, opened)
				for range 2 { // in another order, with results of earlier ones
					want.check(t, func() *Reader { return shared }, opened)
				}
			}
		})
	}
}

func TestLastCommitsOfFiltersVersion2(t *testing.T) {
	t.Parallel()
	r := tangled(t, 3, 60)
	r.Newer("-c", "commitGraph.changedPathsVersion=2", "commit-graph", "write", "--reachable", "--changed-paths")
	gitLastCommits(r, []string{"main", "b2"}, []string{"", "d", "été"}).check(t, func() *Reader { return New(Options{}) },
		openRepo(t, r))
}

// TestLastCommitsWithDamagedFilters has filters that are lost, and bounds of filters that contradict each other.
func TestLastCommitsWithDamagedFilters(t *testing.T) {
	t.Parallel()
	r := tangled(t, 4, 60)
	r.Git("commit-graph", "write", "--reachable", "--changed-paths")
	want := gitLastCommits(r, []string{"main"}, []string{"", "d"})
	path := filepath.Join(r.Dir, "objects/info/commit-graph")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	chunk := func(name string) (begin, end uint64) {
		at := 8 + strings.Index(string(whole[8:]), name)
		return binary.BigEndian.Uint64(whole[at+4:]), binary.BigEndian.Uint64(whole[at+16:])
	}
	for _, damage := range []func(b []byte){
		func(b []byte) { begin, end := chunk("BDAT"); clear(b[begin+12 : end]) },
		func(b []byte) { begin, end := chunk("BIDX"); clear(b[begin:end]) },
		func(b []byte) {
			begin, end := chunk("BIDX")
			copy(b[begin:end], strings.Repeat("\xff\x00", int(end-begin)/2))
		},
		func(b []byte) { begin, _ := chunk("BDAT"); b[begin+3] = 9 },
		func(b []byte) { begin, _ := chunk("BDAT"); b[begin+4] = 9 },
		func(b []byte) { copy(b[8+strings.Index(string(b[8:]), "BIDX"):], "XXXX") },
	} {
		removeGraph(t, r)
		b := slices.Clone(whole)
		damage(b)
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		want.check(t, func() *Reader { return New(Options{}) }, openRepo(t, r))
	}
}

func TestLastCommitsOfShallowRepository(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "shallow.git")
	whole := tangled(t, 5, 60).Dir
	gittest.Run(t, "", "", "clone", "-q", "--bare", "--no-single-branch", "--depth=4", "file://"+whole, dir)
	r := gittest.At(t, dir)
	shared := New(Options{})
	gitLastCommits(r, []string{"main", "b2"}, []string{"", "d"}).check(t, func() *Reader { return shared }, openRepo(t, r))
}

func TestLastCommitsErrors(t *testing.T) {
	t.Parallel()
	r := tangled(t, 1, 60)
	opened, l := openRepo(t, r), New(Options{})
	file := strings.Fields(r.Git("ls-tree", "-r", "--name-only", "main"))[0]
	for _, test := range []struct {
		in    PathIn
		kind  fault.Kind
		field string
	}{
		{PathIn{"nothing", ""}, fault.NotFound, "revision"},
		{PathIn{"main^{tree}", ""}, fault.Invalid, "revision"},
		{PathIn{"main", "nothing"}, fault.NotFound, "path"},
		{PathIn{"main", file}, fault.Invalid, "path"},
		{PathIn{"main", "../d"}, fault.NotFound, "path"},
		{PathIn{"main", strings.Repeat("x", maxPath+1)}, fault.Invalid, "path"},
	} {
		err := l.LastCommits(t.Context(), opened, test.in, func([]LastCommit) error { return errors.New("sent") })
		e, ok := errors.AsType[*fault.Error](err)
		if !ok || e.Kind != test.kind || e.Field != test.field {
			t.Errorf("%.50v: got %v, want kind %v, field %s", test.in, err, test.kind, test.field)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.LastCommits(ctx, opened, PathIn{"main", ""}, func([]LastCommit) error { return nil }); !errors.Is(err,
		context.Canceled) {
		t.Errorf("got %v, want the error of the context", err)
	}
}

// TestLastCommitsOfBadTrees has trees that git does not write: names twice, and not sorted.
func TestLastCommitsOfBadTrees(t *testing.T) {
	t.Parallel()
	r := gittest.Init(t)
	a, b := r.Blob("a"), r.Blob("b")
	var tip git.ObjectID
	for i, tree := range []git.ObjectID{
		treeOf(t, r, "100644 x", a), treeOf(t, r, "100644 z", a, "100644 x", b, "100644 x", a),
		treeOf(t, r, "100644 x", a, "100644 x", b, "100644 z", a, "100644 b", b),
		treeOf(t, r, "100644 x", a, "100644 x", b),
	} {
		text := fmt.Sprintf("tree %s\n", tree)
		if i > 0 {
			text += fmt.Sprintf("parent %s\n", tip)
		}
		text += fmt.Sprintf("author A <a> %d +0000\ncommitter A <a> %d +0000\n\nx\n", i, i)
		tip = store(t, r, git.Commit, []byte(text))
		l := New(Options{})
		for range 2 {
			err := l.LastCommits(t.Context(), openRepo(t, r), PathIn{tip.String(), ""}, func(list []LastCommit) error {
				for _, e := range list {
					if e.Commit == nil {
						t.Errorf("commit %d: no commit of %q", i, e.Name)
					}
				}
				return nil
			})
			if err != nil {
				t.Errorf("commit %d: %v", i, err)
			}
		}
	}
}

func TestLastCacheIsBounded(t *testing.T) {
	t.Parallel()
	c := newLastCache()
	rnd := rand.New(rand.NewPCG(1, 1))
	for i := range 500 {
		list := []LastCommit{{Name: "f", Commit: &Commit{Message: make([]byte, rnd.IntN(maxLastCache/7))}}}
		key := func() lastKey { return lastKey{repository: "r", dir: fmt.Sprint(rnd.IntN(99))} }
		passed := []graph.From{{Entries: []int32{0}}, {Entries: []int32{0}}}
		c.add(key(), list, passed[:rnd.IntN(3)], nil)
		sum, sets := 0, map[*lastSet]int{}
		for _, k := range c.lru.Keys() {
			results, _ := c.lru.Peek(k)
			for _, r := range results {
				sum += r.cost(k)
				if sets[r.lastSet]++; sets[r.lastSet] == 1 {
					sum += r.size
				}
			}
		}
		for s, n := range sets {
			if s.shared != n {
				t.Fatalf("after %d: %d results share a set, counted %d", i, n, s.shared)
			}
		}
		if sum != c.size || sum > maxLastCache {
			t.Fatalf("after %d: %d bytes, counted %d", i, sum, c.size)
		}
	}
}

// Last commits of a real history are those of git log. PACKHORSE_TEST_HISTORY names a repository.
func TestLastCommitsOfHistory(t *testing.T) {
	t.Parallel()
	dir := os.Getenv("PACKHORSE_TEST_HISTORY")
	if dir == "" {
		t.Skip("PACKHORSE_TEST_HISTORY names no repository: last commits of a real history are NOT tested here")
	}
	r, l := gittest.At(t, dir), New(Options{})
	opened := openRepo(t, r)
	all := strings.Split(r.Git("ls-tree", "-r", "-d", "--name-only", "-z", "HEAD"), "\x00")
	rnd := rand.New(rand.NewPCG(1, 0))
	for range 50 {
		in := PathIn{"HEAD", all[rnd.IntN(len(all))]} // the last one is the top directory
		var got []LastCommit
		err := l.LastCommits(t.Context(), opened, in, func(list []LastCommit) error {
			got = append(got, list...)
			return nil
		})
		if err != nil || len(got) == 0 {
			t.Fatalf("%v: %d entries, %v", in, len(got), err)
		}
		e := got[rnd.IntN(len(got))]
		path := strings.TrimPrefix(in.Path+"/"+e.Name, "/")
		want := r.Git("--literal-pathspecs", "log", "-1", "--format=%H", "HEAD", "--", path)
		if e.Commit.ID.String() != want {
			t.Errorf("last commit of %s: %s, git has %s", path, e.Commit.ID, want)
		}
	}
}

// A search that takes too long is continued by the next one.
func TestLastCommitsAreContinued(t *testing.T) {
	t.Parallel()
	r := tangled(t, 2, 60)
	want := gitLastCommits(r, []string{"main"}, []string{""})
	opened, l := openRepo(t, r), New(Options{})
	for steps := 0; ; steps++ {
		ctx := &limited{t.Context(), steps}
		err := l.LastCommits(ctx, opened, PathIn{"main", ""}, func([]LastCommit) error { return nil })
		if err == nil {
			if steps < 5 {
				t.Fatalf("all was found within %d steps", steps)
			}
			break
		} else if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
	}
	want.check(t, func() *Reader { return l }, opened)
}

// The time to read the commits that were found is bounded.
func TestLastCommitsEnd(t *testing.T) {
	t.Parallel()
	l := New(Options{})
	l.bounds.tail = 0
	err := l.LastCommits(t.Context(), openRepo(t, tangled(t, 2, 60)), PathIn{"main", ""}, func([]LastCommit) error {
		return nil
	})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the end of the time", err)
	}
}

// limited is a context that ends after some calls of Err.
type limited struct {
	context.Context
	left int
}

func (c *limited) Err() error {
	if c.left--; c.left < 0 {
		return context.DeadlineExceeded
	}
	return nil
}
