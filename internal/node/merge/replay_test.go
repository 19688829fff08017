package merge

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/node/edit"
)

// clone is a working copy in which git itself merges.
type clone struct {
	t      testing.TB
	dir    string
	runner *process.Runner
}

func newClone(t testing.TB, r *gittest.Repo) *clone {
	t.Helper()
	c := &clone{t: t, dir: filepath.Join(t.TempDir(), "clone")}
	gittest.Run(t, "", "", "clone", "-q", "--shared", r.Dir, c.dir)
	var err error
	c.runner, err = process.New(process.Options{Git: newerGit, Classes: map[process.Class]process.Limits{"x": {Slots: 1}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.runner.Close(context.Background()) })
	return c
}

// git runs git, and returns what it printed and whether it succeeded.
func (c *clone) git(args ...string) (string, bool) {
	p, err := c.runner.Start(c.t.Context(), process.Command{Class: "x", Subcommand: args[0], Dir: c.dir,
		Args: append([]string{"-c", "safe.directory=*", "-c", "user.name=C", "-c", "user.email=c@x", "-c", "core.editor=true",
			"-c", "core.fsync=none"}, args...),
		Env: []string{"GIT_AUTHOR_DATE=1000000000 +0000"}})
	if err != nil {
		c.t.Fatal(err)
	}
	out, _ := io.ReadAll(p.Stdout())
	_, err = p.Wait()
	return strings.TrimSuffix(string(out), "\n"), err == nil
}

// stages returns the files with conflicts.
func (c *clone) stages() []string {
	out, _ := c.git("ls-files", "-u", "-z")
	list := strings.Split(strings.TrimSuffix(out, "\x00"), "\x00")
	slices.Sort(list)
	return list
}

// history returns the trees, authors and messages of the commits after a commit.
func (c *clone) history(after git.ObjectID) string {
	out, _ := c.git("log", "--reverse", "--topo-order", "--format=%T %an <%ae> %ad%n%B", "--date=raw",
		after.String()+"..HEAD")
	return out
}

// Commits that are replayed are those of git rebase, git cherry-pick and git revert, and so are the conflicts.
func TestReplays(t *testing.T) {
	t.Parallel()
	count := 60
	if testing.Short() {
		count = 3
	}
	r := gittest.Init(t)
	r.Git("config", "core.fsync", "none")
	random := rand.New(rand.NewPCG(3, 4))
	b := r.Batch()
	commits := 0
	commit := func(f files, parents ...git.ObjectID) git.ObjectID {
		commits++
		text := fmt.Sprintf("tree %s\n", f.store(b))
		for _, p := range parents {
			text += fmt.Sprintf("parent %s\n", p)
		}
		message := fmt.Sprintf("Change %d\n\nBody\n\n#no comment\n", commits)
		if commits%5 == 0 {
			message = fmt.Sprintf("Revert \"Change %d\"\n", commits)
		}
		return b.Object(git.Commit, []byte(text+fmt.Sprintf("author A%d <a@x> %d +0130\ncommitter c <c@x> %d +0000\n\n%s",
			commits, 1e9+commits, 1e9+commits*10, message)))
	}
	change := func(f files) files {
		f = editAtRandom(random, f, random.IntN(2) == 0)
		for path, x := range f {
			if x.mode == "160000" || x.mode == "120000" {
				f[path] = file{"100755", x.content}
			}
		}
		return f
	}
	type world struct{ fork, main, topic, merged, topicBefore git.ObjectID }
	var worlds []world
	for range count {
		f := files{}
		for range 8 {
			f = change(f)
		}
		f["keep"] = file{"100644", "x\n"}
		w := world{fork: commit(f)}
		ours, theirs := f, f
		w.main, w.topic = w.fork, w.fork
		var theirPatch files
		for i := range 4 {
			before := theirs
			switch random.IntN(6) {
			case 0: // no change
			default:
				theirs = change(theirs)
			}
			w.topicBefore = w.topic
			w.topic = commit(theirs, w.topic)
			if i == 1 && maps.Equal(ours, before) {
				theirPatch = theirs
			}
		}
		if theirPatch != nil { // the same patch on both sides
			ours = theirPatch
			w.main = commit(ours, w.main)
		}
		for range random.IntN(3) {
			ours = change(ours)
			w.main = commit(ours, w.main)
		}
		// Git keeps the pick of a merge that equals its first parent, even if it changes nothing.
		theirs = maps.Clone(theirs)
		theirs["merged"] = file{"100644", "x\n"}
		w.merged = commit(theirs, w.topic, w.fork)
		worlds = append(worlds, w)
	}
	b.Store()
	for i, w := range worlds {
		for name, id := range map[string]git.ObjectID{"main": w.main, "topic": w.topic, "merged": w.merged} {
			r.Git("update-ref", fmt.Sprintf("refs/heads/%s%d", name, i), id.String())
		}
	}
	m, opened, c := newMerger(t, "git"), open(t, r.Dir), newClone(t, r)
	header := edit.Header{Author: "C <c@x> 1000000000 +0000", Committer: "C <c@x> 1000000000 +0000"}
	withConflicts := 0
	for i, w := range worlds {
		for _, test := range []struct {
			args   []string
			source Source
			method Method
			main   int
		}{
			{[]string{"rebase", w.main.String(), w.topic.String()}, Source{Commit: w.topic}, Rebase, 0},
			{[]string{"cherry-pick", w.topic.String()}, Source{Commit: w.topic}, CherryPick, 0},
			{[]string{"cherry-pick", w.fork.String() + ".." + w.topic.String()}, Source{Commit: w.topic, After: w.fork},
				CherryPick, 0},
			{[]string{"cherry-pick", "-m", "2", w.merged.String()}, Source{Commit: w.merged}, CherryPick, 2},
			{[]string{"revert", "--no-edit", w.topicBefore.String()}, Source{Commit: w.topicBefore}, Revert, 0},
			{[]string{"revert", "--no-edit", w.topicBefore.String() + ".." + w.topic.String()},
				Source{Commit: w.topic, After: w.topicBefore}, Revert, 0},
			{[]string{"revert", "--no-edit", "-m", "2", w.merged.String()}, Source{Commit: w.merged}, Revert, 2},
			{[]string{"merge", "--squash", w.topic.String()}, Source{Commit: w.topic}, Squash, 0},
		} {
			c.git("checkout", "-q", "--detach", "-f", w.main.String())
			if test.method == CherryPick { // as in a rebase
				test.args = slices.Insert(test.args, 1, "--allow-empty")
			}
			_, ok := c.git(test.args...)
			for tries := 0; !ok && tries < 10; tries++ {
				if len(c.stages()) > 1 || c.stages()[0] != "" {
					break
				}
				_, ok = c.git(test.args[0], "--skip") // it became empty
			}
			got, err := m.Prepare(t.Context(), opened, &Request{Method: test.method, Target: "refs/heads/main", Head: w.main,
				Source: test.source, Mainline: test.main, Header: header})
			if err != nil {
				t.Fatalf("world %d: git %s: %v", i, test.args, err)
			}
			if stages := c.stages(); stages[0] != "" {
				withConflicts++
				if err := compareStages(stages, &got); err != nil {
					t.Errorf("world %d: on %s: git %s: %v", i, w.main, test.args, err)
				}
				c.git(test.args[0], "--abort")
				c.git("reset", "-q", "--hard")
				continue
			}
			if !ok && !got.UpToDate { // git refuses a single revert without changes
				t.Errorf("world %d: git %s failed without conflicts", i, test.args)
			}
			if test.method == Squash {
				if tree, _ := c.git("write-tree"); tree != got.Tree.String() {
					t.Errorf("world %d: on %s: git %s: tree %s, want %s", i, w.main, test.args, got.Tree, tree)
				}
				c.git("reset", "-q", "--hard")
				continue
			}
			want := c.history(w.main)
			if got.Commit.IsZero() {
				t.Errorf("world %d: on %s: git %s: conflicts %v, want none", i, w.main, test.args, got.Conflicts)
				continue
			}
			store(t, c.dir, &got)
			c.git("checkout", "-q", "-f", got.Commit.String())
			if have := c.history(w.main); have != want {
				t.Errorf("world %d: on %s: git %s:\n%s\nwant\n%s", i, w.main, test.args, have, want)
			}
		}
	}
	t.Logf("%d of %d with conflicts", withConflicts, 8*count)
}

func compareStages(want []string, got *Result) error {
	var stages []string
	for _, c := range got.Conflicts {
		for i, s := range c.Stages {
			if !s.ID.IsZero() {
				stages = append(stages, fmt.Sprintf("%06o %s %d\t%s", s.Mode, s.ID, i+1, c.Path))
			}
		}
	}
	normal := func(list []string) []string { // without the labels of the sides
		for i := range list {
			list[i], _, _ = strings.Cut(list[i], "~")
		}
		slices.Sort(list)
		return list
	}
	if !slices.Equal(normal(stages), normal(want)) {
		return fmt.Errorf("stages %q, want %q", stages, want)
	}
	return nil
}

// store stores the objects of a result.
func store(t testing.TB, dir string, r *Result) {
	t.Helper()
	w := gittest.NewPackWriter(git.SHA1)
	for _, o := range r.Objects {
		w.Add(o.Type, o.Data)
	}
	if len(r.Objects) > 0 {
		gittest.Run(t, dir, string(w.Bytes()), "unpack-objects", "-q", "--strict")
	}
}
