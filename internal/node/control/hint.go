package control

import (
	"context"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1"
)

// Store is the object store that has a node's repositories. It is safe for concurrent use.
type Store interface {
	// StoreID returns the ID that all nodes of the store report with their health.
	StoreID() string
	// Hint is called when another node may have written a record of a repository. It does not block: the record and its
	// packs are fetched in the background. It reports whether the packs of an earlier record are on the disk.
	Hint(repo git.RepoPath, record uint64) (isHeld bool)
}

// Hint passes a hint to the store.
func (s nodeService) Hint(_ context.Context,
	r *connect.Request[internalv1.HintRequest]) (*connect.Response[internalv1.HintResponse], error) {
	return respond(r.Msg, func(path git.RepoPath) (*internalv1.HintResponse, error) {
		return &internalv1.HintResponse{Held: s.Store != nil && s.Store.Hint(path, r.Msg.GetRecord())}, nil
	})
}
