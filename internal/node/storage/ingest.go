package storage

import (
	"context"
	"path/filepath"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node/ingest"
)

// Ingest brings a repository to a state of another repository; see ingest.Run. When it returns, every request sees the
// changes, and the watchers of the repository have been notified.
func (n *Node) Ingest(ctx context.Context, path git.RepoPath, s ingest.State) (ingest.Result, error) {
	h, err := n.acquireAny(ctx, path)
	if err != nil {
		return ingest.Result{}, err
	}
	defer n.release(h)
	if _, err := n.noteRefs(ctx, h); err != nil {
		n.log.Warn("cannot read a repository's refs before a change", "repository", path.String(), "error", err)
	}
	result, err := ingest.Run(ctx, ingest.Target{Repo: h.Repo, Place: h.place, Runner: n.runner, Log: n.log}, s)
	if err == nil && result.IsChange() {
		n.publish(ctx, h, path)
	}
	return result, err
}

// RemoveIngestLeftovers is ingest.RemoveLeftovers for a repository that Ingest does not use.
func (n *Node) RemoveIngestLeftovers(path git.RepoPath) error {
	h, err := n.acquireAny(context.Background(), path)
	if err != nil {
		return err
	}
	defer n.release(h)
	release, err := n.claims.Claim(h.Common)
	if err != nil {
		return err
	}
	defer release()
	return ingest.RemoveLeftovers(h.Common, n.log)
}

// Root returns the real path of the root directory.
func (n *Node) Root() string { return n.root }

// Directory returns the real path of a repository's directory. The errors are those of opening it.
func (n *Node) Directory(path git.RepoPath) (string, error) {
	h, err := n.acquireAny(context.Background(), path)
	if err != nil {
		return "", err
	}
	defer n.release(h)
	return filepath.Clean(h.Dir), nil
}
