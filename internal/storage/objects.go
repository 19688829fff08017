package storage

import (
	"context"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/lookup"
	"github.com/packhorse-git/packhorse/internal/repo"
)

// withRepo calls fn with the open repository at a path.
func (n *Node) withRepo(path git.RepoPath, fn func(*repo.Repo) error) error {
	h, err := n.acquire(path)
	if err != nil {
		return err
	}
	defer n.release(h)
	return fn(h.Repo)
}

// Blob reads a blob; see lookup.Reader.Blob.
func (n *Node) Blob(ctx context.Context, path git.RepoPath, q lookup.BlobRequest,
	head func(lookup.BlobHeader) error, data func([]byte) error) error {
	return n.withRepo(path, func(r *repo.Repo) error { return n.lookups.Blob(ctx, r, q, head, data) })
}

// Tree lists a page of a directory; see lookup.Reader.Tree.
func (n *Node) Tree(ctx context.Context, path git.RepoPath, q lookup.TreeRequest) (lookup.TreePage, error) {
	h, err := n.acquire(path)
	if err != nil {
		return lookup.TreePage{}, err
	}
	defer n.release(h)
	return n.lookups.Tree(ctx, h.Repo, q)
}

// Commit reads one commit; see lookup.Reader.Commit.
func (n *Node) Commit(ctx context.Context, path git.RepoPath, revision string) (lookup.Commit, error) {
	h, err := n.acquire(path)
	if err != nil {
		return lookup.Commit{}, err
	}
	defer n.release(h)
	return n.lookups.Commit(ctx, h.Repo, revision)
}

// Log lists commits in batches; see lookup.Reader.Log.
func (n *Node) Log(ctx context.Context, path git.RepoPath, q lookup.LogRequest,
	send func([]lookup.Commit) error) error {
	return n.withRepo(path, func(r *repo.Repo) error { return n.lookups.Log(ctx, r, q, send) })
}

// DiffStat lists the differences between two revisions in batches; see lookup.Reader.DiffStat.
func (n *Node) DiffStat(ctx context.Context, path git.RepoPath, old, new string,
	send func([]lookup.FileStat) error) error {
	return n.withRepo(path, func(r *repo.Repo) error { return n.lookups.DiffStat(ctx, r, old, new, send) })
}

// Files lists the files of a commit, or its differences from another one; see lookup.Reader.Files.
func (n *Node) Files(ctx context.Context, path git.RepoPath, q lookup.FilesRequest,
	send func(*lookup.File) error) error {
	return n.withRepo(path, func(r *repo.Repo) error { return n.lookups.Files(ctx, r, q, send) })
}

// Behind counts the commits between two commits; see lookup.Reader.Behind.
func (n *Node) Behind(ctx context.Context, path git.RepoPath, old, new git.ObjectID, limit int) (int, error) {
	h, err := n.acquire(path)
	if err != nil {
		return 0, err
	}
	defer n.release(h)
	return n.lookups.Behind(ctx, h.Repo, old, new, limit)
}
