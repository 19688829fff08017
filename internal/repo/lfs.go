package repo

import (
	"math"
	"path/filepath"
)

// LFSQuota returns lfs.quota of the repository's own config: the maximum total size of its LFS objects in bytes, or
// zero for no limit. isSet is false if the server's quota applies. The error is Corrupt.
func (r *Repo) LFSQuota() (bytes int64, isSet bool, err error) {
	i, isSet := r.settings.last["lfs.quota"]
	if !isSet {
		return 0, false, nil
	}
	n, err := r.settings.variables[i].unsigned()
	return int64(min(n, math.MaxInt64)), true, err
}

// IsBare reports whether the repository has no working tree. Without core.bare its name decides, as in Git. It is false
// if the value is not valid.
func (r *Repo) IsBare() bool {
	bare, err := r.settings.Bool("core.bare", filepath.Base(r.Common) != ".git")
	return err == nil && bare
}
