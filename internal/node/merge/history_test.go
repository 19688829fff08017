package merge

import (
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// The merges of a real history are those of git merge-tree. PACKHORSE_TEST_MERGES names a bare repository, and
// PACKHORSE_TEST_MERGES_STEP is n to test every n-th merge.
func TestMergesOfHistory(t *testing.T) {
	t.Parallel()
	dir := os.Getenv("PACKHORSE_TEST_MERGES")
	if dir == "" {
		t.Skip("PACKHORSE_TEST_MERGES names no repository: merges of a real history are NOT tested here")
	}
	step, _ := strconv.Atoi(os.Getenv("PACKHORSE_TEST_MERGES_STEP"))
	list := gittest.Run(t, dir, "", "rev-list", "--parents", "--min-parents=2", "--max-parents=2", "--all")
	var pairs [][2]git.ObjectID
	for i, line := range strings.Split(list, "\n") {
		if words := strings.Fields(line); i%max(step, 1) == 0 {
			pairs = append(pairs, [2]git.ObjectID{git.MustParseObjectID(words[1]), git.MustParseObjectID(words[2])})
		}
	}
	m, opened := newMerger(t, newerGit), open(t, dir)
	want := oracle(t, newerGit, dir, pairs, "--allow-unrelated-histories")
	var conflicts, differ atomic.Int32
	var group errgroup.Group
	for first := range 2 {
		group.Go(func() error {
			check, err := m.Checker(opened)
			for i := first; i < len(pairs) && err == nil; i += 2 {
				c, err := check(t.Context(), Pair{pairs[i][0], pairs[i][1], true})
				if err == nil && (c.UpToDate || c.FastForward) {
					continue
				}
				if len(c.Conflicts) > 0 {
					conflicts.Add(1)
				}
				if err == nil && c.Tree.IsZero() != (len(c.Conflicts) > 0) {
					t.Errorf("%s: no tree and no conflict", pairs[i])
				}
				if err == nil {
					err = want[i].compare(Check{Tree: c.Tree, Conflicts: c.Conflicts})
				}
				if err != nil {
					differ.Add(1)
					t.Errorf("merge-tree %s: %v", pairs[i], err)
				}
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
	t.Logf("%d merges, %d with conflicts, %d differ", len(pairs), conflicts.Load(), differ.Load())
}
