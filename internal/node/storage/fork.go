package storage

import (
	"cmp"
	"context"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node/event"
	"github.com/packhorse-git/packhorse/internal/node/packcache"
	"github.com/packhorse-git/packhorse/internal/node/places"
)

// minLifetime is the shortest lifetime of a fork.
const minLifetime = time.Minute

// Fork creates a repository with refs and objects of another one. Both share the space of their objects. The errors are
// those of Create, and those of opening the source.
func (n *Node) Fork(ctx context.Context, source, target git.RepoPath, o places.ForkOptions) (d Description, err error) {
	defer func() { n.changedRepository("fork", source, err, "to", target.String()) }()
	if !requestID.MatchString(o.RequestID) {
		return d, invalidRequestID(o.RequestID)
	}
	if o.Lifetime != 0 && o.Lifetime < minLifetime {
		return d, fault.New(fault.Invalid, "invalid lifetime %v: want at least %v, or none", o.Lifetime, minLifetime)
	}
	name, err := newPath(target, false)
	if err != nil {
		return d, err
	}
	h, err := n.acquire(ctx, source) // it refuses a mirror that must not be read
	if err != nil {
		return d, err
	}
	defer n.release(h)
	if h.place.MirrorMarks().Any() {
		return d, fault.New(fault.Denied, "%s is a mirror: fork the repository at its origin, or make an ordinary "+
			"repository of it (packhorse mirror detach)", source)
	}
	err = n.record(ctx, event.Create, name, func() error {
		return n.places.Fork(ctx, n.places.Name(source), n.places.Name(name), o)
	})
	if places.IsChanged(err) {
		if n.packs != nil { // the source may have joined a network: its packs have another scope from now on
			n.packs.Drop(h.Incarnation, packcache.Requested)
		}
		lfsErr := n.linkLFS(ctx, h, name)
		err = cmp.Or(err, fault.Wrap(fault.KindOf(lfsErr),
			"the fork was created, but may lack objects of Git LFS; repeat the request with its request ID", lfsErr))
	}
	return n.describeNew(ctx, target, name, err)
}

// Detach gives a fork, or a repository that has forks, its own copy of all its objects.
func (n *Node) Detach(ctx context.Context, path git.RepoPath) (err error) {
	defer func() { n.changedRepository("detach", path, err) }()
	if n.runner == nil {
		return fault.New(fault.Unavailable, "this node does not maintain repositories")
	}
	return n.places.Detach(ctx, n.places.Name(path), places.Maintainer{Runner: n.runner, Log: n.log}.Run)
}
