package config

// SLIConfig sets the time limits by which requests count as fast (docs/explanation/observability.md).
type SLIConfig struct {
	// Scale multiplies the limits of all classes: 2 is for disks or networks that take twice as long.
	Scale float64 `toml:"scale" default:"1" range:">0..100"`
}
