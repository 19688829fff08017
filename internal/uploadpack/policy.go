package uploadpack

import (
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/repo"
)

// offer is what clients may ask of a repository.
func (s *Server) offer(r *repo.Repo, session node.Session) protocol.Offer {
	p := r.Policy()
	return protocol.Offer{
		Filter: p.Filter, RefInWant: p.RefInWant, SidebandAll: p.SidebandAll, Unborn: p.Unborn == repo.UnbornAdvertise,
		Session: p.SessionID,
		// A size reveals that the object exists. So only objects that may be fetched by ID may be asked for.
		ObjectInfo: p.ObjectInfo && s.wantRule(r, session) == WantsAny,
		BundleURI:  p.Bundles.Offered,
	}
}

// wantRule returns which objects of a repository a client of version 2 may want. "Any" is reduced if the object store
// has objects of other repositories, which it borrows, or objects that only hidden refs reach. If the repository's
// config has uploadpack.allowAnySHA1InWant, its owner has decided.
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
	if rule == WantsAny && (r.Objects.HasAlternates() || r.HidesRefs()) {
		return WantsReachable
	}
	return rule
}

// checkFilter refuses a filter that may not be used, or has a member that may not.
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
