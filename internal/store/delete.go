package store

import (
	"context"
	"time"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node/event"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/schedule/retry"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// Delete implements places.Places. The repository's last record is the commit. After a crash before the name's record,
// the name refers to a repository that does not have it, which is the same as nothing.
func (s *Store) Delete(ctx context.Context, path git.RepoPath, o places.DeleteOptions) error {
	path = canonical(path)
	found, err := s.resolve(ctx, path)
	if err != nil {
		return err
	}
	if found.state == nil || o.Incarnation != "" && o.Incarnation != found.name.ID {
		return notFound(path)
	}
	if err := s.failPoint("delete: record"); err != nil {
		return err
	}
	r := s.acquire(found.name.ID)
	defer s.release(r)
	if _, err := r.delete(ctx, path, true); err != nil {
		return err
	}
	s.forget(path, r.id)
	if err := s.failPoint("delete: name"); err != nil {
		return err
	}
	s.mustClearName(ctx, found)
	s.leaveLenders(ctx, found.state.record, r.id)
	return nil
}

// delete appends the last record of a repository, if it has the path. Its objects are garbage then. It has an event
// unless the path never referred to the repository.
func (r *repository) delete(ctx context.Context, path git.RepoPath, isEvent bool) (appended, error) {
	return r.change(ctx, func(head *state) (*replog.Record, error) {
		if !head.has(path) {
			return nil, notFound(path)
		}
		next := head.record.Next(replog.KindDelete, r.store.options.Node, time.Now())
		next.Deleted, next.Names, next.Refs, next.Packs = true, nil, replog.Refs{}, nil
		if isEvent {
			r.happened(ctx, next, event.Event{Kind: event.Delete, Repository: event.NameOf(path)})
		}
		return next, nil
	})
}

// clearPause is the time between two attempts to clear a name.
const clearPause = 10 * time.Second

// clearName notes that a name does not refer to its repository any more. Only lists of names need that: look-ups find
// out that the repository does not list the name. clearName reports whether the name is clear.
func (s *Store) clearName(ctx context.Context, found resolved) bool {
	next := found.name.Next(found.path, replog.Removed, found.name.ID, s.options.Node, time.Now())
	_, err := s.appendName(ctx, found, next)
	if err != nil {
		s.log.Info("cannot clear the name of a repository that is gone", "repository", found.path.String(), "error", err)
	}
	return err == nil
}

// mustClearName is clearName that tries again in the background while the store cannot be reached.
func (s *Store) mustClearName(ctx context.Context, found resolved) {
	if s.clearName(ctx, found) {
		return
	}
	s.running.Go(func() {
		for retry.Sleep(s.ctx, clearPause) == nil && !s.clearName(s.ctx, found) {
		}
	})
}
