package config

import (
	"path/filepath"
)

// WatchdogConfig sets the watchdog, which writes a dump when the process is stalled (docs/explanation/watchdog.md). A
// dump has stacks and profiles.
type WatchdogConfig struct {
	// Enabled starts the watchdog. It also writes a dump at SIGQUIT and for "packhorse debug dump". Without it SIGQUIT
	// ends the process.
	Enabled bool `toml:"enabled" default:"true"`

	// Stall is how long a stall must last before a dump is written. A stall is a probe without an answer, or
	// goroutines that do not run.
	Stall Duration `toml:"stall" default:"10s" range:"100ms.."`

	// Interval is the minimum time between two automatic dumps. It doubles while the cause lasts.
	Interval Duration `toml:"interval" default:"10m" range:">0s"`

	// Dir is the directory of the dumps. Empty means STATE/dumps. If it cannot be written, stacks go to standard error.
	Dir string `toml:"dir" path:"yes"`

	// MaxBytes is the maximum size of all dumps together.
	MaxBytes Size `toml:"max_bytes" default:"256MiB" range:"1MiB.."`
}

// DumpDir returns the directory of the dumps of a process with a state directory.
func (c *WatchdogConfig) DumpDir(state string) string {
	if c.Dir != "" {
		return c.Dir
	}
	return filepath.Join(state, "dumps")
}
