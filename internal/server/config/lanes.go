package config

// LanesConfig limits concurrent requests by class (docs/explanation/lanes.md). Requests above a limit get 429 with
// Retry-After.
type LanesConfig struct {
	// Small is the limit for small requests: ref advertisements, ls-refs, negotiation.
	Small int `toml:"small" default:"1024" range:"1.."`

	// Hit is the limit for transfers of packs from the cache and of long lists of refs.
	Hit int `toml:"hit" default:"4096" range:"1.."`

	// Cold is the limit for fetches whose pack is not in the cache: those that wait for a slot (git.slots, git.queue),
	// and those whose pack is being made.
	Cold int `toml:"cold" default:"2048" range:"1.."`

	// Push is the limit for pushes.
	Push int `toml:"push" default:"256" range:"1.."`

	// Pages is the limit for code searches and pages for browsers.
	Pages int `toml:"pages" default:"256" range:"1.."`

	// Search is the limit for expensive calls of the control API: Get, List, Create, Delete and SetHead of
	// RepositoryService, Log of ObjectService. Further calls wait. 0 means two for each CPU.
	Search int `toml:"search" range:"0..1024"`

	// Maintenance is the number of repositories that are repacked at the same time. Others wait.
	Maintenance int `toml:"maintenance" default:"1" range:"1..1024"`

	// Fair shares lanes fairly among callers, by name or network. Otherwise requests are served in order of arrival,
	// which is right behind a proxy that does not send the addresses of clients (trusted_proxies), unless callers have
	// names.
	Fair bool `toml:"fair" default:"true"`

	// Anonymous is the share of small, hit, cold and push, from 0 to 1, that anonymous callers may use together if
	// callers can be known and lanes are fair. It is also how often they come first when both wait. 1 means no limit.
	Anonymous float64 `toml:"anonymous" default:"0.5" range:">0..1"`

	// Adaptive reduces the number of packs and pushes in progress while the machine is short of memory or slow for
	// small requests.
	Adaptive bool `toml:"adaptive" default:"true"`

	// RequestBytes is the maximum memory of all Git requests together: received bodies, parsed requests, and lists for
	// responses. The first 64 KiB of each request do not count. A fetch holds its memory until its pack is sent. One
	// caller may hold as much as is free, so at most half alone; anonymous callers together have the share anonymous.
	// Requests above the limit get 429 with Retry-After. Until garbage is collected the process may use twice as much.
	RequestBytes Size `toml:"request_bytes" default:"512MiB" range:"1MiB.."`
}
