package places

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/repo"
)

// maxFiles is the maximum number of files that are read for the size of a repository.
const maxFiles = 1_000_000

// errTooMany ends a count of files.
var errTooMany = errors.New("too many files")

// size returns the size of a repository's files without its alternates, in bytes.
func size(ctx context.Context, r *repo.Repo) (bytes int64, err error) {
	files := 0
	walk := func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if files++; files > maxFiles {
			return errTooMany
		}
		if e.IsDir() {
			return ctx.Err()
		}
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
			bytes += info.Size()
		}
		return nil
	}
	dirs := []string{r.Common}
	if !strings.HasPrefix(r.Dir+"/", r.Common+"/") {
		dirs = append(dirs, r.Dir)
	}
	for _, dir := range dirs {
		if err = filepath.WalkDir(dir, walk); err != nil {
			break
		}
	}
	switch {
	case err == errTooMany:
		return -1, nil
	case err != nil && ctx.Err() == nil:
		return 0, fault.Wrap(fault.Unavailable, "cannot read the repository's directory", err)
	}
	return bytes, err
}
