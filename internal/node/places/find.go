package places

import (
	"cmp"
	"errors"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/disk"
	"github.com/packhorse-git/packhorse/internal/git/repo"
)

// find returns where the repository of a path is: DIR/.git, DIR, DIR.git/.git or DIR.git, in Git's order, and the same
// for the path without its ".git". The result is a Git directory or a ".git" file. before lists the places that were
// tried first.
func (d *Directories) find(path git.RepoPath) (found string, before []string, err error) {
	names := []string{path.String()}
	if short, ok := strings.CutSuffix(path.String(), ".git"); ok && short != "" && !strings.HasSuffix(short, "/") {
		names = append(names, short)
	}
	var denied error
	for _, name := range names {
		for _, candidate := range []string{name + "/.git", name, name + ".git/.git", name + ".git"} {
			found := filepath.Join(d.root, filepath.FromSlash(candidate))
			is, err := repo.IsRepository(found)
			if is {
				return found, before, nil
			}
			before = append(before, found)
			if err = cmp.Or(err, unreadable(found)); err != nil {
				denied = err
			}
		}
	}
	if denied != nil {
		return "", nil, fault.Wrap(fault.Unavailable, "the repository cannot be read", denied)
	}
	return "", nil, fault.New(fault.NotFound, "no repository %s here", path)
}

// unreadable returns an error if there may be a repository at path that cannot be read.
func unreadable(path string) error {
	for _, file := range []string{path, filepath.Join(path, "HEAD")} {
		f, err := disk.Open(file)
		if err == nil {
			f.Close()
		} else if errors.Is(err, fs.ErrPermission) || repo.CannotTell(err) != nil {
			return err
		}
	}
	return nil
}
