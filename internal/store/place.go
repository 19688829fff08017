package store

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node/event"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// place is a repository under one of its paths. It implements places.Place.
type place struct {
	*repository
	path    git.RepoPath
	name    reference
	release func()
	opened  *repo.Repo // by Open; nil: not opened
}

// Acquire implements places.Places.
func (s *Store) Acquire(ctx context.Context, path git.RepoPath) (places.Place, error) {
	path = canonical(path)
	r, ref, err := s.findReference(ctx, path)
	if err != nil {
		return nil, err
	}
	return &place{repository: r, path: path, name: ref, release: sync.OnceFunc(func() { s.release(r) })}, nil
}

// ID implements places.Place.
func (p *place) ID() string { return p.id }

// Path implements places.Place.
func (p *place) Path() git.RepoPath { return p.path }

// Dir returns the directory of the local copy.
func (p *place) Dir() string { return p.local.Dir() }

// Key implements places.Place.
func (p *place) Key() string { return fmt.Sprint(p.name, p.path) }

// Open implements places.Place. The directory has HEAD, config and the directory of objects, but perhaps no packs. Its
// files may be of an earlier state until a freshness check.
func (p *place) Open(ctx context.Context, o repo.Options) (*repo.Repo, error) {
	policy := repo.DefaultPolicy()
	if o.Policy != nil {
		policy = *o.Policy
	}
	policy.RefInWant = false // wants by name need a check for changes, and those by ID do not
	o.Place, o.Policy = p, &policy
	r, err := repo.Open(p.local.Dir(), o)
	if err != nil { // a later state may be in order
		if p.Check(ctx) == nil {
			r, err = repo.Open(p.local.Dir(), o)
		}
	}
	p.opened = r
	return r, err
}

// IsFresh implements places.Place.
func (p *place) IsFresh(r *repo.Repo) bool { return p.Known() != nil && r.IsConfigured() }

// Check implements places.Place.
func (p *place) Check(ctx context.Context) error {
	_, err := p.Layers(ctx)
	return err
}

// Version implements places.Place. It is the same on every node.
func (p *place) Version(_, generation uint64) git.Version {
	return git.Version{Incarnation: p.id, Epoch: p.name.number, Generation: generation}
}

// MirrorMarks implements places.Place. A repository in a store has none.
func (p *place) MirrorMarks() places.MirrorMarks { return places.MirrorMarks{} }

// Release implements places.Place.
func (p *place) Release() { p.release() }

// Layers implements refs.Source with a freshness check.
func (p *place) Layers(ctx context.Context) (*refs.Layers, error) {
	state, err := p.current(ctx)
	if err != nil {
		return nil, err
	}
	if !p.name.holds(p.path, state) {
		p.store.forget(p.path, p.id)
		return nil, notFound(p.path)
	}
	if p.opened != nil && !p.opened.IsConfigured() { // it may hide other refs
		return nil, places.ErrReconfigured
	}
	return state.layers, nil
}

// Known implements refs.Source.
func (p *place) Known() *refs.Layers {
	if state := p.known(); p.name.holds(p.path, state) && p.store.refused() == nil {
		return state.layers
	}
	return nil
}

// Use implements repo.Place.
func (p *place) Use(ctx context.Context, progress func(done, total int64)) (done func(), err error) {
	return p.use(ctx, progress)
}

// NotePush implements places.Place. The record of the push did so.
func (p *place) NotePush() {}

// PushedAt implements places.Place.
func (p *place) PushedAt() (at time.Time) {
	if state := p.known(); state != nil {
		at = state.record.PushedAt
	}
	return at
}

// Expires implements places.Place. The object at expiryKey ends the lifetime.
func (p *place) Expires() (at time.Time) {
	if state := p.known(); state != nil {
		for _, s := range state.record.Config {
			if s.Key == places.ExpiryKey {
				at, _ = time.Parse(time.RFC3339, s.Value)
			}
		}
	}
	return at
}

// Files implements places.Place. The records have everything.
func (p *place) Files() []string { return nil }

// PackBytes implements places.Place.
func (p *place) PackBytes() (int64, error) { return p.Size(context.Background()) }

// Counts implements places.Place. Borrowed packs are not the repository's.
func (p *place) Counts(context.Context) (c pack.Counts, err error) {
	state := p.known()
	if state == nil {
		return c, nil
	}
	for i := range state.record.Packs {
		k := &state.record.Packs[i]
		if k.From != "" {
			continue
		}
		c.Packs++
		c.Packed += k.Objects
		c.PackBytes += k.Bytes + k.IdxBytes
		for _, f := range k.Extra {
			c.Bitmap = c.Bitmap || f.Ext == ".bitmap"
			c.CommitGraph = c.CommitGraph || f.Ext == ".graph"
		}
	}
	return c, nil
}

// Size implements places.Place. It is that of the packs.
func (p *place) Size(ctx context.Context) (int64, error) {
	c, err := p.Counts(ctx)
	return c.PackBytes, err
}

// SetHead implements places.Place. It calls check for each state to which the change is made.
func (p *place) SetHead(ctx context.Context, branch git.RefName, check func() (bool, error)) (done bool, err error) {
	allowed := true
	_, err = p.change(ctx, func(head *state) (*replog.Record, error) {
		if !head.has(p.path) {
			return nil, notFound(p.path)
		}
		if check != nil {
			if allowed, err = check(); err != nil {
				return nil, err
			}
		}
		if head.record.Head == branch || !allowed {
			return nil, errNoChange
		}
		next := head.record.Next(replog.KindConfigure, p.store.options.Node, time.Now())
		next.Head = branch
		return p.happened(ctx, next, event.Event{Kind: event.Configure, Repository: event.NameOf(p.path)}), nil
	})
	return err == nil && allowed, err
}
