package process

import (
	"context"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// TestStartingOnStoppedDisk checks that a start that waits for a disk is listed until it fails, and blocks no other
// start.
func TestStartingOnStoppedDisk(t *testing.T) {
	t.Parallel()
	disk := gittest.NewDisk(t)
	r := newRunner(t, "git", Limits{Slots: 2})
	disk.Stop()
	started := make(chan error, 1)
	go func() {
		_, err := r.Start(t.Context(), Command{Class: "test", Subcommand: "version", Args: []string{"version"},
			Dir: disk.Dir + "/repository"})
		started <- err
	}()
	for r.Starting() < 10*time.Millisecond {
		select {
		case err := <-started:
			t.Fatalf("started on a stopped disk: %v", err)
		case <-time.After(time.Millisecond):
		}
	}
	// Meanwhile as many other commands start as the limit allows.
	if out, _, err := output(t, r, Command{Class: "test", Subcommand: "version", Args: []string{"version"},
		Dir: t.TempDir()}); err != nil || out == "" {
		t.Errorf("%q, %v", out, err)
	}
	disk.Release()
	if err := <-started; err == nil {
		t.Error("started a command without the disk, want an error")
	}
	if d := r.Starting(); d != 0 {
		t.Errorf("still starts, for %v, want 0", d)
	}
}

// TestStoppedDiskKeepsNoSlot checks that a command on a stopped disk fails and releases its slot, and that a command
// whose caller disconnects does the same.
func TestStoppedDiskKeepsNoSlot(t *testing.T) {
	t.Parallel()
	disk := gittest.NewDisk(t)
	r := newRunner(t, "git", Limits{Slots: 1})
	r.starter.limit = 50 * time.Millisecond
	disk.Stop()
	defer disk.Release()
	there := Command{Class: "test", Subcommand: "version", Args: []string{"version"}, Dir: disk.Dir + "/repository"}
	if _, err := r.Start(t.Context(), there); !fault.Is(err, fault.Unavailable) || fault.RetryAfter(err) == 0 {
		t.Errorf("on a stopped disk: %v", err)
	}
	r.starter.limit = time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	if _, err := r.Start(ctx, there); !fault.Is(err, fault.Cancelled) {
		t.Errorf("given up: %v", err)
	}
	if out, _, err := output(t, r, Command{Class: "test", Subcommand: "version", Args: []string{"version"},
		Dir: t.TempDir()}); err != nil || out == "" {
		t.Errorf("%q, %v", out, err)
	}
}
