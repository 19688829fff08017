package merge

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node/scratch"
	"github.com/packhorse-git/packhorse/internal/node/write"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newerGit is the newest git at hand.
var newerGit = cmp.Or(os.Getenv("PACKHORSE_TEST_NEWER_GIT"), "git")

// newMerger returns a Merger that runs a git program.
func newMerger(t testing.TB, program string) *Merger {
	t.Helper()
	runner, err := process.New(process.Options{Git: program, TempDir: t.TempDir(),
		Classes: map[process.Class]process.Limits{Class: {Slots: 2, Queue: 100, Time: 5 * time.Minute}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { runner.Close(t.Context()) })
	space, err := scratch.New(filepath.Join(t.TempDir(), "scratch"))
	if err != nil {
		t.Fatal(err)
	}
	m := New(Options{Runner: runner, Space: space})
	t.Cleanup(m.Close)
	return m
}

func open(t testing.TB, dir string) *repo.Repo {
	t.Helper()
	r, err := repo.Open(dir, repo.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// check merges a pair.
func check(t testing.TB, m *Merger, r *repo.Repo, p Pair) (Check, error) {
	t.Helper()
	check, err := m.Checker(r)
	if err != nil {
		t.Fatal(err)
	}
	return check(t.Context(), p)
}

// files is a tree: "MODE ID" or "MODE CONTENT" by path.
type files map[string]file

type file struct{ mode, content string }

// store adds the tree to a batch and returns its ID.
func (f files) store(b *gittest.Batch) git.ObjectID {
	var list strings.Builder
	below := map[string]files{}
	for _, path := range slices.Sorted(maps.Keys(f)) {
		dir, rest, isBelow := strings.Cut(path, "/")
		if isBelow {
			if below[dir] == nil {
				below[dir] = files{}
			}
			below[dir][rest] = f[path]
			continue
		}
		if f[path].mode == "160000" {
			fmt.Fprintf(&list, "160000 commit %040x\t%s\n", len(f[path].content)+1, path)
			continue
		}
		fmt.Fprintf(&list, "%s blob %s\t%s\n", f[path].mode, b.Object(git.Blob, []byte(f[path].content)), path)
	}
	for _, dir := range slices.Sorted(maps.Keys(below)) {
		fmt.Fprintf(&list, "40000 tree %s\t%s\n", below[dir].store(b), dir)
	}
	return b.Tree(list.String())
}

// lines returns the content of a file with many lines.
func lines(r *rand.Rand) string {
	var s strings.Builder
	for i := range 5 + r.IntN(15) {
		fmt.Fprintf(&s, "line %d %d\n", i, r.IntN(3))
	}
	return s.String()
}

// editAtRandom changes files at random. gentle edits are mostly such that they merge in process.
func editAtRandom(r *rand.Rand, from files, gentle bool) files {
	f := maps.Clone(from)
	names := []string{"a", "b", "c", "d", "d-", "d.x", "e"}
	path := func() string {
		p := names[r.IntN(len(names))]
		for r.IntN(2) == 0 {
			p += "/" + names[r.IntN(len(names))]
		}
		return p
	}
	put := func(p string, to file) { // no file is where a directory is
		for q := range f {
			if strings.HasPrefix(q, p+"/") || strings.HasPrefix(p, q+"/") {
				return
			}
		}
		f[p] = to
	}
	for range 1 + r.IntN(4) {
		paths := slices.Sorted(maps.Keys(f))
		if len(paths) == 0 {
			put(path(), file{"100644", lines(r)})
			continue
		}
		p := paths[r.IntN(len(paths))]
		n := 10
		if gentle {
			n = 7
		}
		switch r.IntN(n) {
		case 0, 1: // a line
			all := strings.SplitAfter(f[p].content, "\n")
			at := r.IntN(len(all))
			all[at] = "changed " + strconv.Itoa(r.IntN(4)) + "\n"
			f[p] = file{f[p].mode, strings.Join(all, "")}
		case 2, 3:
			put(path(), file{"100644", lines(r)})
		case 4:
			f[p] = file{[]string{"100644", "100755", "120000", "160000"}[r.IntN(4)], f[p].content}
		case 5:
			put(path(), f[p]) // a copy
		case 6:
			delete(f, p)
		case 7: // a rename
			old := f[p]
			delete(f, p)
			put(path(), old)
		case 8, 9: // of a directory
			dir, _, ok := strings.Cut(p, "/")
			if !ok {
				continue
			}
			to := path()
			for _, q := range paths {
				if rest, isBelow := strings.CutPrefix(q, dir+"/"); isBelow {
					old := f[q]
					delete(f, q)
					put(to+"/"+rest, old)
				}
			}
		}
	}
	return f
}

// wanted is the answer of git merge-tree.
type wanted struct {
	clean  bool
	tree   string
	stages []string // "MODE ID STAGE\tPATH"
	kinds  map[string]bool
}

// oracle merges pairs with git merge-tree. A merge on which git aborts is nil: random directory renames reach an
// assertion.
func oracle(t testing.TB, program, dir string, pairs [][2]git.ObjectID, args ...string) []*wanted {
	t.Helper()
	var all []*wanted
	for chunk := range slices.Chunk(pairs, 100) {
		some, err := oracleOf(t, program, dir, chunk, args)
		if err == nil {
			all = append(all, some...)
			continue
		}
		for i := range chunk {
			one, err := oracleOf(t, program, dir, chunk[i:i+1], args)
			if err != nil {
				t.Logf("%s: %v", chunk[i], err)
				one = []*wanted{nil}
			}
			all = append(all, one...)
		}
	}
	return all
}

func oracleOf(t testing.TB, program, dir string, pairs [][2]git.ObjectID, args []string) ([]*wanted, error) {
	t.Helper()
	runner, err := process.New(process.Options{Git: program, Classes: map[process.Class]process.Limits{"x": {Slots: 1}}})
	if err != nil {
		t.Fatal(err)
	}
	defer runner.Close(t.Context())
	var input strings.Builder
	for _, p := range pairs {
		fmt.Fprintf(&input, "%s %s\n", p[0], p[1])
	}
	p, err := runner.Start(t.Context(), process.Command{Class: "x", Subcommand: "merge-tree",
		Stdin: strings.NewReader(input.String()), Args: append([]string{"-c", "safe.directory=*", "-c", "core.fsync=none",
			"--git-dir=" + dir, "merge-tree", "--write-tree", "--stdin", "-z", "--messages"}, args...),
		Env: []string{"GIT_OBJECT_DIRECTORY=" + t.TempDir(), "GIT_ALTERNATE_OBJECT_DIRECTORIES=" + dir + "/objects"}})
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	buf := make([]byte, 1<<20)
	for {
		n, err := p.Stdout().Read(buf)
		out.Write(buf[:n])
		if err != nil {
			break
		}
	}
	if _, err := p.Wait(); err != nil {
		return nil, err
	}
	tokens := strings.Split(out.String(), "\x00")
	next := func() string {
		token := tokens[0]
		tokens = tokens[1:]
		return token
	}
	var all []*wanted
	for range pairs {
		w := &wanted{clean: next() == "1", tree: next(), kinds: map[string]bool{}}
		for s := next(); s != ""; s = next() {
			w.stages = append(w.stages, s)
		}
		for s := next(); s != ""; s = next() {
			n, err := strconv.Atoi(s)
			if err != nil {
				break // advice
			}
			tokens = tokens[n:]
			if kind, ok := strings.CutPrefix(next(), "CONFLICT ("); ok {
				w.kinds[strings.TrimSuffix(kind, ")")] = true
			}
			next()
		}
		all = append(all, w)
	}
	return all, nil
}

// compare compares the result of a merge with git's.
func (w *wanted) compare(o Check) error {
	var stages []string
	kinds := map[string]bool{}
	for _, c := range o.Conflicts {
		for i, s := range c.Stages {
			if !s.ID.IsZero() {
				stages = append(stages, fmt.Sprintf("%06o %s %d\t%s", s.Mode, s.ID, i+1, c.Path))
			}
		}
		for _, k := range c.Kinds {
			kinds[k] = true
		}
	}
	slices.Sort(stages)
	slices.Sort(w.stages)
	switch {
	case w.clean != !o.Tree.IsZero() || w.clean && o.Tree.String() != w.tree:
		return fmt.Errorf("tree %s (clean %v), want %s (clean %v)", o.Tree, !o.Tree.IsZero(), w.tree, w.clean)
	case !slices.Equal(stages, w.stages):
		return fmt.Errorf("stages %q, want %q", stages, w.stages)
	case !maps.Equal(kinds, w.kinds):
		return fmt.Errorf("kinds %v, want %v", kinds, w.kinds)
	}
	return nil
}

// Merges of random trees are those of git merge-tree, whether they are made in process or by git.
func TestRandomMerges(t *testing.T) {
	t.Parallel()
	count := 4000
	if testing.Short() {
		count = 160
	}
	for _, program := range slices.Compact([]string{"git", newerGit}) {
		t.Run(filepath.Base(program), func(t *testing.T) {
			t.Parallel()
			r := gittest.Init(t)
			r.Git("config", "core.fsync", "none")
			random := rand.New(rand.NewPCG(1, 2))
			b := r.Batch()
			var pairs [][2]git.ObjectID
			var trees [][3]git.ObjectID
			for i := range count {
				f := files{}
				for range 4 {
					f = editAtRandom(random, f, true)
				}
				gentle := i%2 == 0
				var three [3]git.ObjectID
				var commits [3]git.ObjectID
				for side := range three {
					g := f
					if side != base {
						g = editAtRandom(random, f, gentle)
					}
					three[side] = g.store(b)
					text := fmt.Sprintf("tree %s\n", three[side])
					if side != base {
						text += fmt.Sprintf("parent %s\n", commits[base])
					}
					text += fmt.Sprintf("author a <> 0 +0000\ncommitter a <> %d +0000\n\n%d", side, i)
					commits[side] = b.Object(git.Commit, []byte(text))
				}
				trees, pairs = append(trees, three), append(pairs, [2]git.ObjectID{commits[ours], commits[theirs]})
			}
			b.Store()
			m, opened := newMerger(t, program), open(t, r.Dir)
			certain := 0
			for i, w := range oracle(t, program, r.Dir, pairs) {
				v, err := newView(opened)
				if err != nil {
					t.Fatal(err)
				}
				if i%2 == 0 {
					v.objects = map[git.ObjectID]*write.Object{}
				}
				tm := treeMerge{ctx: t.Context(), view: v}
				tree, isCertain, err := tm.merge(trees[i])
				if err != nil {
					t.Fatal(err)
				}
				if isCertain {
					certain++
					if w == nil || !w.clean || tree.String() != w.tree {
						t.Errorf("in process: tree %s, want %+v: git merge-tree %s", tree, w, pairs[i])
					}
					continue
				}
				o, err := m.trees(t.Context(), v, request{trees[i], pairs[i][0], pairs[i][1], i%4 < 2})
				if w == nil {
					if !fault.Is(err, fault.Internal) {
						t.Errorf("%s: %v, want an internal error", pairs[i], err)
					}
					continue
				}
				if err == nil {
					err = w.compare(o)
				}
				if err != nil {
					t.Errorf("merge-tree %s: %v", pairs[i], err)
				}
			}
			t.Logf("%d of %d in process", certain, count)
			if certain < count/4 || certain > count*3/4 {
				t.Errorf("%d of %d merges in process", certain, count)
			}
		})
	}
}
