package places

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/disk"
)

// ErrReconfigured is the error of a repository that was opened before another node changed its settings. The caller may
// open it again.
var ErrReconfigured = fault.Retry(fault.Unavailable, fault.RetrySoon,
	"the settings of the repository were changed meanwhile; try again")

// unsyncedError is the error of a repository that was created or deleted, which a power failure can take back.
type unsyncedError struct{ error }

func (e *unsyncedError) Unwrap() error { return e.error }

// IsChanged reports whether an operation with this error has changed a repository, though perhaps not durably.
func IsChanged(err error) bool {
	_, isUnsynced := errors.AsType[*unsyncedError](err)
	return err == nil || isUnsynced
}

// WriteError returns the error of a write below the root with its cause for the operator. An error with a kind keeps
// it.
func WriteError(err error) error {
	if _, ok := errors.AsType[*fault.Error](err); ok || err == nil {
		return err
	}
	switch {
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return fault.Wrap(fault.Denied, "the node has no permission to write below its root", err)
	case errors.Is(err, syscall.ENAMETOOLONG):
		return fault.Wrap(fault.Invalid, "path too long for the file system", err)
	}
	if disk.IsFull(err) {
		return fault.Wrap(fault.Unavailable, "the disk below the node's root is full", err)
	}
	return fault.Wrap(fault.Unavailable, "cannot write below the root", err)
}

// GitError returns the error of a Git command that failed to write below dir. Git reports a full disk in many ways;
// the returned error names it as the cause.
func GitError(dir string, failed error) error {
	if !fault.Is(failed, fault.Internal) {
		return failed
	}
	text := strings.ToLower(failed.Error())
	for _, full := range []string{syscall.ENOSPC.Error(), syscall.EDQUOT.Error(), "out of diskspace" /* Git's own */} {
		if strings.Contains(text, full) {
			return WriteError(errors.Join(syscall.ENOSPC, errors.New(failed.Error())))
		}
	}
	probe, err := os.CreateTemp(dir, "probe")
	if err == nil {
		_, err = probe.Write(make([]byte, probeBytes))
		err = errors.Join(err, probe.Close(), os.Remove(probe.Name()))
	}
	if disk.IsFull(err) {
		return WriteError(errors.Join(err, errors.New(failed.Error())))
	}
	return failed
}

// probeBytes is the size of a test file: more than the largest file of a new repository.
const probeBytes = 64 << 10

// WithCause returns an error whose message for the administrator has the cause, for example the messages of Git,
// without the paths of the repository and of the root.
func WithCause(err error, dir, root string) error {
	e, ok := errors.AsType[*fault.Error](err)
	if !ok || e.Err == nil {
		return err
	}
	text := strings.ReplaceAll(strings.ReplaceAll(e.Error(), dir+"/", ""), root+"/", "")
	return &fault.Error{Kind: e.Kind, Msg: text, RetryAfter: e.RetryAfter, CallerLimit: e.CallerLimit}
}
