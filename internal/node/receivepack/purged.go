package receivepack

import (
	"context"
	"slices"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
)

// checkPurged refuses a push that brings back an object that was purged.
// While objects are being removed, they may still be there, and so may others that need them.
func (p *pushSession) checkPurged(ctx context.Context, quarantine string, updates []Update) error {
	purged := p.target.Purged()
	if len(purged) == 0 {
		return nil
	}
	for _, u := range updates {
		if p.target.Objects.Purged(u.New) {
			return ErrPurged(u.New)
		}
	}
	if p.target.Policy().Purging {
		err := p.newObjects(ctx, quarantine, updates, func(line []byte) error {
			text, _, _ := strings.Cut(string(line), " ")
			if id, err := git.ParseObjectID(text); err == nil && slices.Contains(purged, id) {
				return ErrPurged(id)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	if quarantine == "" {
		return nil
	}
	objects, err := pack.Open(quarantine, pack.Options{Format: p.target.Format, Alone: true})
	if err != nil {
		return err
	}
	defer objects.Close()
	for _, id := range purged {
		found, err := objects.Has(id)
		if err != nil {
			return err
		}
		if found {
			return ErrPurged(id)
		}
	}
	return nil
}

// ErrPurged is the error of a change that brings back an object.
func ErrPurged(id git.ObjectID) error {
	return fault.New(fault.Denied, "object %s was purged from this repository and cannot be pushed again: remove it from "+
		"your history, for example with git rebase or git filter-repo", id)
}
