package config

// LanesConfig bounds how much runs at the same time (docs/explanation/lanes.md). What finds its lane full is refused with 429 and Retry-After.
type LanesConfig struct {
	// Small requests: ref advertisements, ls-refs, negotiation.
	Small int `toml:"small"`

	// Packs from the cache, and long lists of refs, on their way to clients.
	Hit int `toml:"hit"`

	// Fetches whose pack has to be made: those that wait for a slot (git.slots, git.queue) and those that are sent while they are made.
	Cold int `toml:"cold"`

	// Pushes.
	Push int `toml:"push"`

	// Searches of code, and pages for browsers.
	Pages int `toml:"pages"`

	// Look-ups of the control API whose work grows with the repository, or that write: RepositoryService's Get, List, Create, Delete and SetHead,
	// ObjectService's Log and DiffStat. Others wait for their turn. 0 means two for each CPU.
	Search int `toml:"search"`

	// Repositories that are repacked at the same time. Others wait for their turn.
	Maintenance int `toml:"maintenance"`

	// Whether callers, by name or network, share lanes fairly. Otherwise it is first come, first served, which is right behind a proxy that does
	// not say who its clients are (trusted_proxies), unless they have names.
	Fair bool `toml:"fair"`

	// The part of each lane for anonymous callers together, from 0 to 1, where callers can be known and lanes are fair: how much of small, hit, cold and push
	// they may fill, and how often they come first where they and others wait. 1 lets them fill a lane.
	Anonymous float64 `toml:"anonymous"`

	// Whether fewer packs are made, and pushes taken, at the same time while the machine is short of memory or late for small requests.
	Adaptive bool `toml:"adaptive"`

	// RequestBytes is the memory that all Git requests together may take, in bytes: what is received of their bodies, what is read from them, and
	// the lists that are made to answer them. The first 64 KiB of each request are not counted. A fetch holds its memory until its pack is sent. One caller
	// may hold as much as it leaves free, which is half if it is alone, and anonymous callers together have the part that anonymous says. What finds
	// no room is refused with 429 and Retry-After. Until memory is collected, the process may take as much again.
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
