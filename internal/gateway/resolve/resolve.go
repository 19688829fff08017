// Package resolve finds the object that a revision of a repository names, through tiers: the memory of this process,
// Redis, and the node that owns the repository. Redis is only for gateways whose nodes are in other processes.
//
// The node's response is the truth. Cached answers carry the git.Version for which they are valid, and the node's
// events end them. An answer that is older than the latest event is never returned. If events do not arrive, an answer
// is valid for the TTL.
package resolve

import (
	"context"

	"github.com/packhorse-git/packhorse/internal/node"
)

// Resolver answers questions. It is safe for concurrent use.
type Resolver interface {
	// Resolve answers questions in their order. After an error there are no results.
	Resolve(ctx context.Context, questions []node.Question) ([]node.Result, error)
}
