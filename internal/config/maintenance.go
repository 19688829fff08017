package config

import (
	"time"

	"github.com/packhorse-git/packhorse/internal/storage"
)

// MaintenanceConfig says when the node repacks repositories: after pushes, one at a time, with low priority. `packhorse repo maintain` does so
// whenever it is asked.
type MaintenanceConfig struct {
	// Maintains repositories after pushes, when one of the three below has come together.
	Enabled bool `toml:"enabled"`

	// Loose objects.
	LooseObjects int `toml:"loose_objects"`

	// Packs more than maintenance left.
	Packs int `toml:"packs"`

	// Loose refs.
	LooseRefs int `toml:"loose_refs"`

	// How long nobody may push to a repository before it is looked at; ten times that at the latest.
	Quiet Duration `toml:"quiet"`
}

// WarmupConfig says which packs are made for new tips before anybody asks. After a push those that were popular for the tips before (clones,
// shallow and partial ones, fetches from the tip before) are made in the background, so that the first jobs find them in the cache.
type WarmupConfig struct {
	// Makes packs before anybody asks. Needs the cache.
	Enabled bool `toml:"enabled"`

	// Requests longer ago do not count.
	Window Duration `toml:"window"`

	// How many requests make a pack popular.
	Least int `toml:"least"`

	// The most packs made after one push.
	Packs int `toml:"packs"`

	// A pack that was larger than this for the tip before is left for its first client.
	MaxBytes Size `toml:"max_bytes"`
}

func defaultMaintenance() MaintenanceConfig {
	return MaintenanceConfig{Enabled: true, LooseObjects: 1000, Packs: 20, LooseRefs: 500, Quiet: Duration{10 * time.Second}}
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
