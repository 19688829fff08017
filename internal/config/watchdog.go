package config

import (
	"path/filepath"
	"time"
)

// WatchdogConfig is what notices that the process gets no work done, and writes down what it looked like: stacks, profiles, the last seconds of the
// execution trace. Docs/watchdog.md says how to read that.
type WatchdogConfig struct {
	// Watches, and writes a dump at SIGQUIT and for "packhorse debug dump". Without it SIGQUIT ends the process.
	Enabled bool `toml:"enabled"`

	// How long nothing has to get done before there is a dump: probes that nobody answers, a git process that does not start, goroutines that do not run or
	// wait for locks.
	Stall Duration `toml:"stall"`

	// So many goroutines that wait for locks, or so many in system calls (as those that wait for a disk), mean that nothing gets done.
	Blocked int `toml:"blocked"`

	// The least time between two dumps that nobody asked for. It doubles while the cause lasts.
	Interval Duration `toml:"interval"`

	// Directory of the dumps. Empty means STATE/dumps. What it does not take goes to packhorse-dumps-UID below /dev/shm or the directory for temporary
	// files, and what that does not take to standard error.
	Dir string `toml:"dir"`

	// The most dumps that are kept; the oldest ones go.
	Count int `toml:"count"`

	// The most bytes that they have together.
	MaxBytes Size `toml:"max_bytes"`

	// Writes no dump that would leave less free on the disk.
	MinFree Size `toml:"min_free"`

	// Memory for the last seconds of the execution trace. It pauses while it would cost more than 1 % of the CPU time. 0 keeps none.
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
