package places

import (
	"context"
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
)

// Delete implements Places. The path is free when Delete returns. The files are removed in the background, if necessary
// after the next start. Concurrent fetches from the repository may fail.
func (d *Directories) Delete(ctx context.Context, path git.RepoPath, o DeleteOptions) error {
	p, err := d.findDeletable(ctx, path, o)
	if err != nil {
		return err
	}
	if !o.Force {
		if err := d.checkBorrowers(ctx, p.dir); err != nil { // without holding placing, because it may take long
			return err
		}
	}
	release, err := d.beginMoving(ctx, p)
	if err != nil {
		return err
	}
	defer release()
	if p, err = d.findDeletable(ctx, path, o); err != nil {
		return err
	}
	network := p.repo.Network()
	own, err := d.moveToTrash(p.dir)
	if err != nil {
		return WriteError(err)
	}
	if network != "" {
		d.leftNetwork(network)
	}
	d.Deleted(p.Key())
	d.emptyTrash(own)
	if err := d.Sync(filepath.Dir(p.dir)); err != nil {
		return &unsyncedError{fault.Wrap(fault.Unavailable,
			"the repository was deleted, but can reappear after a power failure", err)}
	}
	return nil
}

// findDeletable returns the repository at a path if it can be deleted, apart from borrowers.
func (d *Directories) findDeletable(ctx context.Context, path git.RepoPath, o DeleteOptions) (*dirPlace, error) {
	p, err := d.findWhole(ctx, path, "delete")
	if p != nil && o.Incarnation != "" && p.incarnation() != o.Incarnation {
		return nil, fault.New(fault.NotFound, "the repository was replaced: it has another incarnation")
	}
	return p, err
}

// findWhole returns a repository that can be moved. verb names the change in errors.
func (d *Directories) findWhole(ctx context.Context, path git.RepoPath, verb string) (*dirPlace, error) {
	p, err := d.acquire(path)
	if err != nil {
		return nil, err
	}
	r, err := p.Open(ctx, d.Repo)
	if err != nil {
		return nil, err
	}
	defer r.Close() // its files are not needed
	return p, p.checkWhole(verb)
}

// checkWhole returns an error if a repository's directory is more than a bare repository.
func (p *dirPlace) checkWhole(verb string) error {
	info, err := os.Lstat(p.found)
	switch {
	case err != nil:
		return fault.Wrap(fault.NotFound, "the repository does not exist any more", err)
	case !info.IsDir() || p.repo.Common != p.repo.Dir || p.repo.Dir != p.dir:
		return fault.New(fault.Denied, "the path is a link to a repository or a worktree: %s it on the server", verb)
	case filepath.Base(p.dir) == ".git":
		return fault.New(fault.Denied, "the repository has a work tree: %s it on the server", verb)
	}
	if precious, err := p.repo.Config().Bool("extensions.preciousobjects", false); err != nil || precious {
		return fault.New(fault.Denied,
			"the repository has extensions.preciousObjects: other repositories may borrow its objects")
	}
	worktrees, err := os.ReadDir(filepath.Join(p.dir, "worktrees"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fault.Wrap(fault.Unavailable, "cannot read the repository's worktrees", err)
	}
	if len(worktrees) > 0 {
		return fault.New(fault.Denied, "the repository has linked worktrees: remove them first (git worktree remove)")
	}
	return nil
}

// moveToTrash moves a repository's directory to the trash of a private directory, which it returns. The caller holds
// Directories.placing.
func (d *Directories) moveToTrash(dir string) (own string, err error) {
	for _, parent := range []string{d.root, filepath.Dir(dir)} {
		if own, err = d.privateDirectory(parent); err != nil {
			return "", err
		}
		to := filepath.Join(own, trashKind)
		if err = os.MkdirAll(to, 0o700); err == nil {
			err = os.Rename(dir, filepath.Join(to, rand.Text()))
		}
		if !errors.Is(err, syscall.EXDEV) { // otherwise try the repository's own file system
			break
		}
	}
	return own, err
}

// leftoverAge is the age at which an incomplete repository counts as left by an earlier node.
const leftoverAge = time.Hour

// emptyTrash removes deleted repositories and old incomplete ones from a private directory in the background. Trash is
// emptied one directory after the other. Close interrupts that until the next start.
func (d *Directories) emptyTrash(own string) {
	d.running.Go(func() {
		if d.trash.Acquire(d.ctx, 1) != nil {
			return
		}
		defer d.trash.Release(1)
		if err := emptyTrash(d.ctx, own); err != nil && d.ctx.Err() == nil {
			d.Log.Warn("cannot remove deleted repositories; trying again at the next deletion or start", "dir", own, "error",
				err)
		}
	})
}

func emptyTrash(ctx context.Context, own string) error {
	var errs []error
	for _, kind := range []string{trashKind, newKind} {
		entries, err := os.ReadDir(filepath.Join(own, kind))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
		for _, e := range entries {
			if kind == newKind {
				if info, err := e.Info(); err != nil || time.Since(info.ModTime()) < leftoverAge {
					continue
				}
			}
			if err := removeTree(ctx, filepath.Join(own, kind, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// removeTree removes a directory tree until ctx ends. It does not follow links.
func removeTree(ctx context.Context, dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return os.Remove(dir)
	}
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return err
		}
		path := filepath.Join(dir, e.Name())
		if e.IsDir() {
			err = removeTree(ctx, path)
		} else {
			err = os.Remove(path)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return os.Remove(dir)
}
