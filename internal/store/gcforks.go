package store

import (
	"context"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// forkUse is what a fork has of a repository.
type forkUse struct {
	isPending bool     // it has no record yet, and may be about to name any pack
	keys      []string // of packs that it names
}

// hasLeft reports whether the fork names no pack of the repository. It never will again.
func (u forkUse) hasLeft() bool { return !u.isPending && len(u.keys) == 0 }

// examineParallel is the number of forks that are read at the same time.
const examineParallel = 16

// examine reads what forks have of a repository, unless it is known: they only ever have less.
func (c *collector) examine(ctx context.Context, id string, forks []string) error {
	if c.uses == nil {
		c.uses = make(map[string]forkUse)
	}
	var mu sync.Mutex
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(examineParallel)
	for _, fork := range forks {
		mu.Lock()
		_, isKnown := c.uses[fork]
		mu.Unlock()
		if isKnown {
			continue
		}
		group.Go(func() error {
			use, err := c.useOf(ctx, id, fork)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				c.uses[fork] = use
			}
			return err
		})
	}
	return group.Wait()
}

// useOf reads what a fork has of a repository.
func (c *collector) useOf(ctx context.Context, id, fork string) (use forkUse, err error) {
	head, err := replog.Open(c.bucket, fork).Head(ctx)
	if fault.Is(err, fault.NotFound) {
		return forkUse{isPending: true}, nil
	}
	if err != nil {
		return use, err
	}
	for i := range head.Packs {
		if head.Packs[i].From == id {
			use.keys = append(use.keys, head.Packs[i].Key)
		}
	}
	return use, nil
}

// isLent reports whether a fork in the list of head may need a key.
func (c *collector) isLent(head *replog.Record, key string) bool {
	return slices.ContainsFunc(head.Forks, func(fork string) bool {
		use := c.uses[fork]
		return use.isPending || slices.Contains(use.keys, key)
	})
}

// buryPending ends forks that were listed before a time and have no record: their node has crashed. If one is slow
// instead, it finds that record 1 is taken.
func (c *collector) buryPending(ctx context.Context, before, head *replog.Record) error {
	for _, fork := range head.Forks {
		if !slices.Contains(before.Forks, fork) {
			continue
		}
		log := replog.Open(c.bucket, fork)
		_, err := log.Head(ctx)
		if fault.Is(err, fault.NotFound) {
			_, err = c.bury(ctx, log, false)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
