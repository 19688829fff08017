package storage

import (
	"context"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node/lookup"
)

// LastCommits finds the last commit of each entry of a directory; see lookup.Reader.LastCommits.
func (n *Node) LastCommits(ctx context.Context, path git.RepoPath, in lookup.PathIn,
	send func([]lookup.LastCommit) error) error {
	return n.withRepo(ctx, path, func(r *repo.Repo) error { return n.lookups.LastCommits(ctx, r, in, send) })
}

// MergeBase finds the best common ancestors of commits; see lookup.Reader.MergeBase.
func (n *Node) MergeBase(ctx context.Context, path git.RepoPath, revisions []string) ([]git.ObjectID, error) {
	return valueOf(ctx, n, path, func(r *repo.Repo) ([]git.ObjectID, error) {
		return n.lookups.MergeBase(ctx, r, revisions)
	})
}

// AheadBehind counts the commits that only one of two reaches; see lookup.Reader.AheadBehind.
func (n *Node) AheadBehind(ctx context.Context, path git.RepoPath, pairs []lookup.Pair) (
	[]lookup.Difference, error) {
	return valueOf(ctx, n, path, func(r *repo.Repo) ([]lookup.Difference, error) {
		return n.lookups.AheadBehind(ctx, r, pairs)
	})
}

// Contains lists the refs that reach commits; see lookup.Reader.Contains.
func (n *Node) Contains(ctx context.Context, path git.RepoPath, q lookup.ContainsRequest) (
	[]lookup.Containing, error) {
	return valueOf(ctx, n, path, func(r *repo.Repo) ([]lookup.Containing, error) {
		return n.lookups.Contains(ctx, r, q)
	})
}
