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

// Removal says which repository Delete removes.
type Removal struct {
	Incarnation string // only if it still is this one; "": whichever
	Force       bool   // though other repositories borrow its objects
}

// Delete removes a bare repository. Its path is free when this returns; its files go in the background, and if the node ends before that,
// after its next start. Who fetches from it meanwhile may get an error.
//
// Refused (Denied) is what others need or what is more than a bare repository: one that other repositories below the root borrow from,
// unless forced; one with linked worktrees, with extensions.preciousObjects, a ".git" directory with the work tree around it, or a link.
// Other errors: NotFound, also for another incarnation; Exhausted while it is maintained; Unavailable if the search for borrowers cannot be
// finished.
func (n *Node) Delete(ctx context.Context, path git.RepoPath, r Removal) (err error) {
	defer func() { n.changedRepository("delete", path, err) }()
	if !r.Force {
		h, err := n.removable(path, r)
		if err != nil {
			return err
		}
		dir := h.dir
		n.release(h)
		if err := n.checkBorrowers(ctx, dir); err != nil { // not while making is held: it may take long
			return err
		}
	}
	select {
	case n.making <- struct{}{}:
		defer func() { <-n.making }()
	case <-ctx.Done():
		return ctx.Err()
	}
	h, err := n.removable(path, r)
	if err != nil {
		return err
	}
	defer n.release(h)
	done, err := n.claim(h.Common)
	if err != nil {
		return err
	}
	defer done()
	own, err := n.discard(h.dir)
	if err != nil {
		return cannotMake(err)
	}
	n.forget(h.dir)
	n.trash.sweep(own)
	n.RefsChanged(path)
	if err := n.sync(filepath.Dir(h.dir)); err != nil {
		return fault.Wrap(fault.Unavailable, "the repository is deleted, but may be there again if the machine fails now", err)
	}
	return nil
}

// removable is the repository at a path if it may be removed, borrowers aside. The caller releases it.
func (n *Node) removable(path git.RepoPath, r Removal) (*handle, error) {
	h, err := n.acquire(path)
	if err != nil {
		return nil, err
	}
	if r.Incarnation != "" && h.incarnation() != r.Incarnation {
		err = fault.New(fault.NotFound, "there is another repository now, of another incarnation")
	} else {
		err = deletable(h)
	}
	if err != nil {
		n.release(h)
		return nil, err
	}
	return h, nil
}

// deletable tells what a repository's directory is needed for besides.
func deletable(h *handle) error {
	info, err := os.Lstat(h.path)
	switch {
	case err != nil:
		return fault.Wrap(fault.NotFound, "the repository is gone", err)
	case !info.IsDir() || h.Common != h.Dir || h.Dir != h.dir:
		return fault.New(fault.Denied, "the path is a link to a repository, or a worktree of one; it is for its operator to delete")
	case filepath.Base(h.dir) == ".git":
		return fault.New(fault.Denied, "the repository has a work tree; it is for its operator to delete")
	}
	if precious, err := h.Config().Bool("extensions.preciousobjects", false); err != nil || precious {
		return fault.New(fault.Denied, "the repository's objects are precious (extensions.preciousObjects); others may borrow them")
	}
	worktrees, err := os.ReadDir(filepath.Join(h.dir, "worktrees"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fault.Wrap(fault.Unavailable, "cannot look at the repository's worktrees", err)
	}
	if len(worktrees) > 0 {
		return fault.New(fault.Denied, "the repository has linked worktrees; remove them first (git worktree remove)")
	}
	return nil
}

// discard moves a repository's directory out of the way, in one step, and tells which own directory has it now. The caller has Node.making.
func (n *Node) discard(dir string) (own string, err error) {
	for _, parent := range []string{n.root, filepath.Dir(dir)} {
		if own, err = n.own(parent); err != nil {
			return "", err
		}
		to := filepath.Join(own, trashKind)
		if err = os.MkdirAll(to, 0o700); err == nil {
			err = os.Rename(dir, filepath.Join(to, rand.Text())) // in no directory of its own, which a sweep could take away before
		}
		if !errors.Is(err, syscall.EXDEV) { // else its own file system has to take it
			break
		}
	}
	return own, err
}

// forget drops all handles of a directory. Whoever has one goes on with it, and will not find its files.
func (n *Node) forget(dir string) {
	n.mu.Lock()
	delete(n.opened, dir)
	var dropped []*handle
	for path, h := range n.handles {
		if h.dir == dir {
			n.remove(path, h)
			dropped = append(dropped, h)
		}
	}
	n.mu.Unlock()
	for _, h := range dropped {
		n.release(h)
	}
}

// leftOver is how old something half made has to be before it is taken for what a node left that is no more.
const leftOver = time.Hour

// trash removes what was deleted, one thing after the other.
type trash struct {
	log     *slog.Logger
	metrics *Metrics

	mu      sync.Mutex
	queue   []string // own directories to sweep
	running bool
	closed  bool
	stop    chan struct{}
	done    sync.WaitGroup
}

func newTrash(log *slog.Logger, m *Metrics) *trash {
	return &trash{log: log, metrics: m, stop: make(chan struct{})}
}

// sweep removes what is in an own directory's trash, in the background.
func (t *trash) sweep(own string) {
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
			t.log.Warn("cannot remove deleted repositories; the next deletion or start tries again", "dir", own, "error", err)
		}
	}
}

// empty removes what is in the trash, and what was begun long ago and is not in its place yet.
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
		for i, e := range entries {
			if kind == trashKind {
				t.metrics.trash.Set(float64(len(entries) - i))
			} else if info, err := e.Info(); err != nil || time.Since(info.ModTime()) < leftOver {
				continue
			}
			if err := t.remove(filepath.Join(own, kind, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
		}
	}
	if len(errs) == 0 {
		t.metrics.trash.Set(0)
	}
	return errors.Join(errs...)
}

// remove removes a directory with all that is in it, until the node is closed. No link is followed.
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
	case <-t.stop: // something may be left
		return nil
	default:
	}
	return os.Remove(dir)
}

// close ends what runs. What is left is removed after the next start.
func (t *trash) close() {
	t.mu.Lock()
	if !t.closed {
		t.closed = true
		close(t.stop)
	}
	t.mu.Unlock()
	t.done.Wait()
}
