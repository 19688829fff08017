package places

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/process"
)

const (
	// BranchPrefix begins the full names of branches.
	BranchPrefix = "refs/heads/"
	// lockPatience is how long to wait for a lock, such as that of HEAD, which pushes to its branch hold.
	lockPatience = 2 * time.Second
	lockRetry    = 10 * time.Millisecond
)

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
	if p.Pushes != nil {
		released, err := p.Pushes.Recovery().BeginHead(h.Dir, h.Common)
		if err != nil {
			return false, err
		}
		defer released()
	}
	path := filepath.Join(h.Dir, string(git.HEAD))
	lock, err := LockFile(ctx, path)
	if err != nil {
		return false, err
	}
	defer func() {
		if !done {
			err = errors.Join(err, os.Remove(lock.Name()))
		}
	}()
	defer lock.Close()
	allowed, err := check()
	if err != nil {
		return false, err
	}
	if !allowed { // an earlier change may not have been synced
		return false, WriteError(p.Sync(h.Dir))
	}
	_, err = lock.WriteString("ref: " + string(branch) + "\n")
	if info, statErr := os.Lstat(path); statErr == nil && info.Mode().IsRegular() {
		err = errors.Join(err, lock.Chmod(info.Mode().Perm()))
	}
	if err := errors.Join(err, lock.Sync()); err != nil {
		return false, WriteError(err)
	}
	if err := os.Rename(lock.Name(), path); err != nil {
		return false, WriteError(err)
	}
	if err := p.Sync(h.Dir); err != nil {
		return true, fault.Wrap(fault.Unavailable, "HEAD was changed, but the change can be lost in a power failure", err)
	}
	return true, nil
}

// LockFile creates Git's lock file for a file of refs. It waits up to lockPatience for an existing one.
func LockFile(ctx context.Context, path string) (lock *os.File, err error) {
	return lock, lockBy(ctx, path, func() error {
		lock, err = os.OpenFile(path+".lock", os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
		return err
	})
}

// lockBy is LockFile for a way to create the lock file, which fails if that exists.
func lockBy(ctx context.Context, path string, create func() error) error {
	for deadline := time.Now().Add(lockPatience); ; {
		err := create()
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, fs.ErrExist):
			return WriteError(err)
		case time.Now().After(deadline):
			return fault.Retry(fault.Exhausted, fault.RetryLater,
				"%[1]s is locked: if no Git process runs in the repository, its administrator can remove %[1]s.lock",
				filepath.Base(path))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(lockRetry):
		}
	}
}

// writeHeadByGit has Git write HEAD into reftables, and syncs them.
func (p *dirPlace) writeHeadByGit(ctx context.Context, branch git.RefName) error {
	h := p.repo
	err := p.Runner.Run(ctx, process.Command{Class: ClassManage, Subcommand: "symbolic-ref", Repository: h.Common,
		Config: h.HooksOff(), Args: []string{
			"-c", "safe.directory=*", "-c", "core.hooksPath=" + os.DevNull, "-c", "core.fsync=reference", "--git-dir=" + h.Dir,
			"symbolic-ref", string(git.HEAD), string(branch),
		}})
	if err != nil {
		return WithCause(GitError(h.Common, err), h.Common, p.root)
	}
	return SyncTree(filepath.Join(h.Common, "reftable"))
}
