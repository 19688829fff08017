package store

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// TestForget leaves neither the name nor refs of a removed repository. A node that was away finds that it is gone.
func TestForget(t *testing.T) {
	t.Parallel()
	b, n, clone := newForkWorld(t)
	if err := n.ImportDir(t.Context(), repoPath("team/hush"), clone.Dir); err != nil {
		t.Fatal(err)
	}
	away := newGitNode(t, b, receivepack.Options{}, named("away"))
	away.same("team/hush", clone)
	clone.Git("update-ref", "refs/heads/quiet", clone.Commit("quiet", clone.ID("main")).String())
	n.mustPush(clone, "team/hush", "quiet")
	fork(t, n.Store, "team/hush", "ann", places.ForkOptions{Refs: []string{"refs/heads/main"}})
	forget := func(name string) (*Forgotten, error) { return Forget(t.Context(), b, repoPath(name), "n") }
	if _, err := forget("team/hush"); !fault.Is(err, fault.Unavailable) {
		t.Errorf("a young name: %v", err)
	}
	b.Age(25 * time.Hour)
	if _, err := forget("team/hush"); !fault.Is(err, fault.Exists) {
		t.Errorf("a live repository: %v", err)
	}
	if err := n.Delete(t.Context(), repoPath("team/hush"), places.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	b.Age(25 * time.Hour)
	done, err := forget("team/hush.git")
	if err != nil || done.Repositories != 1 || done.Records < 4 || len(done.Left) != 2 ||
		!strings.Contains(done.Left[0], "forks borrow") {
		t.Errorf("Forget() = %+v, %v", done, err)
	}
	for _, key := range b.Keys() {
		body, _, err := b.Get(t.Context(), key, replog.MaxRecord)
		if err == nil && !strings.HasPrefix(key, eventsPrefix) && (bytes.Contains(body, []byte("hush")) ||
			bytes.Contains(body, []byte("quiet")) || strings.Contains(key, "hush")) {
			t.Errorf("%s still has a name: %q", key, body)
		}
	}
	if _, err := forget("team/hush"); !fault.Is(err, fault.NotFound) {
		t.Errorf("the second time: %v", err)
	}
	if out, err := away.push(clone, "team/hush", "quiet"); err == nil {
		t.Errorf("a node that was away accepts a push: %s", out)
	}
	checkStore(t, b)
	clone.Git("update-ref", "-d", "refs/heads/quiet")
	away.copied("ann").Git("fsck", "--full", "--strict")
	if err := n.Create(t.Context(), repoPath("team/hush"), git.SHA1, "refs/heads/main", "", nil); err != nil {
		t.Errorf("the name cannot be used again: %v", err)
	}
	n.mustPush(clone, "team/hush", "main")
	away.copied("team/hush").Git("fsck", "--full", "--strict")
}

// A node that knows the later numbers of a forgotten name lists the new repository.
func TestListAfterForget(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBucket(t)
		a, c := newNode(t, b), newNode(t, b)
		create(t, a, "x")
		if err := a.Delete(t.Context(), repoPath("x"), places.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		checkList(t, c)
		checkList(t, a)
		time.Sleep(forgetAge + time.Hour)
		if _, err := Forget(t.Context(), b, repoPath("x"), "n"); err != nil {
			t.Fatal(err)
		}
		create(t, c, "x")
		checkList(t, a, "x")
		checkList(t, c, "x")
		if err := c.Delete(t.Context(), repoPath("x"), places.DeleteOptions{}); err != nil { // the same number
			t.Fatal(err)
		}
		create(t, a, "x")
		time.Sleep(2 * indexAge)
		checkList(t, a, "x")
		checkList(t, c, "x")
	})
}
