package config

import (
	"cmp"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/lfs/objects"
	"github.com/packhorse-git/packhorse/internal/node/gc"
)

// LFSConfig sets how objects of Git LFS are kept. Downloads need read permission, uploads and locks write permission.
type LFSConfig struct {
	// Enabled serves Git LFS: objects and file locks.
	Enabled bool `toml:"enabled" default:"true"`

	// URL is for servers and gateways: the URL for HTTP clients, such as "https://git.example.com", which clients of SSH
	// get, too. Empty means the URL of each request. Clients of SSH then transfer objects over SSH.
	URL string `toml:"url"`

	// KeyFile is for servers and gateways: the file with the key of the tokens for transfers. Servers with the same url
	// need the same key, one line of at least 16 bytes. Empty means that a key is made in the state directory.
	KeyFile string `toml:"key_file" path:"secret"`

	// MaxObject is the maximum size of an uploaded object. 0 means no limit.
	MaxObject Size `toml:"max_object" default:"5GiB"`

	// Quota is the maximum total size of the objects of one repository. lfs.quota in the configuration of a repository
	// overrides it. 0 means no limit.
	Quota Size `toml:"quota"`

	// MinFree is the space of the file system that uploads leave free. 0 means a twentieth of it, at most 5 GiB. With a
	// store, uploads leave a quarter of that free.
	MinFree Size `toml:"min_free"`

	// RequireObjects sets the treatment of pushes with pointer files whose objects the repository does not have: "refuse",
	// "warn" (accepted with a message), or "off".
	RequireObjects string `toml:"require_objects" default:"refuse" values:"refuse warn off"`

	// Cache is the maximum size of the objects that mirrors keep, and of one object. 0 means a quarter of the file system.
	Cache Size `toml:"cache"`

	// Grace is how long an object is kept that no pointer file in the repository names, at least an hour: clients upload
	// objects before they push. Such objects are removed once a day if maintenance.enabled is true and there are pushes or
	// mirrors, and in a store only by packhorse lfs gc. 0 means never.
	Grace Duration `toml:"grace" default:"336h" range:"0s.."`

	// ScrubInterval is the time in which all objects are compared once with their checksums, under the conditions of
	// grace. Damaged objects are moved aside, and logged as errors. 0 means never.
	ScrubInterval Duration `toml:"scrub_interval" default:"168h" range:"0s.."`

	// ScrubRate is the maximum number of bytes that are read in a second for scrub_interval.
	ScrubRate Size `toml:"scrub_rate" default:"32MiB" range:"1MiB.."`
}

// LFSSchedule returns the options of the upkeep of LFS objects. It needs a request if maintenance is off, or if the
// repositories are those of another program, because there are no pushes and no mirrors.
func (c *Config) LFSSchedule() gc.Schedule {
	schedule := gc.Schedule{Grace: cmp.Or(c.LFS.Grace.Duration, -1), ScrubInterval: c.LFS.ScrubInterval.Duration,
		ScrubRate: int64(c.LFS.ScrubRate)}
	if c.Maintenance.Enabled && (c.Push.Enabled || len(c.Mirror) > 0) {
		schedule.File = filepath.Join(c.State, "lfs.json")
	}
	return schedule
}

// PublicURL returns the URL of the server for clients, or nil if it is not set.
func (c *LFSConfig) PublicURL() *url.URL {
	if c.URL == "" {
		return nil
	}
	u, err := url.Parse(strings.TrimSuffix(c.URL, "/"))
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil ||
		u.RawQuery != "" || u.ForceQuery || u.Fragment != "" {
		return nil
	}
	return u
}

// check reports mistakes in the URL and the grace.
func (c *LFSConfig) check(f *Findings) {
	if 0 < c.Grace.Duration && c.Grace.Duration < time.Hour {
		f.bad("lfs.grace is %s; it has to be 0 or at least 1h", c.Grace)
	}
	if c.URL != "" && c.PublicURL() == nil {
		f.bad("lfs.url is not a URL like https://git.example.com, with http or https, a host, and no user name or query")
	}
}

// Objects returns the options of LFS objects, or nil if Git LFS is disabled.
func (c *LFSConfig) Objects() *objects.Options {
	if !c.Enabled {
		return nil
	}
	return &objects.Options{MaxObject: int64(c.MaxObject), Quota: int64(c.Quota), MinFree: int64(c.MinFree)}
}
