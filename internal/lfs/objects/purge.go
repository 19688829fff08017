package objects

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/disk"
	"github.com/packhorse-git/packhorse/internal/lfs"
)

// ErrPurged is the error of an upload of an object that was purged.
func ErrPurged(id lfs.OID) error {
	return fault.New(fault.Denied, "LFS object %s was purged from this repository and cannot be uploaded again: remove "+
		"its file from your history, for example with git rebase or git filter-repo", id)
}

// checkPurged is states for a repository with purged objects.
func (s *Store) checkPurged(ctx context.Context, r Repository, b lfs.Batch) ([]lfs.Status, error) {
	states, others := make([]lfs.Status, len(b.Objects)), b
	others.Objects = nil
	var places []int
	for i, o := range b.Objects {
		switch {
		case !r.Purged[o.OID]:
			places, others.Objects = append(places, i), append(others.Objects, o)
		case b.Upload:
			states[i] = lfs.Status{State: lfs.Refused, Err: ErrPurged(o.OID)}
		}
	}
	r.Purged = nil
	found, err := s.states(ctx, r, others)
	for i, state := range found {
		states[places[i]] = state
	}
	return states, err
}

// Files returns the files of an object of a repository, also those of uploads and damaged ones. The pool's is one of
// them unless another repository has it, too, which isShared reports.
func (s *Store) Files(r Repository, id lfs.OID) (paths []string, isShared bool, err error) {
	pool := filepath.Join(s.options.Dir, name(id))
	pooled, err := os.Lstat(pool)
	if err != nil && !isAbsent(err) {
		return nil, false, err
	}
	links := uint64(1) // of the pool's file that are known
	for _, path := range []string{filepath.Join(r.objects(), name(id)), s.partPath(r, id),
		filepath.Join(r.Dir, "lfs", removingName, id.String()), filepath.Join(r.Dir, "lfs", damagedDir, id.String()),
		filepath.Join(s.options.Dir, damagedDir, id.String())} {
		info, err := os.Lstat(path)
		switch {
		case isAbsent(err):
			continue
		case err != nil:
			return nil, false, err
		case os.SameFile(info, pooled):
			links++
		}
		paths = append(paths, path)
	}
	if pooled == nil {
		return paths, false, nil
	}
	if st, ok := pooled.Sys().(*syscall.Stat_t); ok && uint64(st.Nlink) > links {
		return paths, true, nil
	}
	return append(paths, pool), false, nil
}

// Purge removes the Files of an object. The error is ErrLinked if other repositories may have the same directory.
func (s *Store) Purge(r Repository, id lfs.OID) (removed []string, isShared bool, err error) {
	c, err := s.NewCollector(r, time.Time{})
	if err != nil {
		return nil, false, err
	}
	defer c.Close()
	size, found, err := c.objects.stat(id)
	if err != nil {
		return nil, false, err
	}
	paths, isShared, err := s.Files(r, id)
	for _, path := range paths {
		if err == nil {
			err = os.Remove(path)
		}
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			err = disk.SyncDir(filepath.Dir(path))
			removed = append(removed, path)
		}
		if path == filepath.Join(s.options.Dir, name(id)) && err == nil {
			s.countPool(-1, lfs.Object{OID: id, Size: size})
		}
	}
	if found && err == nil {
		s.usage.add(r, -size)
	}
	return removed, isShared, err
}
