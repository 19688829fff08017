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

	// AllowFilter allows partial clones. In Git: uploadpack.allowFilter.
	AllowFilter bool `toml:"allow_filter" default:"true"`

	// VerifyPacks compares the packs of a repository with their checksums when Git makes a pack from them, once for each
	// state of the files (docs/explanation/cache.md). Git does not do that. Without it only clients notice damage, and
	// damaged packs stay in the cache. Packs that the server makes itself are always checked.
	VerifyPacks bool `toml:"verify_packs" default:"true"`
}

// Policy returns the policy for repositories whose configuration does not change it.
func (c *FetchConfig) Policy() *repo.Policy {
	p := repo.DefaultPolicy()
	p.Filter, p.Grace = c.AllowFilter, c.Grace.Duration
	return &p
}
