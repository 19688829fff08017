package storage

import (
	"context"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node/packcache"
)

// DropPacks removes the packs of a repository from the pack cache, or all packs if path is nil. The next fetches verify
// the packs of the repository again. Errors: Invalid if the node has no cache, and those of opening the repository.
func (n *Node) DropPacks(ctx context.Context, path *git.RepoPath) (packcache.Dropped, error) {
	if n.packs == nil {
		return packcache.Dropped{}, fault.New(fault.Invalid, "this node has no pack cache (cache.enabled = false)")
	}
	if n.verifier != nil {
		n.verifier.Forget()
	}
	if path == nil {
		dropped := n.packs.DropAll()
		n.log.Info("dropped cached packs", "packs", dropped.Entries, "bytes", dropped.Bytes)
		return dropped, nil
	}
	h, err := n.acquire(ctx, *path)
	if err != nil {
		return packcache.Dropped{}, err
	}
	defer n.release(h)
	dropped := n.packs.Drop(h.PackScope(), packcache.Requested)
	n.log.Info("dropped cached packs", "repository", path.String(), "packs", dropped.Entries, "bytes", dropped.Bytes)
	return dropped, nil
}
