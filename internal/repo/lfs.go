package repo

import "math"

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
