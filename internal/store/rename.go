package store

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/event"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// Rename implements places.Places.
//
// First the new name gets a record that announces the move. From then on, each node that finds it finishes the move.
// Then a record of the repository replaces the name: this is the commit, which ends the old name and begins the new
// one. After a crash in between, the repository has its old name until a request for the new one.
func (s *Store) Rename(ctx context.Context, from, to git.RepoPath) error {
	from, to = canonical(from), canonical(to)
	old, err := s.resolve(ctx, from)
	if err != nil {
		return err
	}
	if old.state == nil {
		return notFound(from)
	}
	if from == to {
		return nil
	}
	r := s.acquire(old.name.ID)
	defer s.release(r)
	announced, err := s.announceMove(ctx, old, to)
	if err != nil {
		return err
	}
	if err := s.failPoint("rename: switch"); err != nil {
		return err
	}
	state, err := s.finishMove(ctx, r, announced)
	switch {
	case err != nil:
		return err
	case !state.has(to): // deleted or renamed by others
		return notFound(from)
	}
	s.forget(from, r.id)
	s.keepName(to, reference{r.id, announced.Number, state.record.Renames})
	if err := s.failPoint("rename: name"); err != nil {
		return err
	}
	s.mustClearName(ctx, old)
	return nil
}

// announceMove appends the record of the new name.
func (s *Store) announceMove(ctx context.Context, old resolved, to git.RepoPath) (*replog.Name, error) {
	for range maxTries {
		target, err := s.resolve(ctx, to)
		if err != nil {
			return nil, err
		}
		if target.state != nil {
			return nil, exists(to)
		}
		if err := s.failPoint("rename: announce"); err != nil {
			return nil, err
		}
		next := target.name.Next(to, replog.Moving, old.name.ID, s.options.Node, time.Now())
		next.From, next.Renames, next.Actor = old.path, old.state.record.Renames, node.ActorOf(ctx)
		outcome, err := s.appendName(ctx, target, next)
		if err != nil {
			return nil, err
		}
		if outcome == replog.Won {
			return next, nil
		}
	}
	return nil, fault.Retry(fault.Unavailable, fault.RetrySoon, "the path %s changes too fast; try again", to)
}

// isPending reports whether a name's record announces a move that can still be finished. If it cannot be finished, it
// never can: the number of renames only increases.
func isPending(name *replog.Name, state *state) bool {
	return name.State == replog.Moving && state.has(name.From) && state.record.Renames == name.Renames
}

// finishMove makes the move that a name's record announces, unless it is made or impossible. It returns the state of
// the repository then.
func (s *Store) finishMove(ctx context.Context, r *repository, name *replog.Name) (*state, error) {
	ctx = node.WithActor(ctx, name.Actor) // perhaps it is a request of another user that finishes the move
	_, err := r.change(ctx, func(head *state) (*replog.Record, error) {
		if !isPending(name, head) {
			return nil, errNoChange
		}
		next := head.record.Next(replog.KindRename, s.options.Node, time.Now())
		next.Renames++
		next.Names = slices.DeleteFunc(next.Names, func(p git.RepoPath) bool { return p == name.From })
		next.Names = append(next.Names, name.Path)
		slices.SortFunc(next.Names, func(a, b git.RepoPath) int { return strings.Compare(a.String(), b.String()) })
		return r.happened(ctx, next, event.Event{Kind: event.Rename, Repository: event.NameOf(name.Path),
			Former: event.NameOf(name.From)}), nil
	})
	if err != nil {
		return nil, err
	}
	return r.check().wait(ctx)
}
