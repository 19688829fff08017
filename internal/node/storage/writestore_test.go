package storage_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/node/storage"
	"github.com/packhorse-git/packhorse/internal/node/write"
	"github.com/packhorse-git/packhorse/internal/store/storetest"
)

// newStored makes two nodes of one store that has the empty repository app.
func newStored(t testing.TB) []*root {
	t.Helper()
	dir, otherDir := t.TempDir(), t.TempDir()
	first := storetest.New(t, dir)
	other := first.Other(t, "other", otherDir)
	nodes := []*root{newWrittenAs(t, receivepack.Options{}, storage.Options{Root: dir, Places: first.Store}),
		newWrittenAs(t, receivepack.Options{}, storage.Options{Root: otherDir, Places: other.Store})}
	nodes[0].do(first.Create(t.Context(), nodes[0].path("app"), git.SHA1, "refs/heads/main", ""))
	return nodes
}

// history counts the commits of main and the files of the latest one.
func (r *root) history() (commits, files int) {
	r.t.Helper()
	count := func(_ context.Context, s write.State) (write.Plan, error) {
		id, err := s.Ref("refs/heads/main")
		var tree git.ObjectID
		for commits = 0; err == nil && !id.IsZero(); commits++ {
			var data []byte
			if _, data, err = s.Read(id, 0); err != nil {
				break
			}
			c, parseErr := pack.ParseCommit(data, git.SHA1)
			if err, id = parseErr, (git.ObjectID{}); len(c.Parents) > 0 {
				id = c.Parents[0]
			}
			if commits == 0 {
				tree = c.Tree
			}
		}
		if err != nil {
			return write.Plan{}, err
		}
		_, data, err := s.Read(tree, 0)
		if err != nil {
			return write.Plan{}, err
		}
		return write.Plan{}, pack.Entries(data, git.SHA1, func(uint32, []byte, git.ObjectID) error {
			files++
			return nil
		})
	}
	_, err := r.change("app", write.Change{DryRun: true, Build: count})
	r.do(err)
	return commits, files
}

// Callers of two nodes change files of one branch. No change is refused or lost.
func TestWritesOfTwoNodes(t *testing.T) {
	t.Parallel()
	nodes := newStored(t)
	_, err := nodes[0].change("app", put("main", "first", "x"))
	nodes[0].do(err)
	writers, commits := 8, 6
	if testing.Short() {
		writers, commits = 6, 2
	}
	var group sync.WaitGroup
	for i, n := range nodes {
		for w := range writers {
			group.Go(func() {
				for c := range commits {
					if _, err := n.change("app", put("main", fmt.Sprintf("%d-%d-%d", i, w, c), "x")); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	group.Wait()
	for _, n := range nodes {
		want := 1 + len(nodes)*writers*commits
		if made, files := n.history(); made != want || files != want {
			t.Errorf("main has %d commits and %d files, want %d", made, files, want)
		}
	}
}
