package repo

import "github.com/packhorse-git/packhorse/internal/git"

const (
	// PurgedKey is the key of the IDs of objects that were purged. They do not exist for anybody, and pushes must not
	// bring them back.
	PurgedKey = "packhorse.purged"
	// PurgingKey is the key of the IDs of objects that are being removed with those: they need one of them.
	PurgingKey = "packhorse.purging"
	// PurgedLFSKey is the key of the IDs of objects of Git LFS that were purged.
	PurgedLFSKey = "packhorse.purgedlfs"
)

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
