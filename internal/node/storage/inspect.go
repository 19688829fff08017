package storage

import (
	"context"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node/inspect"
	"github.com/packhorse-git/packhorse/internal/schedule/balance"
)

// Inspect calls fn for a repository; see inspect.Inspector.Call.
func (n *Node) Inspect(ctx context.Context, path git.RepoPath, caller balance.Caller,
	fn func(*inspect.Call) error) error {
	return n.withRepo(ctx, path, func(r *repo.Repo) error { return n.inspector.Call(ctx, r, caller, fn) })
}
