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

// MissingTips returns refs whose objects the repository does not have, at most a number of them.
func (r *Repo) MissingTips(snap *refs.Snapshot, most int) (missing []refs.Ref, err error) {
	err = snap.Unhidden().Each("", func(ref refs.Ref) error {
		has, err := r.Objects.Has(ref.ID)
		if err != nil || has || ref.ID.IsZero() {
			return err
		}
		if missing = append(missing, ref); len(missing) == most {
			return refs.ErrStop
		}
		return nil
	})
	return missing, err
}
