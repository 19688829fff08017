package storage

import (
	"context"
	"crypto/rand"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
)

// DeleteOptions restrict what Delete removes.
type DeleteOptions struct {
	Incarnation string // fail if the repository has another incarnation; "": any
	Force       bool   // remove the repository even if others borrow its objects
}

// Delete removes a bare repository. Its path is free when Delete returns. The files are removed in the background, if
// necessary after the next start. Concurrent fetches from the repository may fail.
//
// The error is Denied if other repositories below the root borrow objects, unless Force is set. It is also Denied for a
// repository with linked worktrees, a work tree or extensions.preciousObjects, and for a link. It is NotFound also for
// another incarnation, Exhausted during maintenance, and Unavailable if the search for borrowers failed.
func (n *Node) Delete(ctx context.Context, path git.RepoPath, o DeleteOptions) (err error) {
	defer func() { n.changedRepository("delete", path, err) }()
	err = n.places.Delete(ctx, n.places.Name(path), o)
	if _, isGone := errors.AsType[*unsyncedError](err); err == nil || isGone {
		n.RefsChanged(path)
	}
	return err
}

// Delete implements Places.
func (d *directories) Delete(ctx context.Context, path git.RepoPath, o DeleteOptions) error {
	if !o.Force {
		p, err := d.findDeletable(ctx, path, o)
		if err != nil {
			return err
		}
		if err := d.checkBorrowers(ctx, p.dir); err != nil { // without holding placing, because it may take long
			return err
		}
	}
	if err := d.placing.lock(ctx); err != nil {
		return err
	}
	defer d.placing.unlock()
	p, err := d.findDeletable(ctx, path, o)
	if err != nil {
		return err
	}
	release, err := d.claims.claim(p.repo.Common)
	if err != nil {
		return err
	}
	defer release()
	own, err := d.moveToTrash(p.dir)
	if err != nil {
		return writeError(err)
	}
	d.dropped(p.Key())
	d.trash.add(own)
	if err := d.sync(filepath.Dir(p.dir)); err != nil {
		return &unsyncedError{fault.Wrap(fault.Unavailable,
			"the repository was deleted, but can reappear after a power failure", err)}
	}
	return nil
}

// findDeletable returns the repository at a path if it can be deleted, apart from borrowers.
func (d *directories) findDeletable(ctx context.Context, path git.RepoPath, o DeleteOptions) (*dirPlace, error) {
	p, err := d.acquire(path)
	if err != nil {
		return nil, err
	}
	r, err := p.Open(ctx, d.options)
	if err != nil {
		return nil, err
	}
	defer r.Close() // its files are not needed
	if o.Incarnation != "" && p.incarnation() != o.Incarnation {
		return nil, fault.New(fault.NotFound, "the repository was replaced: it has another incarnation")
	}
	return p, p.checkDeletable()
}

// checkDeletable returns an error if a repository's directory is more than a bare repository.
func (p *dirPlace) checkDeletable() error {
	info, err := os.Lstat(p.found)
	switch {
	case err != nil:
		return fault.Wrap(fault.NotFound, "the repository does not exist any more", err)
	case !info.IsDir() || p.repo.Common != p.repo.Dir || p.repo.Dir != p.dir:
		return fault.New(fault.Denied, "the path is a link to a repository or a worktree: delete it on the server")
	case filepath.Base(p.dir) == ".git":
		return fault.New(fault.Denied, "the repository has a work tree: delete it on the server")
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
// directories.placing.
func (d *directories) moveToTrash(dir string) (own string, err error) {
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

// trash removes deleted repositories, one after the other.
type trash struct {
	log *slog.Logger

	mu      sync.Mutex
	queue   []string // private directories
	running bool
	closed  bool
	stop    chan struct{}
	done    sync.WaitGroup
}

func newTrash(log *slog.Logger) *trash {
	return &trash{log: log, stop: make(chan struct{})}
}

// add empties the trash of a private directory in the background.
func (t *trash) add(own string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	t.queue = append(t.queue, own)
	if !t.running {
		t.running = true
		t.done.Go(t.run)
	}
}

func (t *trash) run() {
	for {
		t.mu.Lock()
		if t.closed || len(t.queue) == 0 {
			t.running = false
			t.mu.Unlock()
			return
		}
		own := t.queue[0]
		t.queue = t.queue[1:]
		t.mu.Unlock()
		if err := t.empty(own); err != nil {
			t.log.Warn("cannot remove deleted repositories; trying again at the next deletion or start", "dir", own, "error",
				err)
		}
	}
}

// empty removes deleted repositories and old incomplete ones.
func (t *trash) empty(own string) error {
	var errs []error
	for _, kind := range []string{trashKind, newKind} {
		entries, err := os.ReadDir(filepath.Join(own, kind))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			errs = append(errs, err)
		}
		for _, e := range entries {
			if kind == newKind {
				if info, err := e.Info(); err != nil || time.Since(info.ModTime()) < leftoverAge {
					continue
				}
			}
			if err := t.remove(filepath.Join(own, kind, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// remove removes a directory tree until the node is closed. It does not follow links.
func (t *trash) remove(dir string) error {
	select {
	case <-t.stop:
		return nil
	default:
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return os.Remove(dir)
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if e.IsDir() {
			err = t.remove(path)
		} else {
			err = os.Remove(path)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	select {
	case <-t.stop: // the directory may have files left
		return nil
	default:
	}
	return os.Remove(dir)
}

// close stops the removal. It continues after the next start.
func (t *trash) close() {
	t.mu.Lock()
	if !t.closed {
		t.closed = true
		close(t.stop)
	}
	t.mu.Unlock()
	t.done.Wait()
}
