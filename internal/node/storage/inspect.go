package storage

import (
	"context"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node/inspect"
)

// Patch compares two revisions; see inspect.Inspector.Patch.
func (n *Node) Patch(ctx context.Context, path git.RepoPath, q inspect.PatchRequest,
	send func(*inspect.File) error) (sum inspect.Summary, err error) {
	err = n.withRepo(ctx, path, func(r *repo.Repo) error {
		sum, err = n.inspector.Patch(ctx, r, q, send)
		return err
	})
	return sum, err
}

// FormatPatch formats commits as mails; see inspect.Inspector.FormatPatch.
func (n *Node) FormatPatch(ctx context.Context, path git.RepoPath, q inspect.SeriesRequest,
	send func([]byte) error) error {
	return n.withRepo(ctx, path, func(r *repo.Repo) error { return n.inspector.FormatPatch(ctx, r, q, send) })
}

// RangeDiff compares two versions of a series of commits; see inspect.Inspector.RangeDiff.
func (n *Node) RangeDiff(ctx context.Context, path git.RepoPath, q inspect.RangeRequest,
	send func([]byte) error) error {
	return n.withRepo(ctx, path, func(r *repo.Repo) error { return n.inspector.RangeDiff(ctx, r, q, send) })
}

// Blame finds the origin of the lines of a file; see inspect.Inspector.Blame.
func (n *Node) Blame(ctx context.Context, path git.RepoPath, q inspect.BlameRequest,
	send func(*inspect.Hunk) error) error {
	return n.withRepo(ctx, path, func(r *repo.Repo) error { return n.inspector.Blame(ctx, r, q, send) })
}
