// Package credfile holds what proves who somebody is, as files that may change while the process runs: certificates, the authorities
// that sign them, and shared secrets. What was changed is loaded at its next use; what cannot be loaded is reported once for each
// change, and the last good one stays in use. Nothing in a file is ever part of an error or a log line.
package credfile

import (
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"
)

// checkEvery is how often files are looked at, at most.
const checkEvery = time.Second

// followed is a value that was loaded from files. A use that comes at least checkEvery after the last look compares the files'
// identity, and loads them again if it changed. Safe for concurrent use.
type followed[T any] struct {
	what  string // for the log
	files []string
	load  func() (T, error)
	about func(T) []any // what the log tells of a new value
	log   *slog.Logger
	now   func() time.Time

	mu      sync.Mutex
	current T
	seen    []fs.FileInfo // what the last attempt to load looked at
	looked  time.Time
}

// first loads the value for the first time, which has to succeed.
func (f *followed[T]) first() error {
	if f.now == nil {
		f.now = time.Now
	}
	if err := f.reload(); err != nil {
		return err
	}
	f.looked = f.now()
	return nil
}

// get is the value of now.
func (f *followed[T]) get() T {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := f.now(); now.Sub(f.looked) >= checkEvery {
		f.looked = now
		if f.changed() {
			if err := f.reload(); err != nil {
				f.log.Error("cannot load a changed credential; the last good one stays in use", "what", f.what, "error", err)
			} else {
				f.log.Info("loaded a changed credential", append([]any{"what", f.what}, f.about(f.current)...)...)
			}
		}
	}
	return f.current
}

// changed reports whether a file is another one than at the last attempt to load, or cannot be seen.
func (f *followed[T]) changed() bool {
	for i, name := range f.files {
		info, err := os.Stat(name)
		if err != nil {
			// Gone for a moment while it is replaced, or for good: report once, then wait for it to come back.
			if f.seen[i] != nil {
				return true
			}
			continue
		}
		old := f.seen[i]
		if old == nil || !os.SameFile(old, info) || old.Size() != info.Size() || !old.ModTime().Equal(info.ModTime()) || old.Mode() != info.Mode() {
			return true
		}
	}
	return false
}

// reload remembers what it looked at even if it fails, so that the same bad files are not tried again and again. The files are
// looked at before they are read: a change in between is seen the next time. A named pipe is read at the start alone: later
// everybody who uses the value would wait for its writer.
func (f *followed[T]) reload() error {
	f.seen = make([]fs.FileInfo, len(f.files))
	pipe := ""
	for i, name := range f.files {
		f.seen[i], _ = os.Stat(name) // the error shows in reading
		if f.seen[i] != nil && f.seen[i].Mode()&fs.ModeNamedPipe != 0 {
			pipe = name
		}
	}
	if pipe != "" && !f.looked.IsZero() {
		return fmt.Errorf("%s is a named pipe now; put the file back", pipe)
	}
	value, err := f.load()
	if err == nil {
		f.current = value
	}
	return err
}
