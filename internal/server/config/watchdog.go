package config

// WatchdogConfig sets the watchdog, which writes a dump when the process is stalled (docs/explanation/watchdog.md). A
// dump has stacks and profiles. It is in STATE/dumps.
type WatchdogConfig struct {
	// Enabled starts the watchdog. It also writes a dump at SIGQUIT and for "packhorse debug dump". Without it SIGQUIT
	// ends the process.
	Enabled bool `toml:"enabled" default:"true"`

	// Stall is how long a stall must last before a dump is written. A stall is a probe without an answer, or
	// goroutines that do not run. Between two automatic dumps is at least sixty times as long.
	Stall Duration `toml:"stall" default:"10s" range:"100ms.."`
}
