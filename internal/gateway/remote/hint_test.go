package remote_test

import (
	"fmt"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// hintedStore is an object store that has the packs of every repository after a first hint.
type hintedStore struct{ hints chan string }

func (hintedStore) StoreID() string { return "s1" }
func (s hintedStore) Hint(repo git.RepoPath, record uint64) bool {
	s.hints <- fmt.Sprint(repo, " ", record)
	return record > 1
}

// TestStoreOfANode: a node reports its store with its health, and passes hints to it.
func TestStoreOfANode(t *testing.T) {
	t.Parallel()
	store := hintedStore{make(chan string, 1)}
	w := newWorld(t, options{store: store})
	gittest.WaitFor(t, "the first health check", func() bool { _, ok := w.remote.Store(); return ok })
	if id, _ := w.remote.Store(); id != "s1" {
		t.Errorf("Store() = %q, want s1", id)
	}
	app, err := git.ParseRepoPath("team/app")
	if err != nil {
		t.Fatal(err)
	}
	for record, want := range []bool{false, true} {
		isHeld, err := w.remote.Hint(t.Context(), app, uint64(record+1))
		if err != nil || isHeld != want {
			t.Errorf("Hint(%d) = %v, %v, want %v", record+1, isHeld, err, want)
		}
		if got, want := <-store.hints, fmt.Sprint("team/app ", record+1); got != want {
			t.Errorf("the store got the hint %q, want %q", got, want)
		}
	}
	w.kill()
	gittest.WaitFor(t, "the node is known to be down", func() bool {
		_, err := w.remote.Hint(t.Context(), app, 3)
		_, isKnown := w.remote.Store()
		return fault.Is(err, fault.Unavailable) && !isKnown
	})
}

// TestNodeWithoutAStore: it reports no store.
func TestNodeWithoutAStore(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{})
	gittest.WaitFor(t, "the first health check", func() bool { _, ok := w.remote.Store(); return ok })
	if id, _ := w.remote.Store(); id != "" {
		t.Errorf("Store() = %q, want none", id)
	}
	if isHeld, err := w.remote.Hint(t.Context(), git.RepoPath{}, 1); isHeld || !fault.Is(err, fault.Invalid) {
		t.Errorf("a hint about no repository = %v, %v, want invalid", isHeld, err)
	}
}
