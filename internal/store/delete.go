package store

import (
	"context"
	"time"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/replog"
)

// Delete implements storage.Places. The repository's last record is the commit. After a crash before the name's record,
// the name refers to a repository that does not have it, which is the same as nothing.
func (s *Store) Delete(ctx context.Context, path git.RepoPath, incarnation string) error {
	path = canonical(path)
	found, err := s.resolve(ctx, path)
	if err != nil {
		return err
	}
	if found.state == nil || incarnation != "" && incarnation != found.name.ID {
		return notFound(path)
	}
	if err := s.failPoint("delete: record"); err != nil {
		return err
	}
	r := s.acquire(found.name.ID)
	defer s.release(r)
	if _, err := r.delete(ctx, path); err != nil {
		return err
	}
	s.forget(path, r.id)
	if err := s.failPoint("delete: name"); err != nil {
		return err
	}
	s.clearName(ctx, found)
	return nil
}

// delete appends the last record of a repository, if it has the path. Its objects are garbage then.
func (r *repository) delete(ctx context.Context, path git.RepoPath) (appended, error) {
	return r.change(ctx, func(head *state) (*replog.Record, error) {
		if !head.has(path) {
			return nil, notFound(path)
		}
		next := head.record.Next(replog.KindDelete, r.store.options.Node, time.Now())
		next.Deleted, next.Names, next.Refs, next.Packs = true, nil, replog.Refs{}, nil
		return next, nil
	})
}

// clearName notes that a name does not refer to its repository any more. This only saves later look-ups a request: the
// repository does not list the name.
func (s *Store) clearName(ctx context.Context, found resolved) {
	next := found.name.Next(found.path, replog.Removed, found.name.ID, s.options.Node, time.Now())
	if _, err := s.appendName(ctx, found, next); err != nil {
		s.log.Info("cannot clear the name of a repository that is gone", "repository", found.path.String(), "error", err)
	}
}
