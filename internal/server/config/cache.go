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

	// Grace is how long a pack without a reader is still being made, in case another reader comes.
	Grace Duration `toml:"grace" default:"10s"`
}
