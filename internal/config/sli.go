package config

import (
	"time"
)

// SLIConfig says what is fast enough, by class of request (docs/explanation/observability.md). What takes up to four times as long is still tolerable. "0s" has a class not judged.
type SLIConfig struct {
	// Judges requests, for the metrics packhorse_sli_*.
	Enabled bool `toml:"enabled"`

	// Ref advertisements, lists of refs, negotiation.
	Small Duration `toml:"small"`

	// Fetches whose pack is in the cache, until its first byte.
	Hit Duration `toml:"hit"`

	// Fetches whose pack has to be made, until its first byte.
	Cold Duration `toml:"cold"`

	// Pushes. The time in which the client sends its pack counts too.
	Push Duration `toml:"push"`

	// Searches of code.
	Search Duration `toml:"search"`

	// Pages for browsers.
	Page Duration `toml:"page"`

	// What revisions name.
	Resolve Duration `toml:"resolve"`

	// Requests for the application, with the time that they wait for a worker; those that match app.slow are not judged.
	App Duration `toml:"app"`

	// Look-ups of the control API, on a node's port.
	Call Duration `toml:"call"`

	// Those whose work grows with the repository, or that write.
	Heavy Duration `toml:"heavy"`
}

func defaultSLI() SLIConfig {
	return SLIConfig{
		Enabled: true,
		Small:   Duration{100 * time.Millisecond}, Hit: Duration{250 * time.Millisecond}, Cold: Duration{10 * time.Second}, Push: Duration{10 * time.Second},
		Search: Duration{time.Second}, Page: Duration{500 * time.Millisecond}, Resolve: Duration{25 * time.Millisecond}, App: Duration{time.Second},
		Call: Duration{25 * time.Millisecond}, Heavy: Duration{2 * time.Second},
	}
}
