package process

import (
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/gittest"
)

// TestStartingOnStoppedDisk: a start that waits for a disk is seen, and one that came to nothing is not.
func TestStartingOnStoppedDisk(t *testing.T) {
	t.Parallel()
	disk := gittest.NewDisk(t)
	r := newRunner(t, "git", Limits{Slots: 1})
	disk.Stop()
	started := make(chan error, 1)
	go func() {
		_, err := r.Start(t.Context(), Command{Class: "test", Subcommand: "version", Args: []string{"version"}, Dir: disk.Dir + "/repository"})
		started <- err
	}()
	for r.Starting() < 10*time.Millisecond {
		select {
		case err := <-started:
			t.Fatalf("started on a stopped disk: %v", err)
		case <-time.After(time.Millisecond):
		}
	}
	disk.Release()
	if err := <-started; err == nil {
		t.Error("started where there is no disk")
	}
	if d := r.Starting(); d != 0 {
		t.Errorf("still starts, for %v", d)
	}
}
