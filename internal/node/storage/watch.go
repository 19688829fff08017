package storage

import (
	"context"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node/watch"
)

// Watch reports changes of refs; see watch.Hub.
func (n *Node) Watch(ctx context.Context, from []watch.From, send func(watch.Event) error) error {
	return n.hub.Watch(ctx, from, send)
}

// CheckWatches checks a watched repository, of which this node knows a change, in the background.
func (n *Node) CheckWatches(path git.RepoPath) { n.hub.Check(path) }

// watchState is snapshot or latestSnapshot for watches, which keep the repository open.
func (n *Node) watchState(ctx context.Context, path git.RepoPath, isKnown bool) (watch.State, error) {
	snapshot := n.snapshot
	if isKnown {
		snapshot = n.latestSnapshot
	}
	h, snap, version, err := snapshot(ctx, path)
	if err != nil {
		return watch.State{}, err
	}
	name := n.places.Name(path)
	n.handles.pin(name, h, 1)
	return watch.State{Refs: snap, Version: version, Purges: h.PurgeMark(), Release: func() {
		n.handles.pin(name, h, -1)
		n.release(h)
	}}, nil
}

// OnChange sets a function that is called with each repository whose refs the node itself changes, before the client
// gets its response. The function must not block.
func (n *Node) OnChange(f func(git.RepoPath)) { n.listener.Store(&f) }

// RefsChanged is called when the node itself has changed a repository's refs, or created or deleted it. It notifies
// watchers and starts the work that follows a change, in the background.
func (n *Node) RefsChanged(path git.RepoPath) { n.refsChanged(path) }

// refsChanged is RefsChanged. It returns a channel for warmer.wait.
func (n *Node) refsChanged(path git.RepoPath) (prepared <-chan struct{}) {
	if f := n.listener.Load(); f != nil {
		(*f)(path)
	}
	if n.warmer != nil { // first, because clients are going to fetch
		prepared = n.warmer.changed(path)
	}
	if n.maintainer != nil {
		n.maintainer.changed(path)
	}
	n.hub.Check(path)
	return prepared
}
