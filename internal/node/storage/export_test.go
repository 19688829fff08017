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

// Hang makes a check of a watched repository last until the result is called.
func (n *Node) Hang(path git.RepoPath) (end func()) {
	n.hub.mu.Lock()
	w := n.hub.repos[path]
	n.hub.mu.Unlock()
	_ = w.turn.Acquire(context.Background(), 1)
	return func() { w.turn.Release(1) }
}

// Rounds calls fn for a number of repositories, as a round does.
func (n *Node) Rounds(number int, fn func(i int)) {
	all := make([]*watchedRepo, number)
	at := make(map[*watchedRepo]int)
	for i := range all {
		all[i] = new(watchedRepo)
		at[all[i]] = i
	}
	n.hub.running.Add(1)
	defer n.hub.running.Done()
	n.hub.forEach(n.hub.ctx, all, func(w *watchedRepo) { fn(at[w]) })
}
