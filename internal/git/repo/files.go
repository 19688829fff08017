package repo

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync/atomic"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/disk"
)

// fileState is the state of a small file when it was read.
type fileState struct {
	id      disk.ID // zero: it did not exist
	settled bool    // the content cannot change without a change of id
	sum     [sha256.Size]byte
}

// watchedFile is a small file whose changes are detected. It is safe for concurrent use after it was read.
type watchedFile struct {
	path  string
	limit int64 // in bytes
	known atomic.Pointer[fileState]
}

// read reads the file. A missing file is empty.
func (w *watchedFile) read(path string, limit int64) ([]byte, error) {
	w.path, w.limit = path, limit
	text, state, err := readFile(path, limit)
	w.known.Store(state)
	return text, err
}

// isUnchanged reports whether the file is unchanged, by its identity. A file that was very young when it was read is
// read again.
func (w *watchedFile) isUnchanged() bool {
	known := w.known.Load()
	if id, err := disk.Stat(w.path); err != nil || id != known.id {
		return false
	}
	return known.settled || w.hasKnownContent()
}

// hasKnownContent reads the file again, and reports whether its content is unchanged.
func (w *watchedFile) hasKnownContent() bool {
	_, now, err := readFile(w.path, w.limit)
	if err != nil || now.sum != w.known.Load().sum {
		return false
	}
	w.known.Store(now)
	return true
}

// readFile reads a regular file of at most limit bytes and returns its state. A missing file is empty.
func readFile(path string, limit int64) ([]byte, *fileState, error) {
	now := time.Now()
	id, err := disk.Stat(path)
	if err != nil {
		return nil, nil, err
	}
	text, err := readAll(path, limit+1)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	if int64(len(text)) > limit {
		return nil, nil, tooLong(limit)
	}
	return text, &fileState{id, id.Settled(now), sha256.Sum256(text)}, nil
}

// configFile is a config file that is watched.
type configFile struct{ watchedFile }

// read reads the file when the repository is opened. A missing file is empty.
func (c *configFile) read(path string, o Options) (Config, error) {
	if err := o.checkContained(path, "config"); err != nil {
		return Config{}, err
	}
	text, err := c.watchedFile.read(path, maxConfig)
	if err != nil {
		return Config{}, cannotRead("config", err)
	}
	return ParseConfig(string(text))
}

// readAll reads at most limit bytes of a regular file.
func readAll(path string, limit int64) ([]byte, error) {
	f, err := disk.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, limit))
}

// tooLong is the error for a file of more bytes.
type tooLong int64

func (n tooLong) Error() string { return fmt.Sprintf("longer than %d bytes", int64(n)) }

// cannotRead returns an error that names the file. It is Unavailable unless the path is not a file, or the file is too
// long.
func cannotRead(what string, err error) error {
	if limit, ok := errors.AsType[tooLong](err); ok {
		return fault.Wrap(fault.Corrupt, "the repository's "+what+" is "+limit.Error(), err)
	}
	kind := fault.Unavailable
	if fault.Is(err, fault.Corrupt) {
		kind = fault.Corrupt
	}
	return fault.Wrap(kind, "cannot read the repository's "+what, err)
}
