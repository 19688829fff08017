package credfile

import (
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/git/disk"
)

// retryInterval is the minimum time between two attempts to read files that could not be read.
const retryInterval = time.Second

// Watcher detects changes of files without reading them. Of a directory it watches the files in it. The zero value with
// Paths is ready for use. Not safe for concurrent use.
type Watcher struct {
	Paths    []string      // empty ones are ignored
	Interval time.Duration // minimum time between two checks; zero means that each call checks

	checked time.Time
	seen    []fileState
	spare   []fileState // memory for the next check
	recent  bool        // the files changed so recently that another change may not change their states
	failed  bool        // see Retry
}

// fileState identifies one state of a file.
type fileState struct {
	path string
	id   disk.ID
	err  error // an error number; the file cannot be examined
}

// Check reports whether the files must be read, and whether they differ from those of the previous check. They must
// also be read at the first check, after Retry, and after a change that was so recent that another one could go
// unnoticed. Callers read the files after the call, so that a change during the read is found by the next check.
func (w *Watcher) Check(now time.Time) (read, changed bool) {
	interval := w.Interval
	if w.failed {
		interval = max(interval, retryInterval)
	}
	if since := now.Sub(w.checked); since >= 0 && since < interval {
		return false, false
	}
	first := w.checked.IsZero()
	w.checked = now
	seen := w.examine(w.spare[:0])
	changed = first || !slices.Equal(seen, w.seen)
	read = changed || w.recent || w.failed
	w.seen, w.spare, w.failed = seen, w.seen, false
	w.recent = slices.ContainsFunc(seen, func(s fileState) bool { return !s.id.Settled(now) })
	return read, changed
}

// Retry makes the next check report that the files must be read, because that failed. The check is made after a second
// at the earliest.
func (w *Watcher) Retry() { w.failed = true }

// examine appends the states of all files to list.
func (w *Watcher) examine(list []fileState) []fileState {
	for _, path := range w.Paths {
		if path == "" {
			continue
		}
		var isDir bool
		list, isDir = examineFile(list, path)
		if !isDir {
			continue
		}
		entries, err := os.ReadDir(path)
		if err != nil {
			list = append(list, fileState{path: path, err: unix.EIO}) // the read reports the error
		}
		for _, e := range entries {
			list, _ = examineFile(list, filepath.Join(path, e.Name()))
		}
	}
	return list
}

func examineFile(list []fileState, path string) (_ []fileState, isDir bool) {
	var st unix.Stat_t
	err := unix.Stat(path, &st)
	for err == unix.EINTR {
		err = unix.Stat(path, &st)
	}
	if err != nil {
		return append(list, fileState{path: path, err: err}), false
	}
	return append(list, fileState{path: path, id: disk.Of(&st)}), st.Mode&unix.S_IFMT == unix.S_IFDIR
}
