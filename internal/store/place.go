package store

import (
	"context"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/node/storage"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// place is a repository under one of its paths. It implements storage.Place.
type place struct {
	*repository
	path    git.RepoPath
	name    reference
	release func()
}

// Acquire implements storage.Places.
func (s *Store) Acquire(ctx context.Context, path git.RepoPath) (storage.Place, error) {
	path = canonical(path)
	r, ref, err := s.findReference(ctx, path)
	if err != nil {
		return nil, err
	}
	return &place{r, path, ref, sync.OnceFunc(func() { s.release(r) })}, nil
}

// ID implements storage.Place.
func (p *place) ID() string { return p.id }

// Epoch implements storage.Place.
func (p *place) Epoch() uint64 { return p.name.number }

// Dir implements storage.Place.
func (p *place) Dir() string { return p.local.Dir() }

// Release implements storage.Place.
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

// Counts implements storage.Place.
func (p *place) Counts() pack.Counts {
	var c pack.Counts
	state := p.known()
	if state == nil {
		return c
	}
	for i := range state.record.Packs {
		k := &state.record.Packs[i]
		c.Packs++
		c.Packed += k.Objects
		c.PackBytes += k.Bytes + k.IdxBytes
		for _, f := range k.Extra {
			c.Bitmap = c.Bitmap || f.Ext == ".bitmap"
			c.CommitGraph = c.CommitGraph || f.Ext == ".graph"
		}
	}
	return c
}

// SetHead implements storage.Place.
func (p *place) SetHead(ctx context.Context, branch git.RefName) error {
	_, err := p.change(ctx, func(head *state) (*replog.Record, error) {
		if !head.has(p.path) {
			return nil, notFound(p.path)
		}
		if head.record.Head == branch {
			return nil, errNoChange
		}
		next := head.record.Next(replog.KindConfigure, p.store.options.Node, time.Now())
		next.Head = branch
		return next, nil
	})
	return err
}
