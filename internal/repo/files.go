package repo

import (
	"crypto/sha256"
	"errors"
	"io"
	"io/fs"
	"sync/atomic"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/disk"
)

// configState is a config file as it was read.
type configState struct {
	id      disk.ID
	settled bool // while id stays, so does the text
	sum     [sha256.Size]byte
}

// configFile tells whether a config file says what it said when the repository was opened. Safe for concurrent use.
type configFile struct {
	path  string
	known atomic.Pointer[configState]
}

// same looks at the file's identity. A file that was too young when it was read to be told from a later one is read again.
func (c *configFile) same() bool {
	known := c.known.Load()
	if id, err := disk.Stat(c.path); err != nil || id != known.id {
		return false
	}
	if known.settled {
		return true
	}
	_, now, err := readConfigText(c.path)
	if err != nil || now.sum != known.sum {
		return false
	}
	c.known.Store(now)
	return true
}

// read reads the file as the repository is opened.
func (c *configFile) read(path string) (Config, error) {
	config, state, err := readConfig(path)
	c.path = path
	c.known.Store(state)
	return config, err
}

// readConfigText reads a config file and tells its state; one that is not there is empty.
func readConfigText(path string) ([]byte, *configState, error) {
	now := time.Now()
	id, err := disk.Stat(path)
	if err != nil {
		return nil, nil, cannotRead("config", err)
	}
	text, err := readAll(path, maxConfig+1)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, cannotRead("config", err)
	}
	if len(text) > maxConfig {
		return nil, nil, fault.New(fault.Corrupt, "the repository's config is longer than %d bytes", maxConfig)
	}
	return text, &configState{id, id.Settled(now), sha256.Sum256(text)}, nil
}

// readAll reads a regular file, but no more than limit bytes.
func readAll(path string, limit int64) ([]byte, error) {
	f, err := disk.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, limit))
}

// cannotRead says which of the repository's files cannot be read. That may pass, unless what is there is no file.
func cannotRead(what string, err error) error {
	kind := fault.Unavailable
	if fault.Is(err, fault.Corrupt) {
		kind = fault.Corrupt
	}
	return fault.Wrap(kind, "cannot read the repository's "+what, err)
}
