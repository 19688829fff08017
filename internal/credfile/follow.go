// Package credfile loads credentials from files that may change while the process runs: certificates, authorities and
// shared secrets. A changed file is loaded at the next use. If that fails, the failure is logged once for each change,
// and the previous value stays in use. Errors and logs never contain the content of a file.
package credfile

import (
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"
)

// checkInterval is the minimum time between two checks of the files.
const checkInterval = time.Second

// followed is a value from files. At least checkInterval after the last check, a use compares the identity of the
// files and loads them again if it changed. Safe for concurrent use.
type followed[T any] struct {
	what  string // for the log
	files []string
	load  func() (T, error)
	about func(T) []any // log fields of a new value
	log   *slog.Logger
	now   func() time.Time

	mu      sync.Mutex
	current T
	seen    []fs.FileInfo // the files at the last attempt to load them
	looked  time.Time
}

// first loads the value for the first time. Its error is fatal.
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

// get returns the current value.
func (f *followed[T]) get() T {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := f.now(); now.Sub(f.looked) >= checkInterval {
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

// changed reports whether a file differs from the one at the last attempt to load it, or has disappeared.
func (f *followed[T]) changed() bool {
	for i, name := range f.files {
		info, err := os.Stat(name)
		if err != nil {
			// The file is missing, perhaps only while it is replaced. Log that once and wait for its return.
			if f.seen[i] != nil {
				return true
			}
			continue
		}
		old := f.seen[i]
		if old == nil || !os.SameFile(old, info) || old.Size() != info.Size() || !old.ModTime().Equal(info.ModTime()) ||
			old.Mode() != info.Mode() {
			return true
		}
	}
	return false
}

// reload loads the value. It records the identity of the files even if it fails, so that invalid files are not read
// repeatedly. It does so before it reads them, so that a concurrent change is found at the next check. A named pipe is
// read only at the start, because later all users of the value would wait for its writer.
func (f *followed[T]) reload() error {
	f.seen = make([]fs.FileInfo, len(f.files))
	pipe := ""
	for i, name := range f.files {
		f.seen[i], _ = os.Stat(name) // the read reports the error
		if f.seen[i] != nil && f.seen[i].Mode()&fs.ModeNamedPipe != 0 {
			pipe = name
		}
	}
	if pipe != "" && !f.looked.IsZero() {
		return fmt.Errorf("%s has become a named pipe: restore the file", pipe)
	}
	value, err := f.load()
	if err == nil {
		f.current = value
	}
	return err
}
