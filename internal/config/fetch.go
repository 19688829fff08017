package config

import "github.com/packhorse-git/packhorse/internal/repo"

// FetchConfig says what one fetch may ask for. Where a key below names one of git's, a repository's own config goes over it
// (docs/reference/protocol.md).
type FetchConfig struct {
	// Which objects a client may ask for by ID. "any": every object that exists. "reachable": what visible refs reach.
	// "tip": what visible refs point at. "auto": "reachable" as soon as callers are told from one another (docs/how-to/auth.md), which a gateway tells the
	// node, "any" elsewhere. In a repository with alternates or hidden refs "any" counts as "reachable", unless its own config says
	// uploadpack.allowAnySHA1InWant.
	Wants string `toml:"wants"`

	// The most "want" lines in one request.
	MaxWants int `toml:"max_wants"`

	// The most "have" lines in one request.
	MaxHaves int `toml:"max_haves"`

	// The most "shallow" and "deepen-not" lines in one request.
	MaxShallow int `toml:"max_shallow"`

	// Whether a client may leave objects out, as partial clones do. Git's uploadpack.allowFilter.
	AllowFilter bool `toml:"allow_filter"`

	// Whether a client of protocol version 2 may want refs by their names. Git's uploadpack.allowRefInWant.
	AllowRefInWant bool `toml:"allow_ref_in_want"`

	// Whether a client of version 0 or 1 may want the tips of hidden refs. Git's uploadpack.allowTipSHA1InWant.
	AllowTip bool `toml:"allow_tip"`

	// Whether a client of version 0 or 1 is told that it may want what refs reach. Git's uploadpack.allowReachableSHA1InWant.
	AllowReachable bool `toml:"allow_reachable"`

	// Whether a client of version 0 or 1 may want every object that exists. Git's uploadpack.allowAnySHA1InWant.
	AllowAny bool `toml:"allow_any"`

	// What is said of the branch that HEAD names before it has a commit: "advertise", "allow" or "ignore". Git's lsrefs.unborn.
	Unborn string `toml:"unborn"`

	// How long an answer may be silent while its pack is made; then an empty packet says that it goes on. 0 means as long as it
	// takes. Git's uploadpack.keepAlive.
	KeepAlive Duration `toml:"keep_alive"`

	// Whether server and client tell each other an ID of their session, for the logs of both. Git's transfer.advertiseSID.
	SessionID bool `toml:"session_id"`

	// Whether a client of version 2 may ask for the size of objects, where it may fetch every one. Git's transfer.advertiseObjectInfo.
	ObjectInfo bool `toml:"object_info"`

	// VerifyPacks compares the packs of a repository with their checksums while a pack is made from them, once for each state of the files
	// (docs/explanation/cache.md). Git does not. Without it damage is noticed by clients alone, and damaged packs stay in the cache.
	VerifyPacks bool `toml:"verify_packs"`
}

func defaultFetch() FetchConfig {
	policy := repo.DefaultPolicy()
	return FetchConfig{
		Wants:      "auto",
		MaxWants:   1_000_000,
		MaxHaves:   1_000_000,
		MaxShallow: 100_000,

		VerifyPacks: true,

		AllowFilter:    policy.Filter,
		AllowRefInWant: policy.RefInWant,
		AllowTip:       policy.AllowTip,
		AllowReachable: policy.AllowReachable,
		AllowAny:       policy.AllowAny,
		Unborn:         string(policy.Unborn),
		KeepAlive:      Duration{policy.KeepAlive},
		SessionID:      policy.SessionID,
		ObjectInfo:     policy.ObjectInfo,
	}
}

func (c *FetchConfig) checkNumbers(b bounds) {
	b.number("fetch.max_wants", c.MaxWants, 1, many)
	b.number("fetch.max_haves", c.MaxHaves, 1, many)
	b.number("fetch.max_shallow", c.MaxShallow, 1, many)
}

// Policy is what holds where a repository's own config says nothing.
func (c *FetchConfig) Policy() *repo.Policy {
	p := repo.DefaultPolicy()
	p.Filter, p.RefInWant, p.SessionID, p.ObjectInfo = c.AllowFilter, c.AllowRefInWant, c.SessionID, c.ObjectInfo
	p.AllowTip, p.AllowReachable, p.AllowAny = c.AllowTip, c.AllowReachable, c.AllowAny
	p.Unborn, p.KeepAlive = repo.Unborn(c.Unborn), c.KeepAlive.Duration
	return &p
}
