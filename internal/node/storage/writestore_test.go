package storage_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/node/edit"
	"github.com/packhorse-git/packhorse/internal/node/merge"
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
	nodes[0].do(first.Create(t.Context(), nodes[0].path("app"), git.SHA1, "refs/heads/main", "", nil))
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

// Two nodes merge branches in turns. Each one merges what the other one has made.
func TestMergesOfTwoNodes(t *testing.T) {
	t.Parallel()
	nodes := newStored(t)
	add := func(branch, first, last string) git.ObjectID {
		t.Helper()
		_, err := nodes[0].change("app", put(branch, "f", first+"\n1\n2\n3\n4\n"+last+"\n"))
		nodes[0].do(err)
		id, _ := nodes[0].head(branch)
		return id
	}
	copyTo := func(from git.ObjectID, branch string) {
		t.Helper()
		_, err := nodes[0].change("app", write.Change{Build: func(context.Context, write.State) (write.Plan, error) {
			return write.Plan{Updates: []receivepack.Update{{Ref: git.RefName("refs/heads/" + branch), New: from}}}, nil
		}})
		nodes[0].do(err)
	}
	copyTo(add("main", "a", "b"), "topic")
	add("topic", "a", "B")
	fork := add("main", "A", "b")
	add("merged", "A", "B")
	_, want := nodes[0].head("merged")
	header := edit.Header{Author: "A <a@x> 1 +0000", Committer: "C <c@x> 1 +0000"}
	for i, method := range []merge.Method{merge.Merge, merge.Squash, merge.Rebase, merge.CherryPick, merge.Revert} {
		branch := string(method)
		source, made := "topic", want
		if copyTo(fork, branch); method == merge.Revert { // of the commit that has changed the first line
			source = "main"
			_, made = nodes[0].head("main~1")
		}
		q := storage.MergeRequest{Request: merge.Request{Method: method, Target: git.RefName("refs/heads/" + branch),
			Source: merge.Source{Text: source}, Header: header}}
		result, err := nodes[i%2].Merge(t.Context(), nodes[0].path("app"), q)
		nodes[0].do(err)
		if commit, tree := nodes[1-i%2].head(branch); commit != result.Commit || tree != made {
			t.Errorf("%s: %+v; the other node has commit %s with tree %s, want tree %s", method, result, commit, tree, made)
		}
	}
}

// head returns the commit of a branch of app and its tree. A suffix ~1 stands for the parent.
func (r *root) head(branch string) (id, tree git.ObjectID) {
	r.t.Helper()
	branch, isParent := strings.CutSuffix(branch, "~1")
	read := func(_ context.Context, s write.State) (plan write.Plan, err error) {
		for id, err = s.Ref(git.RefName("refs/heads/" + branch)); err == nil; {
			_, data, readErr := s.Read(id, 0)
			c, parseErr := pack.ParseCommit(data, git.SHA1)
			if err = errors.Join(readErr, parseErr); err != nil || !isParent {
				tree = c.Tree
				break
			}
			isParent, id = false, c.Parents[0]
		}
		return plan, err
	}
	_, err := r.change("app", write.Change{DryRun: true, Build: read})
	r.do(err)
	return id, tree
}
