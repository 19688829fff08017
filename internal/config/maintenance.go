package config

import (
	"time"

	"github.com/packhorse-git/packhorse/internal/storage"
)

// MaintenanceConfig sets when a node repacks repositories: after pushes, one at a time, with low priority. "packhorse
// repo maintain" does so at any time.
type MaintenanceConfig struct {
	// Enabled maintains a repository after pushes, when one of loose_objects, packs and loose_refs is reached.
	Enabled bool `toml:"enabled"`

	// LooseObjects is the number of loose objects that starts a maintenance.
	LooseObjects int `toml:"loose_objects"`

	// Packs is the number of packs, beyond those that the last maintenance left, that starts a maintenance.
	Packs int `toml:"packs"`

	// LooseRefs is the number of loose refs that starts a maintenance.
	LooseRefs int `toml:"loose_refs"`

	// Quiet is how long a repository must be without a push before it is maintained. After ten times as long it is
	// maintained anyway.
	Quiet Duration `toml:"quiet"`
}

// WarmupConfig makes packs for new tips in advance. After a push, the packs that were popular for the previous tips
// (clones, shallow and partial clones, fetches from the previous tip) are made in the background. The first jobs then
// find them in the cache.
type WarmupConfig struct {
	// Enabled makes packs in advance. It needs the cache.
	Enabled bool `toml:"enabled"`

	// Window is the age up to which requests count.
	Window Duration `toml:"window"`

	// Least is the number of requests that makes a pack popular.
	Least int `toml:"least"`

	// Packs is the maximum number of packs that are made after one push.
	Packs int `toml:"packs"`

	// MaxBytes is the maximum size of such a pack, measured for the previous tip. Larger packs are made for their first
	// client.
	MaxBytes Size `toml:"max_bytes"`
}

func defaultMaintenance() MaintenanceConfig {
	return MaintenanceConfig{Enabled: true, LooseObjects: 1000, Packs: 20, LooseRefs: 500,
		Quiet: Duration{10 * time.Second}}
}

func defaultWarmup() WarmupConfig {
	return WarmupConfig{Enabled: true, Window: Duration{10 * time.Minute}, Least: 2, Packs: 4, MaxBytes: 1 << 30}
}

func (c *MaintenanceConfig) checkNumbers(b bounds) {
	b.number("maintenance.loose_objects", c.LooseObjects, 1, many)
	b.number("maintenance.packs", c.Packs, 1, many)
	b.number("maintenance.loose_refs", c.LooseRefs, 1, many)
	b.time("maintenance.quiet", c.Quiet)
}

func (c *WarmupConfig) checkNumbers(b bounds) {
	b.number("warmup.least", c.Least, 1, many)
	b.number("warmup.packs", c.Packs, 1, 100)
	b.size("warmup.max_bytes", c.MaxBytes, 1)
	b.time("warmup.window", c.Window)
}

// Upkeep is nil if there is none.
func (c *MaintenanceConfig) Upkeep() *storage.Upkeep {
	if !c.Enabled {
		return nil
	}
	return &storage.Upkeep{Loose: c.LooseObjects, Packs: c.Packs, LooseRefs: c.LooseRefs, Quiet: c.Quiet.Duration}
}
