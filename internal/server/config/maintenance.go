package config

import (
	"github.com/packhorse-git/packhorse/internal/node/storage"
)

// MaintenanceConfig sets when a node repacks repositories: after pushes, one at a time, with low priority. "packhorse
// repo maintain" does so at any time.
type MaintenanceConfig struct {
	// Enabled maintains a repository after pushes, when it has 1,000 new loose objects, 20 new packs or 500 loose refs,
	// and ten seconds without a push. The node then also removes LFS objects that are not needed (lfs.grace), and
	// verifies the others (lfs.scrub_interval).
	Enabled bool `toml:"enabled" default:"true"`

	// Slots is the number of repositories that are repacked at the same time. Others wait.
	Slots int `toml:"slots" default:"1" range:"1..1024"`
}

// WarmupConfig makes packs for new tips in advance: those that were popular for the previous tips (clones, shallow and
// partial clones, fetches from the previous tip). The first jobs after a push then find them in the cache. The report
// of the push waits at most 50 ms for packs that are quick to make.
type WarmupConfig struct {
	// Enabled makes packs in advance. It needs the cache.
	Enabled bool `toml:"enabled" default:"true"`
}

// Upkeep returns the options of maintenance, or nil if it is off.
func (c *MaintenanceConfig) Upkeep() *storage.Upkeep {
	if !c.Enabled {
		return nil
	}
	return &storage.Upkeep{}
}
