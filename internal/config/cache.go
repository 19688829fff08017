package config

import "time"

// CacheConfig is the pack cache.
type CacheConfig struct {
	// Keeps the packs that were made, to answer the same request again with a copy.
	Enabled bool `toml:"enabled"`

	// Directory of the cache; a tmpfs works. Empty means STATE/cache.
	Dir string `toml:"dir"`

	// The most bytes that the cache may hold. 0 means 10 GiB or a tenth of the file system, whichever is less.
	MaxBytes Size `toml:"max_bytes"`

	// An entry that nobody asked for in this time is dropped.
	MaxIdle Duration `toml:"max_idle"`

	// An entry that was asked for only once is dropped after this time, so that what nobody shares costs little disk.
	Probation Duration `toml:"probation"`

	// Bytes of the file system that the cache leaves free, whatever max_bytes says. 0 means a twentieth of it, but at least 1 GiB
	// (or a tenth, where that is less) and at most 5 GiB.
	MinFree Size `toml:"min_free"`

	// How long the making of a pack goes on after its last reader went away, in case another one comes.
	Grace Duration `toml:"grace"`
}

func defaultCache() CacheConfig {
	return CacheConfig{
		Enabled:   true,
		MaxIdle:   Duration{5 * time.Minute},
		Probation: Duration{20 * time.Second},
		Grace:     Duration{10 * time.Second},
	}
}

func (c *CacheConfig) checkNumbers(b bounds) {
	b.size("cache.max_bytes", c.MaxBytes, 0)
	b.size("cache.min_free", c.MinFree, 0)
	b.time("cache.max_idle", c.MaxIdle)
}
