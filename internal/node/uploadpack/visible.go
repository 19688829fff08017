package uploadpack

import (
	"context"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node"
)

// Visible reports whether visible refs reach all objects. It calls turn before a walk through history, and release
// after it. An object that does not exist needs no walk.
func (s *Server) Visible(ctx context.Context, r *repo.Repo, turn func() (release func(), err error),
	ids ...git.ObjectID) (bool, error) {
	return s.visible(ctx, r, ids, WantsReachable, turn)
}

// MayFetch reports whether a client of version 2 may want an object, like Visible.
func (s *Server) MayFetch(ctx context.Context, r *repo.Repo, session node.Session, id git.ObjectID,
	turn func() (release func(), err error)) (bool, error) {
	rule := s.wantRule(r, session)
	if rule == WantsAny {
		return true, nil
	}
	return s.visible(ctx, r, []git.ObjectID{id}, rule, turn)
}

// visible is Visible for a rule.
func (s *Server) visible(ctx context.Context, r *repo.Repo, ids []git.ObjectID, rule Wants,
	turn func() (release func(), err error)) (bool, error) {
	for _, id := range ids {
		if id.Format() != r.Format {
			return false, fault.New(fault.Invalid, "%s cannot be an object of this repository, whose format is %s", id,
				r.Format)
		}
	}
	f := &fetch{Server: s, repo: r}
	var err error
	if f.snapshot, err = r.Refs.Snapshot(ctx); err != nil {
		return false, err
	}
	done, err := r.Hold(ctx)
	if err != nil {
		return false, err
	}
	defer done()
	if err := r.Refresh(); err != nil {
		return false, err
	}
	for _, id := range ids {
		if ok, err := r.Objects.Has(id); err != nil || !ok {
			return false, err
		}
	}
	release, err := turn()
	if err != nil {
		return false, err
	}
	defer release()
	err = f.checkReachable(ctx, rule, ids)
	if fault.Is(err, fault.Denied) || fault.Is(err, fault.NotFound) {
		return false, nil
	}
	return err == nil, err
}
