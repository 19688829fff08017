package repo

import (
	"math"
	"path/filepath"
	"time"
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

// LFSGrace returns lfs.grace of the repository's own config: how long LFS objects are kept that no pointer file names.
// A negative duration means for ever. isSet is false if the server's grace applies. The error is Corrupt.
func (r *Repo) LFSGrace() (grace time.Duration, isSet bool, err error) {
	i, isSet := r.settings.last["lfs.grace"]
	if !isSet {
		return 0, false, nil
	}
	v := r.settings.variables[i]
	if v.value == "never" {
		return -1, true, nil
	}
	grace, err = time.ParseDuration(v.value)
	if err != nil || grace < time.Hour {
		err = v.damaged(`"never" or a duration of at least 1h, as in "720h"`)
	}
	return grace, true, err
}
