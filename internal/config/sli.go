package config

import (
	"time"
)

// SLIConfig sets objectives for the duration of requests, by class (docs/explanation/observability.md). Up to four
// times the objective is still tolerable. "0s" means that a class is not measured.
type SLIConfig struct {
	// Enabled measures requests, for the metrics packhorse_sli_*.
	Enabled bool `toml:"enabled"`

	// Small is the objective for ref advertisements, lists of refs and negotiation.
	Small Duration `toml:"small"`

	// Hit is the objective for the first byte of a fetch whose pack is in the cache.
	Hit Duration `toml:"hit"`

	// Cold is the objective for the first byte of a fetch whose pack has to be made.
	Cold Duration `toml:"cold"`

	// Push is the objective for pushes, including the time in which the client sends its pack.
	Push Duration `toml:"push"`

	// Search is the objective for code searches.
	Search Duration `toml:"search"`

	// Page is the objective for pages for browsers.
	Page Duration `toml:"page"`

	// Resolve is the objective for resolving revisions.
	Resolve Duration `toml:"resolve"`

	// App is the objective for requests to the application, including the wait for a worker. Requests that match
	// app.slow do not count.
	App Duration `toml:"app"`

	// Call is the objective for calls of the control API on the port of a node.
	Call Duration `toml:"call"`

	// Heavy is the objective for expensive calls: those whose work grows with the repository, or that write.
	Heavy Duration `toml:"heavy"`
}

func defaultSLI() SLIConfig {
	return SLIConfig{
		Enabled: true,
		Small:   Duration{100 * time.Millisecond}, Hit: Duration{250 * time.Millisecond}, Cold: Duration{10 * time.Second},
		Push:   Duration{10 * time.Second},
		Search: Duration{time.Second}, Page: Duration{500 * time.Millisecond}, Resolve: Duration{25 * time.Millisecond},
		App:  Duration{time.Second},
		Call: Duration{25 * time.Millisecond}, Heavy: Duration{2 * time.Second},
	}
}
