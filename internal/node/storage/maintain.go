package storage

import (
	"context"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node/places"
)

// MaintenanceResult is the effect of maintenance.
type MaintenanceResult struct {
	Before, After pack.Counts
	Took          time.Duration
}

// Maintain repacks a repository geometrically (git-repack(1), --geometric). It writes a multi-pack-index, a bitmap and
// its commit-graph, packs its refs, and makes the tip pack. The Git commands stop when ctx ends. Readers are not
// disturbed.
//
// Unreachable objects are kept: only copies of objects that are in another pack are removed. In a repository with
// alternates only its own objects are repacked, without a bitmap. With extensions.preciousObjects no pack is removed.
// Reftables are not compacted; Git does that.
//
// Files are removed only after their replacements are on disk, also for refs.
//
// The repository's configuration cannot make Git run programs; see package process. Errors: Exhausted while the
// repository is being maintained or deleted; those of opening it and of Git, with what Git reported.
func (n *Node) Maintain(ctx context.Context, path git.RepoPath) (MaintenanceResult, error) {
	if n.runner == nil {
		return MaintenanceResult{}, fault.New(fault.Unavailable, "this node does not maintain repositories")
	}
	h, err := n.acquireAny(ctx, path)
	if err != nil {
		return MaintenanceResult{}, err
	}
	defer n.release(h)
	m, err := n.maintainHandle(ctx, h, path, true)
	return m, places.WithCause(err, h.Common, n.root)
}

// maintainHandle is Maintain for an open repository. refs reports whether to pack its refs.
func (n *Node) maintainHandle(ctx context.Context, h *handle, path git.RepoPath, refs bool) (m MaintenanceResult,
	err error) {
	start := time.Now()
	defer func() { m.Took = time.Since(start) }()
	release, err := n.claims.Claim(h.Common)
	if err != nil {
		return m, err
	}
	defer release()
	if m.Before, err = h.place.Counts(ctx); err != nil {
		return m, err
	}
	if err := h.place.Maintain(ctx, places.Maintainer{Runner: n.runner, Log: n.log}.Run,
		places.MaintainOptions{PackRefs: refs, TipPack: n.tipPack}); err != nil {
		return m, err
	}
	if m.After, err = h.place.Counts(ctx); err != nil {
		return m, err
	}
	n.log.Info("maintained a repository", "repository", path.String(), "packs_before", m.Before.Packs,
		"loose_before", m.Before.Loose, "packs", m.After.Packs, "seconds", time.Since(start).Seconds())
	return m, nil
}

// Collect removes objects of a repository that no ref, reflog or index reaches and that are older than a time, with
// maintenance. Readers are not disturbed, and pushes wait for a moment. Errors are those of places.Place.Collect and
// Maintain.
func (n *Node) Collect(ctx context.Context, path git.RepoPath, o places.CollectOptions) (done places.Collected,
	err error) {
	if n.runner == nil {
		return done, fault.New(fault.Unavailable, "this node does not maintain repositories")
	}
	if o.OlderThan < 0 {
		return done, fault.New(fault.Invalid, "invalid age %v: it is negative", o.OlderThan)
	}
	h, err := n.acquireAny(ctx, path)
	if err != nil {
		return done, err
	}
	defer n.release(h)
	done, err = n.collectHandle(ctx, h, path, o)
	return done, places.WithCause(err, h.Common, n.root)
}

// collectHandle is Collect for an open repository.
func (n *Node) collectHandle(ctx context.Context, h *handle, path git.RepoPath, o places.CollectOptions) (
	done places.Collected, err error) {
	release, err := n.claimSettled(ctx, h)
	if err != nil {
		return done, err
	}
	defer release()
	start := time.Now()
	if n.server != nil {
		o.KeepOf = func(ctx context.Context, r *repo.Repo) ([]git.ObjectID, error) {
			snap, err := r.Refs.Snapshot(ctx)
			if err != nil {
				return nil, err
			}
			return n.server.Former(r, snap)
		}
		if o.Keep, err = o.KeepOf(ctx, h.Repo); err != nil {
			return done, err
		}
	}
	git := places.Maintainer{Runner: n.runner, Log: n.log}.Run
	if done, err = h.place.Collect(ctx, git, o); err != nil || o.DryRun {
		return done, err
	}
	n.log.Info("removed unreachable objects of a repository", "repository", path.String(), "bytes", done.Freed,
		"objects_before", done.Before.Packed+done.Before.Loose, "objects", done.After.Packed+done.After.Loose,
		"seconds", time.Since(start).Seconds())
	if err = h.place.Maintain(ctx, git, places.MaintainOptions{PackRefs: true, TipPack: n.tipPack}); err == nil &&
		len(done.Members) == 0 {
		done.After, err = h.place.Counts(ctx)
	}
	return done, err
}

// claimSettled claims a repository when no killed push may change its refs any more: to clean up after one needs the
// claim.
func (n *Node) claimSettled(ctx context.Context, h *handle) (release func(), err error) {
	if n.pushes != nil && !h.IsCopy() {
		if err := n.pushes.Recovery().Settled(ctx, h.Common); err != nil {
			return nil, err
		}
	}
	return n.claims.Claim(h.Common)
}
