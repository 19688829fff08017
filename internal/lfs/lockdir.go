package lfs

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/disk"
)

// LockDir is a directory with lock files, which need not exist. Only one process may change it, through one LockServer.
type LockDir string

const lockSuffix = ".json"

func (d LockDir) path(name string) string { return filepath.Join(string(d), name+lockSuffix) }

// Create, Read, Remove and Names make it a LockFiles.
func (d LockDir) Create(_ context.Context, name string, content []byte) error {
	if err := os.MkdirAll(string(d), 0o777); err != nil {
		return writeError(err)
	}
	if _, err := os.Lstat(d.path(name)); err == nil {
		return fault.New(fault.Exists, "the file is locked")
	}
	if err := disk.ReplaceFile(d.path(name), content); err != nil {
		return writeError(err)
	}
	return writeError(disk.SyncDir(filepath.Dir(string(d))))
}

// Read returns a file's content.
func (d LockDir) Read(_ context.Context, name string) ([]byte, error) {
	content, err := os.ReadFile(d.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fault.Wrap(fault.NotFound, "there is no such lock", err)
	}
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, "cannot read a lock", err)
	}
	return content, nil
}

// Remove removes a file.
func (d LockDir) Remove(_ context.Context, name string) error {
	if err := os.Remove(d.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return writeError(err)
	}
	return writeError(disk.SyncDir(string(d)))
}

// Names lists the files.
func (d LockDir) Names(context.Context) (names []string, err error) {
	entries, err := os.ReadDir(string(d))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, "cannot list the locks", err)
	}
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), lockSuffix); ok {
			names = append(names, name)
		}
	}
	return names, nil
}

// writeError returns the error of a write with its kind.
func writeError(err error) error {
	if disk.IsFull(err) {
		return fault.Wrap(fault.Full, "the server's disk is full", err)
	}
	return fault.Wrap(fault.Unavailable, "cannot write a lock", err)
}
