package storage

import (
	"context"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node/event"
	"github.com/packhorse-git/packhorse/internal/node/places"
)

// Configure has change change the settings of a repository, and describes it. Requests that begin later follow them.
// The errors are those of places.Place and of opening the repository.
func (n *Node) Configure(ctx context.Context, path git.RepoPath, change func(places.Settings) error) (d Description,
	err error) {
	defer func() { n.changedRepository("configure", path, err) }()
	h, err := n.acquireCurrent(ctx, path)
	if err != nil {
		return d, err
	}
	err = n.record(ctx, event.Configure, path, func() error {
		var changed []string
		err := h.place.Configure(ctx, func(s places.Settings) (err error) {
			changed, err = s.Change(change)
			return err
		})
		if err == nil && len(changed) == 0 {
			return errUnchanged
		}
		return err
	})
	n.release(h)
	if err != nil {
		return d, err
	}
	n.RefsChanged(path)
	return n.Describe(ctx, path)
}
