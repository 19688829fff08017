package storage

import (
	"cmp"
	"context"
	"errors"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/event"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
)

// record makes a change of a repository and records its event.
func (n *Node) record(ctx context.Context, kind event.Kind, path git.RepoPath, change func() error) error {
	return n.recordAs(ctx, &event.Event{Kind: kind, Repository: event.NameOf(path)}, path, change)
}

// errUnchanged is the error of a change that turns out not to be necessary. It succeeds, and has no event.
var errUnchanged = errors.New("nothing to change")

// recordAs is record with an event that has more. path is where the repository is before or after the change.
func (n *Node) recordAs(ctx context.Context, e *event.Event, path git.RepoPath, change func() error) (err error) {
	defer func() {
		if errors.Is(err, errUnchanged) {
			err = nil
		}
	}()
	if n.events == nil {
		return change()
	}
	e.Actor = git.Text(node.ActorOf(ctx))
	if e.Incarnation = n.versionOf(ctx, path).Incarnation; e.Incarnation != "" && e.Kind == event.Create {
		return change() // it fails, or was made before by a request with the same ID
	}
	var result error
	err = n.events.Change(e, func() error {
		if result = change(); !places.IsChanged(result) {
			return result
		}
		e.Incarnation = cmp.Or(e.Incarnation, n.versionOf(ctx, path).Incarnation)
		return nil
	})
	return cmp.Or(result, err)
}

// Classify sets the kinds of updates that were made; see receivepack.Server.
func (n *Node) Classify(ctx context.Context, path git.RepoPath, updates []receivepack.Update) ([]receivepack.Update,
	error) {
	h, snap, _, err := n.snapshot(ctx, path)
	if err != nil || n.pushes == nil {
		return updates, err
	}
	defer n.release(h)
	return n.pushes.Classify(ctx, receivepack.Target{Repo: h.Repo, Path: path}, snap, updates), nil
}

// Shown returns the incarnation of the repository at a path, and whether a ref of a name is hidden there. It returns ""
// if the repository cannot be opened.
func (n *Node) Shown(ctx context.Context, path git.RepoPath) (incarnation string, hides func(git.RefName) bool) {
	h, snap, version, err := n.latestSnapshot(ctx, path)
	if err != nil {
		return "", nil
	}
	n.release(h)
	return version.Incarnation, snap.Hides
}
