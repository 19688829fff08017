package config

import (
	"github.com/packhorse-git/packhorse/internal/node/storage"
)

// MaintenanceConfig sets when a node repacks repositories: after pushes, one at a time, with low priority. "packhorse
// repo maintain" does so at any time.
type MaintenanceConfig struct {
	// Enabled maintains a repository after pushes, when one of loose_objects, packs and loose_refs is reached. The node
	// then also removes LFS objects that are not needed (lfs.grace), and verifies the others (lfs.scrub_interval).
	Enabled bool `toml:"enabled" default:"true"`

	// LooseObjects is the number of loose objects that starts a maintenance.
	LooseObjects int `toml:"loose_objects" default:"1000" range:"1.."`

	// Packs is the number of packs, beyond those that the last maintenance left, that starts a maintenance.
	Packs int `toml:"packs" default:"20" range:"1.."`

	// LooseRefs is the number of loose refs that starts a maintenance.
	LooseRefs int `toml:"loose_refs" default:"500" range:"1.."`

	// Quiet is how long a repository must be without a push before it is maintained. After ten times as long it is
	// maintained anyway. After five times as many pushes as packs, a fifth of quiet is enough, or the time that the last
	// maintenance took: git gets slower with each pack.
	Quiet Duration `toml:"quiet" default:"10s" range:">0s"`
}

// WarmupConfig makes packs for new tips in advance: those that were popular for the previous tips (clones, shallow and
// partial clones, fetches from the previous tip). The first jobs after a push then find them in the cache. The report
// of the push waits at most 50 ms for packs that are quick to make.
type WarmupConfig struct {
	// Enabled makes packs in advance. It needs the cache.
	Enabled bool `toml:"enabled" default:"true"`

	// Window is the age up to which requests count.
	Window Duration `toml:"window" default:"10m" range:">0s"`

	// Least is the number of requests that makes a pack popular.
	Least int `toml:"least" default:"2" range:"1.."`

	// Packs is the maximum number of packs that are made after one push.
	Packs int `toml:"packs" default:"4" range:"1..100"`
}

// Upkeep returns the options of maintenance, or nil if it is off.
func (c *MaintenanceConfig) Upkeep() *storage.Upkeep {
	if !c.Enabled {
		return nil
	}
	return &storage.Upkeep{Loose: c.LooseObjects, Packs: c.Packs, LooseRefs: c.LooseRefs, Quiet: c.Quiet.Duration}
}
