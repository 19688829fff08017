package repo

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/packhorse-git/packhorse/internal/git"
)

const (
	// PurgedKey is the key of the IDs of objects that were purged. They do not exist for anybody, and pushes must not
	// bring them back.
	PurgedKey = "packhorse.purged"
	// PurgingKey is the key of the IDs of objects that are being removed with those: they need one of them.
	PurgingKey = "packhorse.purging"
	// PurgedLFSKey is the key of the IDs of objects of Git LFS that were purged.
	PurgedLFSKey = "packhorse.purgedlfs"
)

// PurgeMark returns a text that changes with each purge of other objects. It is empty without purged objects.
func (r *Repo) PurgeMark() string {
	ids := r.Purged()
	if len(ids) == 0 {
		return ""
	}
	sum := sha256.Sum256(fmt.Append(nil, ids))
	return hex.EncodeToString(sum[:8])
}

// PurgedLFS returns the IDs of the objects of Git LFS that were purged and must not come back.
func (r *Repo) PurgedLFS() (ids []string) {
	for _, v := range r.settings.variables {
		if v.key == PurgedLFSKey {
			ids = append(ids, v.value)
		}
	}
	return ids
}

// purged returns the objects that do not exist.
func (r *Repo) purged() map[git.ObjectID]bool {
	ids := make(map[git.ObjectID]bool)
	for _, v := range r.settings.variables {
		if v.key != PurgedKey && v.key != PurgingKey {
			continue
		}
		if id, err := git.ParseObjectID(v.value); err == nil {
			ids[id] = true
		}
	}
	return ids
}

// Purged returns the objects that were purged and must not come back.
func (r *Repo) Purged() (ids []git.ObjectID) {
	for _, v := range r.settings.variables {
		if id, err := git.ParseObjectID(v.value); v.key == PurgedKey && err == nil {
			ids = append(ids, id)
		}
	}
	return ids
}
