package refs

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// tablesRepo provides a Store with a repository with reftables.
func tablesRepo(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	write(t, filepath.Join(dir, "HEAD"), "ref: refs/heads/.invalid\n")
	write(t, filepath.Join(dir, "refs/heads"), "this repository uses the reftable format\n")
	write(t, filepath.Join(dir, "reftable/tables.list"), "a.ref\n")
	return dir
}

var errHangs = fault.New(fault.Deadline, "git cannot list the repository's refs")

// TestFailedListingIsKept checks that a failed listing is not repeated before the tables change.
func TestFailedListingIsKept(t *testing.T) {
	t.Parallel()
	dir := tablesRepo(t)
	now := time.Now().Add(time.Hour)
	listings, fails := 0, true
	s := Open(dir, dir, Options{Now: func() time.Time { return now }, List: func(context.Context, func(Ref)) error {
		listings++
		if fails {
			return errHangs
		}
		return nil
	}})
	check := func(what string, want int) {
		t.Helper()
		_, err := s.Snapshot(t.Context())
		if failed := fault.Is(err, fault.Deadline) && fault.RetryAfter(err) >= time.Second; failed != fails || !fails &&
			err != nil {
			t.Errorf("%s: %v, to be tried again after %v", what, err, fault.RetryAfter(err))
		}
		if listings != want {
			t.Errorf("%s: %d listings, want %d", what, listings, want)
		}
	}
	check("at first", 1)
	check("at once", 1)
	now = now.Add(failureAge - 1)
	check("a little later", 1)
	now = now.Add(1)
	check("later", 2)
	write(t, filepath.Join(dir, "reftable/tables.list"), "a.ref\nb.ref\n")
	check("after a change", 3)
	now = now.Add(-time.Hour)
	check("after the clock was put back", 4)
	fails = false
	write(t, filepath.Join(dir, "reftable/tables.list"), "b.ref\n")
	check("mended", 5)
	check("known", 5)
}

// TestListingBelongsToCaller checks that a listing belongs to the request that starts it, and does not end with it.
func TestListingBelongsToCaller(t *testing.T) {
	t.Parallel()
	type key struct{}
	dir := tablesRepo(t)
	ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "ada"))
	var who any
	s := Open(dir, dir, Options{List: func(listing context.Context, _ func(Ref)) error {
		cancel()
		who = listing.Value(key{})
		return listing.Err()
	}})
	if _, err := s.Snapshot(ctx); err != nil || who != "ada" {
		t.Errorf("listed for %v: %v", who, err)
	}
}

// TestWaitingForAListing: so many may wait, and they leave when they like; the rest is refused at once, and one failure
// is everybody's.
func TestWaitingForAListing(t *testing.T) {
	t.Parallel()
	dir := tablesRepo(t)
	now := time.Now().Add(time.Hour)
	var listings atomic.Int32
	begun, end := make(chan struct{}), make(chan struct{})
	s := Open(dir, dir, Options{Now: func() time.Time { return now }, List: func(context.Context, func(Ref)) error {
		if listings.Add(1) == 1 {
			close(begun)
			<-end
		}
		return errHangs
	}})
	errs := make(chan error, maxWaiting+2)
	ask := func(ctx context.Context) {
		_, err := s.Snapshot(ctx)
		errs <- err
	}
	waiting := func(want int) {
		t.Helper()
		gittest.WaitFor(t, fmt.Sprintf("%d callers wait", want), func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.waiting == want
		})
	}
	go ask(t.Context())
	<-begun
	leaving, leave := context.WithCancel(t.Context())
	go ask(leaving)
	for range maxWaiting - 1 {
		go ask(t.Context())
	}
	waiting(maxWaiting)
	if _, err := s.Snapshot(t.Context()); !fault.Is(err, fault.Exhausted) || fault.RetryAfter(err) <= 0 {
		t.Errorf("one too many: %v", err)
	}
	leave()
	if err := <-errs; !errors.Is(err, context.Canceled) {
		t.Errorf("who left: %v", err)
	}
	waiting(maxWaiting - 1)
	go ask(t.Context())
	waiting(maxWaiting)
	close(end)
	for range maxWaiting + 1 {
		if err := <-errs; !fault.Is(err, fault.Deadline) {
			t.Errorf("who stayed: %v", err)
		}
	}
	if n := listings.Load(); n != 1 {
		t.Errorf("%d listings, want 1", n)
	}
	waiting(0)
}
