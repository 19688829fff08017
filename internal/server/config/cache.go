package config

import (
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node/storage"
)

// CacheConfig is the pack cache.
type CacheConfig struct {
	// Enabled keeps packs, so that identical requests get a copy.
	Enabled bool `toml:"enabled" default:"true"`

	// Dir is the directory of the cache. A tmpfs works. Empty means STATE/cache.
	Dir string `toml:"dir" path:"yes"`

	// MaxBytes is the maximum size of the cache. 0 means 10 GiB or a tenth of the file system, whichever is less. While
	// there are packs larger than a quarter of that, it is up to half of the file system.
	MaxBytes Size `toml:"max_bytes"`

	// Grace is how long a pack without a reader is still being made, in case another reader comes.
	Grace Duration `toml:"grace" default:"10s"`
}

// PacksConfig sets what makes packs.
type PacksConfig struct {
	// Source makes the packs that are not in the cache: "native" (the server itself), "git" (git pack-objects), or "auto".
	// With "auto" Git makes those that cost it less, or that only it can make (docs/explanation/packs.md). With "native"
	// the latter fail.
	Source string `toml:"source" default:"auto" values:"auto native git"`
}

// Values of packs.source.
const (
	PacksByServer = "native"
	PacksByGit    = "git"
)

// FetchConfig limits fetches. Where a key names one of Git's, the configuration of a repository wins
// (docs/reference/protocol.md).
type FetchConfig struct {
	// Wants selects the objects that a client may request by ID: "any" object, those "reachable" from visible refs, or
	// only the "tip" of a visible ref. "auto" means "reachable" if callers are authenticated, otherwise "any". In a
	// repository with alternates or hidden refs "any" means "reachable".
	Wants string `toml:"wants" default:"auto" values:"auto any reachable tip"`

	// Grace is how long after a push clients may request objects that only the former value of a visible ref reaches, as
	// partial clones need after a force push. It applies if wants means "reachable". In a repository: uploadpack.grace.
	Grace Duration `toml:"grace" default:"1h" range:"0s.."`

	// AllowFilter allows partial clones. In Git: uploadpack.allowFilter.
	AllowFilter bool `toml:"allow_filter" default:"true"`

	// VerifyPacks compares the packs of a repository with their checksums when Git makes a pack from them, once for each
	// state of the files. Otherwise only clients notice damage. Packs that the server makes itself are always checked.
	VerifyPacks bool `toml:"verify_packs" default:"true"`
}

// Policy returns the policy for repositories whose configuration does not change it.
func (c *FetchConfig) Policy() *repo.Policy {
	p := repo.DefaultPolicy()
	p.Filter, p.Grace = c.AllowFilter, c.Grace.Duration
	return &p
}

// MaintenanceConfig sets when a node repacks repositories: after pushes, one at a time, with low priority. "packhorse
// repo maintain" does so at any time.
type MaintenanceConfig struct {
	// Enabled maintains a repository after pushes, when it has 1,000 new loose objects, 20 new packs or 500 loose refs,
	// and ten seconds without a push. It also enables lfs.grace and lfs.scrub_interval.
	Enabled bool `toml:"enabled" default:"true"`

	// Slots is the number of repositories that are repacked at the same time.
	Slots int `toml:"slots" default:"1" range:"1..1024"`

	// TipPack keeps the objects of the newest commit of HEAD as another pack, from which shallow clones are copied. It
	// takes a few percent of the repository's size (docs/explanation/packs.md). With false, the next maintenance of each
	// repository removes its pack.
	TipPack bool `toml:"tip_pack" default:"true"`

	// Unreachable removes objects that nothing reaches and that are older, as "packhorse repo gc" does: after pushes to
	// the repository, at most once a day. That repacks the whole repository; in a store, the packs that have such objects.
	// "0s" keeps all objects, so that an undone push can be examined. Days are written as in "14d".
	Unreachable Duration `toml:"unreachable" default:"0s"`
}

// Options returns the options of maintenance, or nil if it is off.
func (c *MaintenanceConfig) Options() *storage.Maintenance {
	if !c.Enabled {
		return nil
	}
	return &storage.Maintenance{Unreachable: c.Unreachable.Duration}
}

// WarmupConfig makes packs for new tips in advance: those that were popular for the previous tips. The first jobs after
// a push then find them in the cache. The report of the push waits at most 50 ms for packs that are quick to make.
type WarmupConfig struct {
	// Enabled makes packs in advance. It needs the cache.
	Enabled bool `toml:"enabled" default:"true"`
}
