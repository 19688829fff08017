package storage

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/lfs/objects"
	"github.com/packhorse-git/packhorse/internal/node/gc"
	"github.com/packhorse-git/packhorse/internal/node/places"
)

// TestLFSBackground runs a node for a week: it collects garbage each day, and verifies the objects twice. A
// node that starts later goes on with the schedule.
func TestLFSBackground(t *testing.T) {
	root := t.TempDir()
	gittest.InitAt(t, filepath.Join(root, "one.git"))
	file := filepath.Join(t.TempDir(), "lfs.json")
	options := Options{Root: root, LFS: &objects.Options{MinFree: -1},
		LFSSchedule: gc.Schedule{File: file, ScrubInterval: 7 * 24 * time.Hour}}
	synctest.Test(t, func(t *testing.T) {
		var last schedule
		for day := range 7 {
			options.Registerer = prometheus.NewRegistry()
			n, err := New(nil, options)
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(24*time.Hour + time.Minute)
			synctest.Wait()
			s := readSchedule(t, file)
			for task, want := range map[string]time.Time{"gc": s.Collected.Add(48 * time.Hour),
				"scrub": s.Scrub.Add(2 * options.LFSSchedule.ScrubInterval)} {
				if due := dueOf(t, options, task); due.Unix() != want.Unix() {
					t.Errorf("day %d: %s is due at %v, want %v", day, task, due, want)
				}
			}
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

// schedule is the file that remembers the progress of the background work.
type schedule struct {
	Collected, Scrub time.Time
	After            string
}

func readSchedule(t *testing.T, file string) (s schedule) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err != nil {
		t.Error(err)
	}
	return s
}

// dueOf returns the metric of when a task has to end.
func dueOf(t *testing.T, o Options, task string) time.Time {
	t.Helper()
	families, err := o.Registerer.(*prometheus.Registry).Gather()
	if err != nil {
		t.Error(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "packhorse_lfs_due_timestamp_seconds" && m.GetLabel()[0].GetValue() == task {
				return time.Unix(int64(m.GetGauge().GetValue()), 0)
			}
		}
	}
	return time.Time{}
}

// TestLFSBackgroundFails has a disk that is gone: both tasks are overdue an interval after they had to begin. A scrub
// that is interrupted and goes on after a restart is due when it would have been.
func TestLFSBackgroundFails(t *testing.T) {
	root, file := filepath.Join(t.TempDir(), "root"), filepath.Join(t.TempDir(), "lfs.json")
	options := Options{Root: root, LFS: &objects.Options{MinFree: -1},
		LFSSchedule: gc.Schedule{File: file, ScrubInterval: 7 * 24 * time.Hour}}
	synctest.Test(t, func(t *testing.T) {
		if err := os.Mkdir(root, 0o700); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		for range 2 {
			options.Registerer = prometheus.NewRegistry()
			n, err := New(nil, options)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(root, root+"-gone"); err != nil {
				t.Fatal(err)
			}
			time.Sleep(4 * 24 * time.Hour)
			synctest.Wait()
			if gc, scrub := dueOf(t, options, "gc"), dueOf(t, options, "scrub"); gc.After(time.Now()) ||
				readSchedule(t, file).After == "" ||
				scrub.Sub(began) < 7*24*time.Hour || scrub.Sub(began) > 7*24*time.Hour+time.Hour {
				t.Errorf("after %v: gc is due at %v, scrub at %v, want the past, and a week", time.Since(began), gc, scrub)
			}
			if err := n.Close(); err != nil {
				t.Error(err)
			}
			if err := os.Rename(root+"-gone", root); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// copies are places.Places without any repository.
type copies struct{ places.Places }

func (copies) CheckInterval() time.Duration { return time.Minute }

// TestLFSBackgroundOfCopies removes damaged local copies of objects in an object store.
func TestLFSBackgroundOfCopies(t *testing.T) {
	root := t.TempDir()
	file := func(content string) string {
		id := lfs.OID(sha256.Sum256([]byte(content))).String()
		return filepath.Join(root, "1.git", "lfs", "objects", id[:2], id[2:4], id)
	}
	for name, content := range map[string]string{file("good"): "good", file("changed"): "damaged"} {
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		n, err := New(nil, Options{Root: root, Places: copies{}, LFS: &objects.Options{MinFree: -1, Copies: true},
			LFSSchedule: gc.Schedule{File: filepath.Join(t.TempDir(), "lfs.json"), ScrubInterval: time.Hour}})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(6 * time.Minute)
		synctest.Wait()
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	if _, err := os.Stat(file("good")); err != nil {
		t.Errorf("the good copy: %v, want no error", err)
	}
	if _, err := os.Stat(file("changed")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the damaged copy: %v, want none", err)
	}
}
