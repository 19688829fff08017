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
		// Whoever learns an object's size learns that it exists, so only what may be fetched by its ID alone may be
		// asked for.
		ObjectInfo: p.ObjectInfo && s.wantRule(r, session) == WantsAny,
		BundleURI:  p.Bundles.Offered,
	}
}

// wantRule says which objects of a repository a client of version 2 may ask for. "Any" is less where objects exist that
// are not the repository's to give: those of others that it borrows, and what only hidden refs reach. Where its own
// config says uploadpack.allowAnySHA1InWant, whoever runs it has decided that.
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
