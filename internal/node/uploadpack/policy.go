package uploadpack

import (
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node"
)

// offer returns the optional features that clients may use with a repository.
func (s *Server) offer(r *repo.Repo, session node.Session) protocol.Offer {
	p := r.Policy()
	return protocol.Offer{
		Filter: p.Filter, RefInWant: p.RefInWant, SidebandAll: p.SidebandAll, Unborn: p.Unborn == repo.UnbornAdvertise,
		Session: p.SessionID,
		// A size reveals that the object exists, so clients must be allowed to fetch every object by its ID.
		ObjectInfo: p.ObjectInfo && s.wantRule(r, session) == WantsAny,
		BundleURI:  p.Bundles.Offered,
	}
}

// wantRule returns which objects of a repository a client of version 2 may want. WantsAny is reduced to WantsReachable
// if the repository borrows objects, has hidden refs, or is being purged, unless its own configuration has
// uploadpack.allowAnySHA1InWant.
func (s *Server) wantRule(r *repo.Repo, session node.Session) Wants {
	rule := s.options.Wants
	switch {
	case r.Policy().OwnAny:
		return WantsAny
	case rule == WantsAuto && session.Reachable:
		return WantsReachable
	case rule == WantsAuto:
		rule = WantsAny
	}
	if rule == WantsAny && (r.Objects.HasAlternates() || r.HidesRefs() || r.Policy().Purging) {
		return WantsReachable
	}
	return rule
}

// AllowsAny reports whether clients may want every object of a repository. reachable is that of their sessions.
func (s *Server) AllowsAny(r *repo.Repo, reachable bool) bool {
	return s.wantRule(r, node.Session{Reachable: reachable}) == WantsAny
}

// checkFilter returns an error if a filter or one of its members is not allowed.
func checkFilter(rules *repo.FilterRules, f *protocol.Filter) error {
	if f == nil {
		return nil
	}
	if f.Combined && f.Kind != protocol.FilterCombine {
		if err := rules.Check("combine", 0); err != nil {
			return err
		}
	}
	if err := rules.Check(f.Name(), f.Limit); err != nil {
		return err
	}
	for _, member := range f.Sub {
		if err := checkFilter(rules, member); err != nil {
			return err
		}
	}
	return nil
}
