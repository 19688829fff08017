package storage

import (
	"context"
	"errors"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node/lookup"
)

// errTooLarge ends the reading of a file that exceeds the limit.
var errTooLarge = errors.New("file exceeds the limit")

// File returns a file of a commit that a visible ref reaches. Other commits are NotFound, like repositories and files
// that do not exist. The error is Invalid if the path is not a file. A file of more than limit bytes is returned
// without its content.
func (n *Node) File(ctx context.Context, path git.RepoPath, commit git.ObjectID, name string,
	limit int64) (file git.File, err error) {
	h, err := n.acquire(ctx, path)
	if err != nil {
		return file, err
	}
	defer n.release(h)
	done, err := h.Hold(ctx)
	if err != nil {
		return file, err
	}
	defer done()
	if commit.Format() != h.Repo.Format {
		return file, errNoCommit(commit)
	}
	if err := h.Repo.Refresh(); err != nil {
		return file, err
	}
	typ, _, err := h.Repo.Objects.Header(commit)
	if fault.Is(err, fault.NotFound) || err == nil && typ != git.Commit {
		return file, errNoCommit(commit)
	}
	if err != nil {
		return file, err
	}
	if visible, err := n.server.Visible(ctx, h.Repo, n.walk(ctx, ""), commit); err != nil {
		return file, err
	} else if !visible {
		return file, errNoCommit(commit)
	}
	head := func(b lookup.BlobHeader) error {
		file.Size, file.Mode = b.Size, b.Mode
		if b.Size > limit {
			return errTooLarge
		}
		file.Data = make([]byte, 0, b.Size)
		return nil
	}
	data := func(p []byte) error {
		file.Data = append(file.Data, p...)
		return nil
	}
	q := lookup.BlobRequest{In: lookup.PathIn{Revision: commit.String(), Path: name}}
	if err := n.lookups.Blob(ctx, h.Repo, q, head, data); err != nil && err != errTooLarge {
		return git.File{}, err
	}
	return file, nil
}

func errNoCommit(id git.ObjectID) error {
	return fault.New(fault.NotFound, "no ref reaches a commit %s", id)
}
