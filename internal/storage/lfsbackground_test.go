package storage

import (
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/packhorse-git/packhorse/internal/gittest"
	"github.com/packhorse-git/packhorse/internal/lfs/objects"
)

// TestLFSBackground runs a node for a week: it collects garbage each day, and verifies the objects twice. A
// node that starts later goes on with the schedule.
func TestLFSBackground(t *testing.T) {
	root := t.TempDir()
	gittest.InitAt(t, filepath.Join(root, "one.git"))
	file := filepath.Join(t.TempDir(), "lfs.json")
	options := Options{Root: root, LFS: &objects.Options{MinFree: -1},
		LFSCare: LFSCare{File: file, ScrubInterval: 7 * 24 * time.Hour}}
	synctest.Test(t, func(t *testing.T) {
		var last careState
		for day := range 7 {
			n, err := New(nil, options)
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(24*time.Hour + time.Minute)
			synctest.Wait()
			s := n.lfsCarer.get()
			if err := n.Close(); err != nil {
				t.Error(err)
			}
			if !s.Collected.After(last.Collected) || s.After != "" {
				t.Errorf("day %d: %+v after %+v, want another collection", day, s, last)
			}
			if scrubs := day == 0 || day == 6; s.Scrub.After(last.Scrub) != scrubs {
				t.Errorf("day %d: the last scrub began at %v, before %v, want a new one: %t", day, s.Scrub, last.Scrub, scrubs)
			}
			last = s
		}
	})
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
}
