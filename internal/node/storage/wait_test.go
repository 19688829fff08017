package storage_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/storage"
)

// TestWait waits for later changes, by the node itself and by other processes, until the awaited state is there, the
// repository is gone, or the time has ended.
func TestWait(t *testing.T) {
	t.Parallel()
	r := newRoot(t, storage.Options{CheckInterval: 5 * time.Millisecond})
	repo := r.repo("app.git", "x")
	path := r.path("app")
	next := repo.Commit("next", repo.ID("main"))
	later := repo.Commit("later", next)
	seen, err := r.Wait(t.Context(), path, node.WaitCondition{ID: repo.ID("main^{tree}")})
	if err != nil || seen.Generation == 0 || seen.Epoch == 0 || seen.Incarnation == "" {
		t.Fatal(seen, err)
	}
	wait := func(what node.WaitCondition) <-chan error {
		done := make(chan error, 1)
		go func() {
			_, err := r.Wait(context.Background(), path, what)
			done <- err
		}()
		return done
	}
	waiting := wait(node.WaitCondition{ID: next})
	other := wait(node.WaitCondition{Generation: seen.Generation + 1, Epoch: seen.Epoch})
	newer := wait(node.WaitCondition{Generation: seen.Generation, Epoch: seen.Epoch + 1})
	select {
	case err := <-waiting:
		t.Fatal("seen before it was there: ", err)
	case err := <-other:
		t.Fatal("seen before it was there: ", err)
	case <-time.After(20 * time.Millisecond):
	}
	repo.Git("update-ref", "refs/heads/side", later.String()) // which reaches it
	for _, done := range []<-chan error{waiting, other} {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if _, err := r.Wait(t.Context(), path, node.WaitCondition{Generation: 1 << 60, Epoch: seen.Epoch - 1}); err != nil {
		t.Error("a generation of a node before this one: ", err)
	}
	over, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := r.Wait(over, path, node.WaitCondition{ID: repo.Commit("nobody has it")}); !fault.Is(err, fault.Deadline) {
		t.Error(err)
	}
	if _, err := r.Wait(t.Context(), path,
		node.WaitCondition{ID: git.MustParseObjectID(strings.Repeat("0", 63) + "1")}); !fault.Is(err, fault.Invalid) {
		t.Error("an ID of another format: ", err)
	}
	if _, err := r.Wait(t.Context(), r.path("none"), node.WaitCondition{ID: next}); !fault.Is(err, fault.NotFound) {
		t.Error(err)
	}
	r.do(os.Rename(filepath.Join(r.dir, "app.git"), filepath.Join(t.TempDir(), "gone")))
	if err := <-newer; !fault.Is(err, fault.NotFound) {
		t.Error("the repository is gone: ", err)
	}
}

// TestWalksOfWaiters: few of those who wait walk through history at a time; what needs no walk is answered at
// once.
func TestWalksOfWaiters(t *testing.T) {
	t.Parallel()
	r := newRoot(t, storage.Options{})
	repo := r.repo("app.git", "x")
	path := r.path("app")
	first := repo.ID("main")
	repo.Git("update-ref", "refs/heads/main", repo.Commit("y", first).String())
	release := r.HoldWalks()
	const crowd = 20
	done := make(chan error, crowd)
	ctx, leave := context.WithCancel(t.Context())
	for i := range crowd {
		on := t.Context()
		if i == 0 {
			on = ctx
		}
		go func() {
			_, err := r.Wait(on, path, node.WaitCondition{ID: first, Caller: "ann"})
			done <- err
		}()
	}
	gittest.WaitFor(t, fmt.Sprintf("%d callers wait for a walk", crowd), func() bool { return r.Walks() == crowd })
	if _, err := r.Wait(t.Context(), path, node.WaitCondition{Generation: 1}); err != nil {
		t.Error("what needs no walk: ", err)
	}
	leave()
	if err := <-done; !fault.Is(err, fault.Cancelled) {
		t.Error("who went away: ", err)
	}
	release()
	for range crowd - 1 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if n := r.Walks(); n != 0 {
		t.Errorf("%d wait at the end", n)
	}
}
