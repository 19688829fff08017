package storage

import (
	"context"
	"errors"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node/lookup"
	"github.com/packhorse-git/packhorse/internal/node/places"
)

// isReplaced reports whether an error can mean that an open repository was deleted, renamed or configured.
func isReplaced(err error) bool {
	return fault.Is(err, fault.NotFound) || errors.Is(err, places.ErrReconfigured)
}

// withRepo calls fn with the open repository at a path. If fn finds that the repository was deleted, renamed or
// configured, fn is called again with the one that has the path now.
func (n *Node) withRepo(ctx context.Context, path git.RepoPath, fn func(*repo.Repo) error) error {
	for isLast := false; ; isLast = true {
		h, err := n.acquire(ctx, path)
		if err != nil {
			return err
		}
		err = fn(h.Repo)
		isFresh := h.isFresh()
		n.release(h)
		if isLast || isFresh || !isReplaced(err) {
			return err
		}
	}
}

// valueOf is withRepo for a function with a result.
func valueOf[T any](ctx context.Context, n *Node, path git.RepoPath, fn func(*repo.Repo) (T, error)) (value T,
	err error) {
	err = n.withRepo(ctx, path, func(r *repo.Repo) error {
		value, err = fn(r)
		return err
	})
	return value, err
}

// Blob reads a blob; see lookup.Reader.Blob.
func (n *Node) Blob(ctx context.Context, path git.RepoPath, q lookup.BlobRequest,
	head func(lookup.BlobHeader) error, data func([]byte) error) error {
	return n.withRepo(ctx, path, func(r *repo.Repo) error { return n.lookups.Blob(ctx, r, q, head, data) })
}

// Tree lists a page of a directory; see lookup.Reader.Tree.
func (n *Node) Tree(ctx context.Context, path git.RepoPath, q lookup.TreeRequest) (lookup.TreePage, error) {
	return valueOf(ctx, n, path, func(r *repo.Repo) (lookup.TreePage, error) { return n.lookups.Tree(ctx, r, q) })
}

// Commit reads one commit; see lookup.Reader.Commit.
func (n *Node) Commit(ctx context.Context, path git.RepoPath, revision string) (lookup.Commit, error) {
	return valueOf(ctx, n, path, func(r *repo.Repo) (lookup.Commit, error) {
		return n.lookups.Commit(ctx, r, revision)
	})
}

// Log lists commits in batches; see lookup.Reader.Log.
func (n *Node) Log(ctx context.Context, path git.RepoPath, q lookup.LogRequest,
	send func([]lookup.Commit) error) error {
	return n.withRepo(ctx, path, func(r *repo.Repo) error { return n.lookups.Log(ctx, r, q, send) })
}

// Files lists the files of a commit, or its differences from another one; see lookup.Reader.Files.
func (n *Node) Files(ctx context.Context, path git.RepoPath, q lookup.FilesRequest,
	send func(*lookup.File) error) error {
	return n.withRepo(ctx, path, func(r *repo.Repo) error { return n.lookups.Files(ctx, r, q, send) })
}

// Behind counts the commits between two commits; see lookup.Reader.Behind.
func (n *Node) Behind(ctx context.Context, path git.RepoPath, old, new git.ObjectID,
	limit int) (int, error) {
	return valueOf(ctx, n, path, func(r *repo.Repo) (int, error) {
		return n.lookups.Behind(ctx, r, old, new, limit)
	})
}
