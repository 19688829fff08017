package repo

import (
	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/refs"
)

// PeelRef returns the object that an annotated tag peels to; zero for another ref. Like git, it treats a missing or
// damaged object as not peeled, and known is then false: one such tag must not hide the others. That result is not
// cached, because the object may be repaired.
func (r *Repo) PeelRef(ref refs.Ref) (peeled git.ObjectID, known bool, err error) {
	if ref.PeelKnown {
		return ref.Peeled, true, nil
	}
	peeled, err = r.Refs.Peeled(ref, func(id git.ObjectID) (git.ObjectID, error) {
		peeled, _, err := r.Graph.Peel(id)
		if err == nil && peeled == id {
			return git.ObjectID{}, nil
		}
		return peeled, err
	})
	switch fault.KindOf(err) {
	case fault.NotFound, fault.Corrupt, fault.Invalid:
		return git.ObjectID{}, false, nil
	}
	return peeled, err == nil, err
}
