package storage

import (
	"context"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node/write"
)

// Write makes a change; see package write. When it returns without an error, the change is durable and every request
// sees it. Errors: those of Change.Build; Aborted if a ref has another value than expected; Denied by a rule or hook;
// Invalid; Full; Unavailable.
func (n *Node) Write(ctx context.Context, path git.RepoPath, c write.Change) (write.Result, error) {
	return write.Result{}, fault.New(fault.Unavailable, "this server makes no changes by calls")
}
