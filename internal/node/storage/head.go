package storage

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
)

const (
	branchPrefix = "refs/heads/"
	// lockPatience is how long to wait for a lock, such as that of HEAD, which pushes to its branch hold.
	lockPatience = 2 * time.Second
	lockRetry    = 10 * time.Millisecond
	// danglingInterval is how often the dangling HEAD of one repository is logged.
	danglingInterval = time.Hour
)

// SetHead sets HEAD to a branch, given by its full name, and reports whether that branch exists. If there is no error,
// the change is on disk and later requests see it. Errors: Invalid if the name is not a branch's, Exhausted while HEAD
// is locked, and those of opening and of writing to the repository.
func (n *Node) SetHead(ctx context.Context, path git.RepoPath, branch git.RefName) (exists bool, err error) {
	defer func() { n.changedRepository("set_head", path, err, "branch", string(branch)) }()
	if !strings.HasPrefix(string(branch), branchPrefix) {
		return false, fault.New(fault.Invalid, "HEAD: got %q, want a branch, refs/heads/NAME", fault.Short(branch))
	}
	h, err := n.acquire(ctx, path)
	if err != nil {
		return false, err
	}
	defer n.release(h)
	if _, err := h.place.SetHead(ctx, branch, nil); err != nil {
		return false, err
	}
	n.RefsChanged(path)
	snap, err := h.Refs.SnapshotOf(ctx, nil)
	if err != nil {
		return false, err
	}
	_, exists, err = snap.Unhidden().Lookup(branch)
	return exists, err
}

// SetHead implements Place. It calls check while it holds Git's lock of HEAD. For reftables only Git can take the lock,
// so check is called before.
func (p *dirPlace) SetHead(ctx context.Context, branch git.RefName, check func() (bool, error)) (done bool,
	err error) {
	h := p.repo
	if check == nil {
		check = func() (bool, error) { return true, nil }
	}
	if format, _ := h.Config().Get("extensions.refstorage"); format == "reftable" {
		if done, err := check(); !done || err != nil {
			return false, err
		}
		return true, p.writeHeadByGit(ctx, branch)
	}
	if p.pushes != nil {
		released, err := p.pushes.Recovery().BeginHead(h.Dir, h.Common)
		if err != nil {
			return false, err
		}
		defer released()
	}
	path := filepath.Join(h.Dir, string(git.HEAD))
	lock, err := lockFile(ctx, path)
	if err != nil {
		return false, err
	}
	defer func() {
		if !done {
			err = errors.Join(err, os.Remove(lock.Name()))
		}
	}()
	defer lock.Close()
	if allowed, err := check(); !allowed || err != nil {
		return false, err
	}
	_, err = lock.WriteString("ref: " + string(branch) + "\n")
	if info, statErr := os.Lstat(path); statErr == nil && info.Mode().IsRegular() {
		err = errors.Join(err, lock.Chmod(info.Mode().Perm()))
	}
	if err := errors.Join(err, lock.Sync()); err != nil {
		return false, writeError(err)
	}
	if err := os.Rename(lock.Name(), path); err != nil {
		return false, writeError(err)
	}
	if err := p.sync(h.Dir); err != nil {
		return true, fault.Wrap(fault.Unavailable, "HEAD was changed, but the change can be lost in a power failure", err)
	}
	return true, nil
}

// lockFile creates Git's lock file for a file of refs. It waits up to lockPatience for an existing one.
func lockFile(ctx context.Context, path string) (*os.File, error) {
	for deadline := time.Now().Add(lockPatience); ; {
		lock, err := os.OpenFile(path+".lock", os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
		switch {
		case err == nil:
			return lock, nil
		case !errors.Is(err, fs.ErrExist):
			return nil, writeError(err)
		case time.Now().After(deadline):
			return nil, fault.Retry(fault.Exhausted, fault.RetryLater,
				"%[1]s is locked: if no Git process runs in the repository, its administrator can remove %[1]s.lock",
				filepath.Base(path))
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(lockRetry):
		}
	}
}

// writeHeadByGit has Git write HEAD into reftables, and syncs them.
func (p *dirPlace) writeHeadByGit(ctx context.Context, branch git.RefName) error {
	h := p.repo
	if p.runner == nil {
		return fault.New(fault.Unavailable, "this node does not change repositories")
	}
	err := runGit(ctx, p.runner, process.Command{Class: ClassManage, Subcommand: "symbolic-ref", Repository: h.Common,
		Config: h.HooksOff(), Args: []string{
			"-c", "safe.directory=*", "-c", "core.hooksPath=" + os.DevNull, "-c", "core.fsync=reference", "--git-dir=" + h.Dir,
			"symbolic-ref", string(git.HEAD), string(branch),
		}})
	if err != nil {
		return withCause(gitError(h.Common, err), h.Common, p.root)
	}
	return syncTree(filepath.Join(h.Common, "reftable"))
}

// isUnborn reports whether HEAD names a branch that does not exist, not even as a hidden ref.
func isUnborn(snap *refs.Snapshot) bool {
	head := snap.Unhidden().Head()
	return head.Target != "" && head.ID.IsZero()
}

// isEmpty reports whether HEAD is unborn and there is no branch at all.
func isEmpty(snap *refs.Snapshot) (bool, error) {
	if !isUnborn(snap) {
		return false, nil
	}
	empty := true
	err := snap.Unhidden().Each(branchPrefix, func(refs.Ref) error {
		empty = false
		return refs.ErrStop
	})
	return empty, err
}

// adoptHead sets the unborn HEAD of a repository to one of the branches that its first push created. It does nothing if
// HEAD's own branch is among them. If several pushes are first, one of them does so.
func (n *Node) adoptHead(ctx context.Context, h *handle, path git.RepoPath, updates []receivepack.Update) {
	branch := receivepack.FirstBranch(updates, "")
	if branch == "" {
		return
	}
	done, err := h.place.SetHead(ctx, branch, func() (bool, error) {
		snap, err := h.Refs.Snapshot(ctx)
		return err == nil && isUnborn(snap), err
	})
	if done || err != nil {
		n.changedRepository("set_head", path, err, "branch", string(branch))
	}
}

// logDangling logs that clones of a repository check out nothing although it has branches. It does so once an hour for
// each repository.
func (n *Node) logDangling(h *handle, path git.RepoPath) {
	now := time.Now().UnixNano()
	last := h.dangling.Load()
	if last != 0 && time.Duration(now-last) < danglingInterval || !h.dangling.CompareAndSwap(last, now) {
		return
	}
	n.log.Warn("HEAD of a repository names a branch that does not exist", "repository", path.String())
}
