package config

import "github.com/packhorse-git/packhorse/internal/git/repo"

// FetchConfig limits fetches. Where a key names one of Git's, the configuration of a repository wins
// (docs/reference/protocol.md).
type FetchConfig struct {
	// Wants selects the objects that a client may request by ID: "any" existing object, those "reachable" from visible
	// refs, or only the "tip" of a visible ref. "auto" means "reachable" if callers are authenticated
	// (docs/how-to/auth.md), otherwise "any". In a repository with alternates or hidden refs "any" means "reachable",
	// unless the repository sets uploadpack.allowAnySHA1InWant.
	Wants string `toml:"wants" default:"auto" values:"auto any reachable tip"`

	// Grace is how long after a push clients may request objects that only the former value of a visible ref reaches. A
	// partial clone needs them after a force push of its branch. It makes a difference where Wants means "reachable". 0
	// means not at all. In the configuration of a repository: uploadpack.grace.
	Grace Duration `toml:"grace" default:"1h" range:"0s.."`

	// MaxWants is the maximum number of "want" lines in a request.
	MaxWants int `toml:"max_wants" default:"1000000" range:"1.."`

	// MaxHaves is the maximum number of "have" lines in a request.
	MaxHaves int `toml:"max_haves" default:"1000000" range:"1.."`

	// MaxShallow is the maximum number of "shallow" and "deepen-not" lines in a request.
	MaxShallow int `toml:"max_shallow" default:"100000" range:"1.."`

	// AllowFilter allows partial clones. In Git: uploadpack.allowFilter.
	AllowFilter bool `toml:"allow_filter" default:"true"`

	// AllowRefInWant allows clients of protocol version 2 to request refs by name. In Git: uploadpack.allowRefInWant. With
	// a store only the configuration of a repository can allow it, because it costs a freshness check for each fetch.
	AllowRefInWant bool `toml:"allow_ref_in_want" default:"true"`

	// AllowTip allows clients of protocol version 0 or 1 to request tips of hidden refs. In Git:
	// uploadpack.allowTipSHA1InWant.
	AllowTip bool `toml:"allow_tip"`

	// AllowReachable allows clients of protocol version 0 or 1 to request any reachable object. In Git:
	// uploadpack.allowReachableSHA1InWant.
	AllowReachable bool `toml:"allow_reachable"`

	// AllowAny allows clients of protocol version 0 or 1 to request any existing object. In Git:
	// uploadpack.allowAnySHA1InWant.
	AllowAny bool `toml:"allow_any"`

	// Unborn selects how a HEAD without commits is advertised: "advertise", "allow" or "ignore". In Git: lsrefs.unborn.
	Unborn string `toml:"unborn" default:"advertise" values:"advertise allow ignore"`

	// KeepAlive is how long a response may be silent while its pack is made. Then an empty packet is sent. 0 means no
	// packets. In Git: uploadpack.keepAlive.
	KeepAlive Duration `toml:"keep_alive" default:"5s"`

	// SessionID makes server and client exchange session IDs for their logs. In Git: transfer.advertiseSID.
	SessionID bool `toml:"session_id" default:"true"`

	// ObjectInfo allows clients of protocol version 2 to ask for the sizes of objects. In Git:
	// transfer.advertiseObjectInfo.
	ObjectInfo bool `toml:"object_info" default:"true"`

	// VerifyPacks compares the packs of a repository with their checksums when Git makes a pack from them, once for each
	// state of the files (docs/explanation/cache.md). Git does not do that. Without it only clients notice damage, and
	// damaged packs stay in the cache. Packs that the server makes itself are always checked.
	VerifyPacks bool `toml:"verify_packs" default:"true"`
}

// Policy returns the policy for repositories whose configuration does not change it.
func (c *FetchConfig) Policy() *repo.Policy {
	p := repo.DefaultPolicy()
	p.Filter, p.RefInWant, p.SessionID, p.ObjectInfo = c.AllowFilter, c.AllowRefInWant, c.SessionID, c.ObjectInfo
	p.AllowTip, p.AllowReachable, p.AllowAny = c.AllowTip, c.AllowReachable, c.AllowAny
	p.Unborn, p.KeepAlive, p.Grace = repo.Unborn(c.Unborn), c.KeepAlive.Duration, c.Grace.Duration
	return &p
}
