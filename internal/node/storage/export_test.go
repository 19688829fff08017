package storage

import (
	"context"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node/places"
)

// For tests alone: what is hard to bring about from outside.

// FailSync lets all further syncs of directories fail.
func (n *Node) FailSync(err error) {
	n.places.(*places.Directories).Sync = func(string) error { return err }
}

// HoldWalks takes all slots of walks for those who wait, until the result is called.
func (n *Node) HoldWalks() (release func()) {
	var all []func()
	for n.walks.InUse() < n.walks.Size() {
		one, _, _ := n.walks.Acquire(context.Background(), "")
		all = append(all, one)
	}
	return func() {
		for _, one := range all {
			one()
		}
	}
}

// Walks returns the number of callers in the queue for a slot.
func (n *Node) Walks() int { return n.walks.Queued() }

// WaitingChanges returns the number of changes that wait for a batch.
func (n *Node) WaitingChanges(path git.RepoPath) int {
	n.writes.mu.Lock()
	defer n.writes.mu.Unlock()
	if w := n.writes.byPath[n.places.Name(path)]; w != nil {
		return len(w.waiting)
	}
	return 0
}
