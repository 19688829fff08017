package config

// LanesConfig limits concurrent requests by class (docs/explanation/lanes.md). Requests above a limit get 429 with
// Retry-After.
type LanesConfig struct {
	// Hit is the limit for transfers of packs from the cache and of long lists of refs.
	Hit int `toml:"hit" default:"4096" range:"1.."`

	// Cold is the limit for fetches whose pack is not in the cache: those that wait for a slot (git.slots), and those
	// whose pack is being made.
	Cold int `toml:"cold" default:"2048" range:"1.."`

	// RequestBytes is the maximum memory of all Git requests together: received bodies, parsed requests, and lists for
	// responses. The first 64 KiB of each request do not count. A fetch holds its memory until its pack is sent. One
	// caller may hold as much as is free, so at most half alone; anonymous callers together at most half.
	// Requests above the limit get 429 with Retry-After. Until garbage is collected the process may use twice as much.
	RequestBytes Size `toml:"request_bytes" default:"512MiB" range:"1MiB.."`
}

// AnonymousShare is the share of each lane and of the memory of requests that anonymous callers may use together if
// callers can be known. It is also how often they come first when both wait.
const AnonymousShare = 0.5
