package storage

import (
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git"
)

// A repository with pushes all the time is checked earlier if they are many.
func TestMaintenanceOfBusyRepositories(t *testing.T) {
	t.Parallel()
	path, err := git.ParseRepoPath("app")
	if err != nil {
		t.Fatal(err)
	}
	const quiet = 10 * time.Second
	for _, test := range []struct {
		changes int
		took    time.Duration // of the last maintenance
		want    time.Duration
	}{
		{9, 0, 10 * quiet}, {10, 0, quiet / 5}, {10, 5 * time.Second, 5 * time.Second}, {10, time.Hour, 10 * quiet},
	} {
		m := newMaintainer(&Node{metrics: newMetrics(nil)}, Maintenance{Packs: 2, Quiet: quiet})
		m.started, m.took = true, test.took // run is called by the test
		for range test.changes {
			m.changed(path)
		}
		now := m.pending[path].first
		for after := time.Duration(0); after < test.want; after += quiet / 10 {
			m.pending[path] = pendingCheck{now, now.Add(after), test.changes}
			if _, wait := m.next(now.Add(after)); wait == 0 {
				t.Errorf("%+v: checked after %v", test, after)
			}
		}
		if _, wait := m.next(now.Add(test.want)); wait != 0 {
			t.Errorf("%+v: next says to wait %v more", test, wait)
		}
	}
}
