package storage

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
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
func (n *Node) find(path git.RepoPath) (found string, before []string, err error) {
	names := []string{path.String()}
	if short, ok := strings.CutSuffix(path.String(), ".git"); ok && short != "" && !strings.HasSuffix(short, "/") {
		names = append(names, short)
	}
	var denied error
	for _, name := range names {
		for _, candidate := range []string{name + "/.git", name, name + ".git/.git", name + ".git"} {
			found := filepath.Join(n.root, filepath.FromSlash(candidate))
			is, err := looksLikeRepository(found)
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

// isRepository reports whether a Git directory or a ".git" file is at path. Mostly one system call is enough to exclude
// that.
func isRepository(path string) bool {
	is, _ := looksLikeRepository(path)
	return is
}

// looksLikeRepository is isRepository with an error if that cannot be determined.
func looksLikeRepository(path string) (bool, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return false, nil
	case info.IsDir():
		return repo.LooksLikeGitDir(path)
	}
	return info.Mode().IsRegular() && repo.IsGitFile(path), nil
}

// checkPlace returns the real path of a Git directory or a ".git" file. It refuses paths outside the root, in a hidden
// directory, or in the Git directory of another repository. Linked worktrees, submodules and pushes in progress there
// are reached through the files that name them, and not by their paths.
func (n *Node) checkPlace(dir string) (string, error) {
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return "", fault.Wrap(fault.NotFound, "no such repository", err)
	}
	outside := fault.New(fault.NotFound, "no such repository")
	if !n.options.Allows(real) || isPrivate(real[len(n.root):]) {
		return "", outside
	}
	for parent := real; parent != n.root; {
		parent = filepath.Dir(parent)
		is, err := repo.LooksLikeGitDir(parent)
		if err != nil {
			return "", fault.Wrap(fault.Unavailable, "the repository cannot be read", err)
		}
		if is {
			return "", outside
		}
	}
	return real, nil
}

// realPath returns an absolute path without symbolic links. The directory and its parents need not exist.
func realPath(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	real, err := filepath.EvalSymlinks(path)
	if !errors.Is(err, fs.ErrNotExist) || filepath.Dir(path) == path {
		return real, err
	}
	parent, err := realPath(filepath.Dir(path))
	return filepath.Join(parent, filepath.Base(path)), err
}
