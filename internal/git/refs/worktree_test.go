package refs

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// A linked worktree has its own HEAD and some refs of its own. It shares all other refs.
func TestLinkedWorktree(t *testing.T) {
	t.Parallel()
	r := gittest.Init(t)
	one, two := r.Commit("one"), r.Commit("two")
	r.Git("update-ref", "refs/heads/main", one.String())
	r.Git("update-ref", "refs/bisect/theirs", one.String())
	r.Git("update-ref", "refs/worktree/both", one.String())
	path := filepath.Join(t.TempDir(), "tree")
	r.Git("worktree", "add", "-q", "-b", "side", path)
	tree := gittest.At(t, path)
	gitDir := tree.Git("rev-parse", "--absolute-git-dir")
	s := Open(gitDir, r.Dir, Options{})
	check := func(when string) {
		t.Helper()
		if got, want := dump(t, snapshot(t, s)), dumpGit(t, tree); got != want {
			t.Errorf("%s:\n%s\nwant\n%s", when, got, want)
		}
	}
	check("fresh")
	for i, args := range [][]string{
		{"update-ref", "refs/worktree/both", two.String()}, {"update-ref", "refs/bisect/bad", two.String()},
		{"update-ref", "refs/rewritten/deep/er", two.String()}, {"update-ref", "refs/heads/side", two.String()},
		{"symbolic-ref", "refs/worktree/sym", "refs/bisect/bad"}, {"symbolic-ref", "HEAD", "refs/bisect/bad"},
		{"pack-refs", "--all"}, {"update-ref", "-d", "refs/bisect/bad"}, {"update-ref", "--no-deref", "HEAD", one.String()},
		{"update-ref", "-d", "refs/worktree/both"}, {"update-ref", "-d", "refs/worktree/sym"},
		{"update-ref", "-d", "refs/rewritten/deep/er"},
	} {
		tree.Git(args...)
		check(fmt.Sprint(i, args))
	}
	// The main worktree has its own refs.
	main := Open(r.Dir, r.Dir, Options{})
	if got, want := dump(t, snapshot(t, main)), dumpGit(t, r); got != want ||
		!strings.Contains(got, "refs/bisect/theirs") {
		t.Errorf("the main worktree:\n%s\nwant\n%s", got, want)
	}
}
