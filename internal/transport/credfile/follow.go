// Package credfile loads credentials from files that may change while the process runs: certificates, authorities and
// shared secrets. A changed file is loaded at the next use. If that fails, the failure is logged once, the previous
// value stays in use, and further uses try again. Errors and logs never contain the content of a file. A Watcher
// detects the changes, here and in package auth.
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

// followed is a value from files. Safe for concurrent use.
type followed[T any] struct {
	what  string // for the log
	files []string
	load  func() (T, error)
	about func(T) []any // log fields of a new value
	log   *slog.Logger
	now   func() time.Time

	mu      sync.Mutex
	watcher Watcher
	current T
	err     error // of the latest attempt to load it
}

// first loads the value for the first time. Its error is fatal.
func (f *followed[T]) first() (err error) {
	if f.now == nil {
		f.now = time.Now
	}
	f.watcher = Watcher{Paths: f.files, Interval: checkInterval}
	f.watcher.Check(f.now())
	f.current, err = f.load()
	return err
}

// get returns the current value.
func (f *followed[T]) get() T {
	f.mu.Lock()
	defer f.mu.Unlock()
	read, changed := f.watcher.Check(f.now())
	if !read {
		return f.current
	}
	before := f.err
	var value T
	if f.err = f.checkPipes(); f.err == nil {
		value, f.err = f.load()
	}
	if f.err != nil {
		f.watcher.Retry() // the cause may not be in the files, as when there are too many open ones
	}
	switch {
	case f.err == nil:
		f.current = value
		if changed || before != nil {
			f.log.Info("loaded a changed credential", append([]any{"what", f.what}, f.about(value)...)...)
		}
	case before == nil || before.Error() != f.err.Error():
		f.log.Error("cannot load a changed credential; the last good one stays in use", "what", f.what, "error", f.err)
	}
	return f.current
}

// checkPipes fails if a file is a named pipe. A pipe is read only at the start, because later all users of the value
// would wait for its writer.
func (f *followed[T]) checkPipes() error {
	for _, name := range f.files {
		if info, err := os.Stat(name); err == nil && info.Mode()&fs.ModeNamedPipe != 0 {
			return fmt.Errorf("%s has become a named pipe: restore the file", name)
		}
	}
	return nil
}
