package config

import (
	"path/filepath"
)

// WatchdogConfig sets the watchdog, which writes a dump when the process is stalled (docs/explanation/watchdog.md). A
// dump has stacks, profiles, and the last seconds of the execution trace.
type WatchdogConfig struct {
	// Enabled starts the watchdog. It also writes a dump at SIGQUIT and for "packhorse debug dump". Without it SIGQUIT
	// ends the process.
	Enabled bool `toml:"enabled" default:"true"`

	// Stall is how long a stall must last before a dump is written. A stall is a probe without an answer, a Git process
	// that does not start, or goroutines that do not run or wait for locks.
	Stall Duration `toml:"stall" default:"10s" range:"100ms.."`

	// Blocked is the number of goroutines that wait for locks, or are in system calls, above which the process counts
	// as stalled.
	Blocked int `toml:"blocked" default:"200" range:"1.."`

	// Interval is the minimum time between two automatic dumps. It doubles while the cause lasts.
	Interval Duration `toml:"interval" default:"10m" range:">0s"`

	// Dir is the directory of the dumps. Empty means STATE/dumps. If it cannot be written, dumps go to
	// packhorse-dumps-UID below /dev/shm or the directory for temporary files, and as a last resort to standard error.
	Dir string `toml:"dir" path:"yes"`

	// Count is the maximum number of dumps. The oldest are removed.
	Count int `toml:"count" default:"10" range:"1..1000"`

	// MaxBytes is the maximum size of all dumps together.
	MaxBytes Size `toml:"max_bytes" default:"256MiB" range:"1MiB.."`

	// MinFree is the space on the disk that dumps leave free.
	MinFree Size `toml:"min_free" default:"1GiB"`

	// Trace is the memory for the last seconds of the execution trace. Tracing pauses while it would cost more than 1 %
	// of the CPU time. 0 means no trace.
	Trace Size `toml:"trace" default:"4MiB" range:"..256MiB"`
}

// DumpDir returns the directory of the dumps of a process with a state directory.
func (c *WatchdogConfig) DumpDir(state string) string {
	if c.Dir != "" {
		return c.Dir
	}
	return filepath.Join(state, "dumps")
}
