package config

import (
	"path/filepath"
	"time"
)

// WatchdogConfig sets the watchdog, which notices that the process is stalled and writes a dump: stacks, profiles, the
// last seconds of the execution trace (docs/explanation/watchdog.md).
type WatchdogConfig struct {
	// Enabled starts the watchdog. It also writes a dump at SIGQUIT and for "packhorse debug dump". Without it SIGQUIT
	// ends the process.
	Enabled bool `toml:"enabled"`

	// Stall is how long a stall must last before a dump is written: a probe without an answer, a Git process that does
	// not start, goroutines that do not run or wait for locks.
	Stall Duration `toml:"stall"`

	// Blocked is the number of goroutines that wait for locks, or are in system calls, above which the process counts
	// as stalled.
	Blocked int `toml:"blocked"`

	// Interval is the minimum time between two automatic dumps. It doubles while the cause lasts.
	Interval Duration `toml:"interval"`

	// Dir is the directory of the dumps. Empty means STATE/dumps. If it cannot be written, dumps go to
	// packhorse-dumps-UID below /dev/shm or the directory for temporary files, and as a last resort to standard error.
	Dir string `toml:"dir"`

	// Count is the maximum number of dumps. The oldest are removed.
	Count int `toml:"count"`

	// MaxBytes is the maximum size of all dumps together.
	MaxBytes Size `toml:"max_bytes"`

	// MinFree is the space on the disk that dumps leave free.
	MinFree Size `toml:"min_free"`

	// Trace is the memory for the last seconds of the execution trace. Tracing pauses while it would cost more than 1 %
	// of the CPU time. 0 means no trace.
	Trace Size `toml:"trace"`
}

func defaultWatchdog() WatchdogConfig {
	return WatchdogConfig{
		Enabled: true, Stall: Duration{10 * time.Second}, Blocked: 200, Interval: Duration{10 * time.Minute},
		Count: 10, MaxBytes: 256 << 20, MinFree: 1 << 30, Trace: 4 << 20,
	}
}

func (c *WatchdogConfig) checkNumbers(b bounds) {
	if c.Stall.Duration < 100*time.Millisecond {
		b.bad("watchdog.stall is %s; it has to be at least 100ms", c.Stall)
	}
	b.number("watchdog.blocked", c.Blocked, 1, many)
	b.time("watchdog.interval", c.Interval)
	b.number("watchdog.count", c.Count, 1, 1000)
	b.size("watchdog.max_bytes", c.MaxBytes, 1<<20)
	b.size("watchdog.min_free", c.MinFree, 0)
	b.size("watchdog.trace", c.Trace, 0)
	if c.Trace > 256<<20 {
		b.bad("watchdog.trace is %s; it has to be 256MiB at most", c.Trace)
	}
}

// DumpDir is where dumps of a process with a state directory are.
func (c *WatchdogConfig) DumpDir(state string) string {
	if c.Dir != "" {
		return c.Dir
	}
	return filepath.Join(state, "dumps")
}
