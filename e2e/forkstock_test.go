package e2e

import (
	"os"
	"path/filepath"
	"testing"

	gitid "github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// TestStockGitInMembers runs commands of git in the directories of a source and of its fork, as administrators do,
// while the server serves them. After each one git fsck finds no problem in any member, and all have their refs.
func TestStockGitInMembers(t *testing.T) {
	t.Parallel()
	w := newStepWorld(t, 1, false)
	commit := func(name, branch string) {
		t.Helper()
		id := w.client.Commit(branch+" of "+name, w.members[name]["main"])
		w.must(w.push(noFault, name, branch, id))
		w.members[name][branch] = id
	}
	for _, branch := range []string{"b1", "undone"} {
		commit("app", branch)
	}
	w.must(w.packhorse(noFault, "repo", "fork", "app", "a/fork"))
	w.members["a/fork"] = map[string]gitid.ObjectID{}
	for branch, value := range w.members["app"] {
		w.members["a/fork"][branch] = value
	}
	for name := range w.members {
		commit(name, "b2")
		w.must(w.push(noFault, name, "undone", gitid.ObjectID{})) // its objects are not reachable any more
		delete(w.members[name], "undone")
	}
	for _, name := range []string{"app", "a/fork"} {
		dir := filepath.Join(w.dir, "repos", name+".git")
		for _, args := range [][]string{{"gc", "--quiet"}, {"gc", "--quiet", "--prune=now", "--aggressive"},
			{"fsck", "--full"}, {"repack", "-a", "-d", "-q"}, {"repack", "-a", "-d", "-l", "-q"},
			{"prune", "--expire=now"}, {"prune-packed"}, {"pack-refs", "--all"}, {"multi-pack-index", "write"},
			{"commit-graph", "write", "--reachable"}} {
			gittest.At(t, dir).Git(args...)
			w.check()
			if t.Failed() {
				t.Fatalf("after git %q in %s", args, name)
			}
		}
		clone := filepath.Join(t.TempDir(), "clone.git") // with hard links
		gittest.Run(t, "", "", "clone", "-q", "--mirror", dir, clone)
		w.compare("a clone of "+name, gittest.At(t, clone), w.members[name])
		gittest.At(t, clone).Git("fsck", "--full", "--strict")
		commit(name, "b3")
		w.must(w.packhorse(noFault, "repo", "gc", name, "--older-than", "1ms"))
		w.check()
	}
	w.must(w.packhorse(noFault, "repo", "remove", "app", "--yes"))
	delete(w.members, "app")
	gittest.At(t, filepath.Join(w.dir, "repos/a/fork.git")).Git("gc", "--quiet", "--prune=now")
	w.check()
	if _, err := os.Stat(filepath.Join(w.dir, "repos/app.git")); err == nil {
		t.Error("the removed source is there")
	}
}
