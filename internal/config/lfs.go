package config

import "github.com/packhorse-git/packhorse/internal/lfs/objects"

// LFSConfig sets how objects of Git LFS are kept. Downloads need read permission, uploads and locks write permission.
type LFSConfig struct {
	// Enabled serves Git LFS: objects and file locks.
	Enabled bool `toml:"enabled" default:"true"`

	// MaxObject is the maximum size of an uploaded object. 0 means no limit.
	MaxObject Size `toml:"max_object" default:"5GiB"`

	// Quota is the maximum total size of the objects of one repository. 0 means no limit.
	Quota Size `toml:"quota"`

	// MinFree is the space of the file system that uploads leave free. 0 means a twentieth of it, at most 5 GiB.
	MinFree Size `toml:"min_free"`

	// UploadExpiry is how long the beginning of an interrupted upload is kept. Until then the upload can continue.
	UploadExpiry Duration `toml:"upload_expiry" default:"24h" range:">0s"`
}

// Objects returns the options of LFS objects, or nil if Git LFS is disabled.
func (c *LFSConfig) Objects() *objects.Options {
	if !c.Enabled {
		return nil
	}
	return &objects.Options{MaxObject: int64(c.MaxObject), Quota: int64(c.Quota), MinFree: int64(c.MinFree),
		Expiry: c.UploadExpiry.Duration}
}
