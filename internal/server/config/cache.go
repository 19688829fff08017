package config

// CacheConfig is the pack cache.
type CacheConfig struct {
	// Enabled keeps packs, so that identical requests get a copy.
	Enabled bool `toml:"enabled" default:"true"`

	// Dir is the directory of the cache. A tmpfs works. Empty means STATE/cache.
	Dir string `toml:"dir" path:"yes"`

	// MaxBytes is the maximum size of the cache. One pack may use all of it. 0 means 10 GiB or a tenth of the file
	// system, whichever is less. While there are packs larger than a quarter of that, it means half of it and room for
	// the largest pack twice.
	MaxBytes Size `toml:"max_bytes"`

	// MaxIdle is how long an entry without a request is kept.
	MaxIdle Duration `toml:"max_idle" default:"5m" range:">0s"`

	// Probation is how long an entry with only one request is kept after the transfer, so that packs that are not shared
	// cost little disk space. Clones of a popular shape skip it.
	Probation Duration `toml:"probation" default:"20s"`

	// MinFree is the space of the file system that the cache leaves free, whatever max_bytes is. 0 means a twentieth of
	// it, at least 1 GiB (or a tenth, if that is less) and at most 5 GiB.
	MinFree Size `toml:"min_free"`

	// Grace is how long a pack without a reader is still being made, in case another reader comes.
	Grace Duration `toml:"grace" default:"10s"`
}
