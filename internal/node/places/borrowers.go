package places

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/repo"
)

const (
	// maxBorrowerEntries is the maximum number of directory entries that a search reads.
	maxBorrowerEntries = 10_000_000
	// maxNamed is the maximum number of borrowers in an error.
	maxNamed = 3
	// maxLinks is the maximum number of symbolic links in a path, as on Linux.
	maxLinks = 40
)

// checkBorrowers returns an error of kind Denied if there are borrowers, and Unavailable if the search fails.
func (d *Directories) checkBorrowers(ctx context.Context, dir string) error {
	names, err := d.borrowers(ctx, dir)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return fault.Wrap(fault.Unavailable,
			"cannot determine whether other repositories borrow its objects; use force to remove it anyway", err)
	case names == "":
		return nil
	}
	return fault.New(fault.Denied, "other repositories borrow its objects and would be damaged: %s. "+
		"Repack these first (git repack -a -d, then remove objects/info/alternates), or use packhorse repo remove "+
		"--force", names)
}

// borrowers names some repositories below the root that need the one in dir, a path without symbolic links; "": there
// are none. A repository needs it if its alternates lead into dir, directly or through other alternates. So does one
// whose ".git" file, commondir file or linked object directory leads there. Each search reads every directory below the
// root except those inside repositories. Searches run one at a time.
func (d *Directories) borrowers(ctx context.Context, dir string) (names string, err error) {
	if err := d.searching.Acquire(ctx, 1); err != nil {
		return "", err
	}
	defer d.searching.Release(1)
	s, err := d.search(ctx, dir)
	if err != nil {
		return "", err
	}
	names = strings.Join(s.found[:min(len(s.found), maxNamed)], ", ")
	if more := len(s.found) - maxNamed; more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}
	return names, nil
}

// search searches for the repositories that need one of those in dirs. Directories.searching is held.
func (d *Directories) search(ctx context.Context, dirs ...string) (*borrowerSearch, error) {
	s := &borrowerSearch{Directories: d, ctx: ctx, lenders: make(map[string]bool), left: d.borrowerEntries,
		known: make(map[string]bool)}
	for _, dir := range dirs {
		s.lenders[dir] = true
	}
	return s, s.dir(d.root, false)
}

// borrowerSearch searches for the repositories that need others.
type borrowerSearch struct {
	*Directories
	ctx     context.Context
	lenders map[string]bool // directories without symbolic links
	left    int             // entries that may still be read
	known   map[string]bool // by object directory: it needs a lender
	found   []string        // paths below the root
}

// dir searches a directory and those below it. It does not follow links: their targets below the root are found at
// their own places. In a work tree, only files with the name ".git" count as repositories.
func (s *borrowerSearch) dir(dir string, worktree bool) error {
	if err := s.ctx.Err(); err != nil {
		return err
	}
	if s.lenders[dir] {
		return nil
	}
	is, err := repo.LooksLikeGitDir(dir)
	if err != nil {
		return err
	}
	if is {
		if err := s.repository(dir); err != nil {
			return err
		}
		dir = filepath.Join(dir, "modules") // of submodules, whose work trees may not be checked out
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if s.left -= len(entries); s.left < 0 {
		return fmt.Errorf("more than %d directory entries below the root", s.borrowerEntries)
	}
	for _, e := range entries {
		worktree = worktree || e.Name() == ".git"
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		switch {
		case e.IsDir():
			if e.Name() != repo.PrivateDir && s.Repo.Allows(path) {
				err = s.dir(path, worktree)
			}
		case e.Type().IsRegular() && (e.Name() == ".git" || !worktree) && repo.IsGitFile(path):
			err = s.repository(path)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// repository checks the repository at path, which is a Git directory or a ".git" file.
func (s *borrowerSearch) repository(path string) error {
	dirs, err := repo.LinkedDirs(path)
	if fault.Is(err, fault.NotFound) { // it is broken already
		return nil
	}
	if err != nil {
		return err
	}
	objects := dirs[len(dirs)-1]
	needs := false
	for _, dir := range append(dirs, objects+"/pack", objects+"/info/alternates") {
		through, err := leadsThrough(dir, s.lenders)
		if err != nil {
			return err
		}
		needs = needs || through
	}
	if !needs {
		if needs, err = s.borrows(objects); err != nil {
			return err
		}
	}
	if needs {
		below, err := filepath.Rel(s.root, path)
		if err != nil {
			return err
		}
		s.found = append(s.found, below)
	}
	return nil
}

// borrows reports whether the alternates of an object directory lead into a lender, directly or through others.
func (s *borrowerSearch) borrows(objects string) (bool, error) {
	real, err := filepath.EvalSymlinks(objects)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ELOOP) ||
		errors.Is(err, syscall.ENAMETOOLONG) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if needs, ok := s.known[real]; ok {
		return needs, nil
	}
	s.known[real] = false // alternates may lead in a circle
	paths, err := pack.Alternates(real)
	if err != nil {
		return false, err
	}
	for _, path := range paths {
		needs, err := leadsThrough(path, s.lenders)
		if err == nil && !needs {
			needs, err = s.borrows(path)
		}
		if err != nil {
			return false, err
		}
		if needs {
			s.known[real] = true
			return true, nil
		}
	}
	return false, nil
}

// leadsThrough reports whether an absolute path leads into one of dirs, at its end or through a link. These must not
// have symbolic links. A path that does not exist is followed as far as possible.
func leadsThrough(path string, dirs map[string]bool) (bool, error) {
	at, rest := "/", path
	for links := 0; rest != ""; {
		var name string
		name, rest, _ = strings.Cut(strings.TrimLeft(rest, "/"), "/")
		if name == ".." {
			at = filepath.Dir(at)
			continue
		}
		next := filepath.Join(at, name)
		if dirs[next] {
			return true, nil
		}
		target, err := os.Readlink(next)
		switch {
		case err == nil:
			if links++; links > maxLinks {
				return false, nil
			}
			if filepath.IsAbs(target) {
				at = "/"
			}
			rest = target + "/" + rest
			continue
		case errors.Is(err, syscall.EINVAL): // next is not a link
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.ENAMETOOLONG):
		default:
			return false, err
		}
		at = next
	}
	return false, nil
}
