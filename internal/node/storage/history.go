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
func (n *Node) MergeBase(ctx context.Context, path git.RepoPath, revisions []string) (bases []git.ObjectID, err error) {
	err = n.withRepo(ctx, path, func(r *repo.Repo) error {
		bases, err = n.lookups.MergeBase(ctx, r, revisions)
		return err
	})
	return bases, err
}

// AheadBehind counts the commits that only one of two reaches; see lookup.Reader.AheadBehind.
func (n *Node) AheadBehind(ctx context.Context, path git.RepoPath, pairs []lookup.Pair) (
	results []lookup.Difference, err error) {
	err = n.withRepo(ctx, path, func(r *repo.Repo) error {
		results, err = n.lookups.AheadBehind(ctx, r, pairs)
		return err
	})
	return results, err
}

// Contains lists the refs that reach commits; see lookup.Reader.Contains.
func (n *Node) Contains(ctx context.Context, path git.RepoPath, q lookup.ContainsRequest) (
	results []lookup.Containing, err error) {
	err = n.withRepo(ctx, path, func(r *repo.Repo) error {
		results, err = n.lookups.Contains(ctx, r, q)
		return err
	})
	return results, err
}
