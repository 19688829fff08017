package storage

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/node/packcache"
	"github.com/packhorse-git/packhorse/internal/node/places"
)

// PurgeReceipt is the result of a purge.
type PurgeReceipt struct {
	places.Purged
	Started, Hidden, Ended time.Time
	CachedPacks            int // that were dropped
}

// Purge removes unreachable objects and all copies of them. From PurgeReceipt.Hidden on no request that begins can read
// them. Known and Hidden of the options are set by the node. Errors are those of places.Place.Purge.
func (n *Node) Purge(ctx context.Context, path git.RepoPath, o places.PurgeOptions) (r PurgeReceipt, err error) {
	if n.runner == nil {
		return r, fault.New(fault.Unavailable, "this node does not maintain repositories")
	}
	r.Started = time.Now()
	h, err := n.acquireAny(ctx, path)
	if err != nil {
		return r, err
	}
	defer n.release(h)
	for _, id := range o.IDs {
		if id.Format() != h.Format {
			return r, fault.New(fault.Invalid, "%s is not an object ID of the repository, whose format is %s", id, h.Format)
		}
	}
	if err := n.checkPurgeableLFS(ctx, path, o.LFS); err != nil {
		return r, err
	}
	notes, err := h.pointerNotes(ctx, o)
	if err != nil {
		return r, err
	}
	release, err := n.claimSettled(ctx, h)
	if err != nil {
		return r, err
	}
	defer release()
	drop := func() { r.CachedPacks += n.dropPacks(h.Repo) }
	run := places.Maintainer{Runner: n.runner, Log: n.log}.Run
	var outstanding []string
	o.Known, o.Hidden = h.Purged(), func(members []git.RepoPath) {
		for _, member := range members {
			n.RefsChanged(member)
			if n.index != nil && len(o.IDs) > 0 {
				if err := n.index.Purge(ctx, member, ""); err != nil {
					outstanding = append(outstanding, "search index of "+member.String()+": "+fault.Message(err))
				}
			}
		}
		drop()
		r.Hidden = time.Now()
	}
	r.Purged, err = h.place.Purge(ctx, run, o)
	if err != nil {
		return r, places.WithCause(err, h.Common, n.root)
	}
	drop()
	r.Outstanding = append(r.Outstanding, outstanding...)
	r.Notes, r.Objects = append(r.Notes, notes...), r.Objects+len(o.LFS)
	if err := n.removeLFS(ctx, o, &r.Purged); err != nil {
		return r, err
	}
	r.Ended = time.Now()
	if err := h.place.Maintain(ctx, run, places.MaintainOptions{TipPack: n.tipPack}); err != nil {
		r.Problems = append(r.Problems, "maintenance afterwards has failed: "+fault.Message(err))
	}
	n.log.Info("purged objects of a repository", "repository", path.String(), "objects", r.Objects, "files", len(r.Files),
		"seconds", r.Ended.Sub(r.Started).Seconds())
	return r, nil
}

// FindCopies inflates all packs of a repository, also in the cache, and returns the files with copies of objects.
func (n *Node) FindCopies(ctx context.Context, path git.RepoPath, o places.PurgeOptions) (x places.Search, err error) {
	if n.runner == nil {
		return x, fault.New(fault.Unavailable, "this node does not maintain repositories")
	}
	h, err := n.acquireAny(ctx, path)
	if err != nil {
		return x, err
	}
	defer n.release(h)
	var cached []string
	if n.packs != nil {
		cached = append(n.packs.Files(h.PackScope()), n.packs.Files(h.Incarnation)...)
	}
	x, err = h.place.Copies(ctx, places.Maintainer{Runner: n.runner, Log: n.log}.Run, o, cached)
	if n.index != nil && len(o.IDs) > 0 && err == nil {
		var shards []string
		shards, err = n.index.Copies(ctx, h.place.Path(), o.IDs)
		x.Copies = append(x.Copies, shards...)
	}
	if err == nil {
		err = n.findLFS(ctx, append(x.Members, path), o.LFS, &x)
	}
	return x, places.WithCause(err, h.Common, n.root)
}

// Lift lets pushes bring purged objects back.
func (n *Node) Lift(ctx context.Context, path git.RepoPath, o places.PurgeOptions) error {
	_, err := n.Configure(ctx, path, func(s places.Settings) error {
		s[repo.PurgedKey] = slices.DeleteFunc(slices.Clone(s[repo.PurgedKey]), func(value string) bool {
			id, err := git.ParseObjectID(value)
			return err == nil && slices.Contains(o.IDs, id)
		})
		s[repo.PurgedLFSKey] = slices.DeleteFunc(slices.Clone(s[repo.PurgedLFSKey]), func(value string) bool {
			id, err := lfs.ParseOID(value)
			return err == nil && slices.Contains(o.LFS, id)
		})
		return nil
	})
	return err
}

// dropPurged drops the cached packs of a repository that is opened, if objects were purged since that was done last. On
// another node, or in an earlier process, that may not have happened.
func (n *Node) dropPurged(r *repo.Repo) {
	ids := r.Purged()
	if len(ids) == 0 || n.packs == nil {
		return
	}
	known := fmt.Sprint(ids, r.Policy().Purging)
	if before, _ := n.purged.Swap(r.PackScope(), known); before != known {
		n.dropPacks(r)
	}
}

// dropPacks drops all that is cached of the objects of a repository, and returns the number of packs. Those that were
// cached before it had forks are dropped when it gets one, so that a purge in a fork does not miss them.
func (n *Node) dropPacks(r *repo.Repo) (packs int) {
	n.inspector.Forget()
	if n.packs != nil {
		packs = n.packs.Drop(r.PackScope(), packcache.Requested).Entries
		if r.Incarnation != r.PackScope() {
			packs += n.packs.Drop(r.Incarnation, packcache.Requested).Entries
		}
	}
	return packs
}
