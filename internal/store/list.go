package store

import (
	"context"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/replog"
)

const (
	listPage     = 1000 // keys in one listing
	listParallel = 16   // names that are read at the same time
)

// List implements storage.Places, in the order of the keys of names. It reads each name that is not in memory. A name
// whose repository was just deleted or renamed may be in the list.
func (s *Store) List(ctx context.Context, prefix, after string, limit int) ([]git.RepoPath, error) {
	if err := s.refused(); err != nil {
		return nil, err
	}
	var paths []git.RepoPath
	below, position := replog.NamesBelow(prefix), replog.AfterName(after)
	for len(paths) < limit {
		keys, err := s.bucket.List(ctx, below, position, listPage)
		if err != nil {
			return nil, err
		}
		var heads []nameKey
		for _, k := range keys {
			if k.Key <= position {
				continue // an earlier record of the name before
			}
			path, number, err := replog.ParseNameKey(k.Key)
			if err != nil {
				return nil, err
			}
			heads = append(heads, nameKey{path, number})
			if position = replog.AfterName(path.String()); len(paths)+len(heads) == limit {
				break
			}
		}
		live, err := s.live(ctx, heads)
		if err != nil {
			return nil, err
		}
		paths = append(paths, live...)
		if len(keys) < listPage && (len(keys) == 0 || keys[len(keys)-1].Key < position) {
			break
		}
	}
	return paths, nil
}

// nameKey is the newest record of a name, as a listing shows it.
type nameKey struct {
	path   git.RepoPath
	number uint64
}

// live returns the paths of the names that refer to a repository.
func (s *Store) live(ctx context.Context, names []nameKey) ([]git.RepoPath, error) {
	isLive := make([]bool, len(names))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(listParallel)
	for i, n := range names {
		if s.peek(n.path) != nil {
			isLive[i] = true
			continue
		}
		group.Go(func() error {
			log, err := replog.OpenName(s.bucket, n.path)
			if err != nil {
				return err
			}
			name, err := log.Get(ctx, n.number)
			if err == nil && name.State == replog.Moving { // finish it
				var found resolved
				found, err = s.resolve(ctx, n.path)
				isLive[i] = found.state != nil
				return err
			}
			isLive[i] = err == nil && name.State == replog.Live
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	paths := make([]git.RepoPath, 0, len(names))
	for i, n := range names {
		if isLive[i] {
			paths = append(paths, n.path)
		}
	}
	return slices.Clip(paths), nil
}
