package pushjournal

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/git/disk"
)

// Entry is the file of one push. Its methods are not safe for concurrent use, except IsActive and Files.
type Entry struct {
	Record

	path string
	file *os.File // nil: this process does not hold the lock
}

// Create adds a push to the journal and locks its file.
func Create(dir, id string, r Record) (*Entry, error) {
	e := &Entry{Record: r, path: filepath.Join(dir, id)}
	f, err := os.OpenFile(e.path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	e.file = f
	if err = flock(f, unix.LOCK_EX); err == nil {
		err = r.write(f)
	}
	if err != nil {
		e.Remove()
		return nil, err
	}
	return e, nil
}

// Read reads the pushes of earlier servers and creates the directory if it does not exist. It removes files of pushes
// that never started, and calls reject for those that cannot be read.
func Read(dir string, reject func(path string, err error)) ([]*Entry, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var entries []*Entry
	for _, f := range files {
		e := &Entry{path: filepath.Join(dir, f.Name())}
		switch err := e.read(); {
		case errors.Is(err, errIncomplete):
			e.Remove()
		case err != nil:
			reject(e.path, err)
		default:
			entries = append(entries, e)
		}
	}
	return entries, nil
}

func (e *Entry) read() error {
	f, err := disk.Open(e.path)
	if err != nil {
		return err
	}
	defer f.Close()
	r, err := readRecord(f)
	if err == nil {
		e.Record = *r
	}
	return err
}

// ID returns the ID of the push.
func (e *Entry) ID() string { return filepath.Base(e.path) }

// Files returns the locked file, for the Git process to inherit. The entry may be nil.
func (e *Entry) Files() []*os.File {
	if e == nil {
		return nil
	}
	return []*os.File{e.file}
}

// MarkAgreed notes that every hook has accepted an atomic push.
func (e *Entry) MarkAgreed() error {
	e.Agreed = true
	_, err := e.file.WriteString(agreedLine)
	return err
}

// Release gives up this process's share of the lock. The entry stays in the journal.
func (e *Entry) Release() {
	if e.file != nil {
		e.file.Close()
		e.file = nil
	}
}

// Remove deletes the push from the journal.
func (e *Entry) Remove() {
	_ = os.Remove(e.path)
	e.Release()
}

// IsActive reports whether a process still holds the lock. It is true if that cannot be determined.
func (e *Entry) IsActive() bool {
	f, err := os.Open(e.path)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	defer f.Close()
	return flock(f, unix.LOCK_SH) != nil // shared: two checks at the same time do not disturb each other
}

// flock locks a file without waiting.
func flock(f *os.File, how int) error {
	for {
		if err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
