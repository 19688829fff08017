package config

// LanesConfig limits concurrent requests by class (docs/explanation/lanes.md). Requests above a limit get 429 with
// Retry-After.
type LanesConfig struct {
	// Small is the limit for small requests: ref advertisements, ls-refs, negotiation.
	Small int `toml:"small"`

	// Hit is the limit for transfers of packs from the cache and of long lists of refs.
	Hit int `toml:"hit"`

	// Cold is the limit for fetches whose pack is not in the cache: those that wait for a slot (git.slots, git.queue),
	// and those whose pack is being made.
	Cold int `toml:"cold"`

	// Push is the limit for pushes.
	Push int `toml:"push"`

	// Pages is the limit for code searches and pages for browsers.
	Pages int `toml:"pages"`

	// Search is the limit for expensive calls of the control API: Get, List, Create, Delete and SetHead of
	// RepositoryService, Log and DiffStat of ObjectService. Further calls wait. 0 means two for each CPU.
	Search int `toml:"search"`

	// Maintenance is the number of repositories that are repacked at the same time. Others wait.
	Maintenance int `toml:"maintenance"`

	// Fair shares lanes fairly among callers, by name or network. Otherwise requests are served in order of arrival,
	// which is right behind a proxy that does not send the addresses of clients (trusted_proxies), unless callers have
	// names.
	Fair bool `toml:"fair"`

	// Anonymous is the share of small, hit, cold and push, from 0 to 1, that anonymous callers may use together if
	// callers can be known and lanes are fair. It is also how often they come first when both wait. 1 means no limit.
	Anonymous float64 `toml:"anonymous"`

	// Adaptive reduces the number of packs and pushes in progress while the machine is short of memory or slow for
	// small requests.
	Adaptive bool `toml:"adaptive"`

	// RequestBytes is the maximum memory of all Git requests together: received bodies, parsed requests, and lists for
	// responses. The first 64 KiB of each request do not count. A fetch holds its memory until its pack is sent. One
	// caller may hold as much as is free, so at most half alone; anonymous callers together have the share anonymous.
	// Requests above the limit get 429 with Retry-After. Until garbage is collected the process may use twice as much.
	RequestBytes Size `toml:"request_bytes"`
}

func defaultLanes() LanesConfig {
	return LanesConfig{
		Small:        1024,
		Hit:          4096,
		Cold:         2048,
		Push:         256,
		Pages:        256,
		Maintenance:  1,
		Fair:         true,
		Anonymous:    0.5,
		Adaptive:     true,
		RequestBytes: 512 << 20,
	}
}

func (c *LanesConfig) checkNumbers(b bounds) {
	b.number("lanes.small", c.Small, 1, many)
	b.number("lanes.hit", c.Hit, 1, many)
	b.number("lanes.cold", c.Cold, 1, many)
	b.number("lanes.push", c.Push, 1, many)
	b.number("lanes.pages", c.Pages, 1, many)
	b.number("lanes.search", c.Search, 0, 1024)
	b.number("lanes.maintenance", c.Maintenance, 1, 1024)
	b.size("lanes.request_bytes", c.RequestBytes, 1<<20)
	if c.Anonymous <= 0 || c.Anonymous > 1 {
		b.bad("lanes.anonymous is %v; it has to be more than 0, and 1 at most", c.Anonymous)
	}
}
