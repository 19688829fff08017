package config

// SLIConfig sets objectives for the duration of requests, by class (docs/explanation/observability.md). Up to four
// times the objective is still tolerable. "0s" means that a class is not measured.
type SLIConfig struct {
	// Enabled measures requests, for the metrics packhorse_sli_*.
	Enabled bool `toml:"enabled" default:"true"`

	// Small is the objective for ref advertisements, lists of refs and negotiation.
	Small Duration `toml:"small" default:"100ms"`

	// Hit is the objective for the first byte of a fetch whose pack is in the cache.
	Hit Duration `toml:"hit" default:"250ms"`

	// Cold is the objective for the first byte of a fetch whose pack has to be made.
	Cold Duration `toml:"cold" default:"10s"`

	// Push is the objective for pushes, including the time in which the client sends its pack.
	Push Duration `toml:"push" default:"10s"`

	// Search is the objective for code searches.
	Search Duration `toml:"search" default:"1s"`

	// Page is the objective for pages for browsers.
	Page Duration `toml:"page" default:"500ms"`

	// Resolve is the objective for resolving revisions.
	Resolve Duration `toml:"resolve" default:"25ms"`

	// App is the objective for requests to the application, including the wait for a worker.
	App Duration `toml:"app" default:"1s"`

	// Call is the objective for calls of the control API on the port of a node.
	Call Duration `toml:"call" default:"25ms"`

	// Heavy is the objective for expensive calls: those whose work grows with the repository, or that write.
	Heavy Duration `toml:"heavy" default:"2s"`
}
