package config

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"

	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/mirror/origin"
)

// AuthConfig sets authentication and permissions (docs/how-to/auth.md). A gateway and serve authenticate callers. A
// storage node trusts its gateways.
type AuthConfig struct {
	// Tokens is the file with the hashes of the tokens that "packhorse token" creates and revokes. Changes apply at
	// once. Empty means STATE/tokens.
	Tokens string `toml:"tokens" path:"yes"`

	// Shared keeps new tokens, and the rules of RuleService, in the object store of the storage nodes instead of the state
	// directory. All gateways of the store, and serve with [store], have the same ones. Tokens in the file stay valid.
	Shared bool `toml:"shared"`

	// Guesses is the number of wrong credentials that are not delayed, for each client address. After them one is answered
	// each minute, and others get 429 with Retry-After. Right tokens are never delayed. Zero means no limit.
	Guesses int `toml:"guesses" default:"10" range:"0.."`

	// TTL is how long a permission of [auth.origin] or of the origin of a mirror is cached: revoked access ends after at
	// most this time. A refusal is cached for at most 30 seconds.
	TTL Duration `toml:"ttl" default:"1m" range:">0s"`

	Group  []GroupConfig `toml:"group"`
	Rule   []RuleConfig  `toml:"rule"`
	Hook   HookConfig    `toml:"hook"`
	OIDC   []OIDCConfig  `toml:"oidc"`
	Origin OriginConfig  `toml:"origin"`
}

// OriginConfig asks a forge on the same disk whether a caller may read a repository, with the caller's own credential
// (docs/how-to/sidecar.md). The repositories belong to the forge, so push.enabled and maintenance.enabled are false.
type OriginConfig struct {
	// URL is the forge: "https://HOST/" or "http://HOST/", with a path if its repositories are below one. Empty means
	// that there is none.
	URL string `toml:"url"`

	// Prefix is the directory below the root that has the forge's repositories. Empty means the root itself.
	Prefix string `toml:"prefix"`

	// FoldCase changes paths of requests to lower case, as Gitea and Forgejo do on their disk.
	FoldCase bool `toml:"fold_case"`

	// Private allows a forge whose name has addresses of private networks or of this machine. URLs with an address, or
	// localhost, are always allowed.
	Private bool `toml:"private"`

	// CA is the PEM file with the authorities of the forge's certificate. Empty means those of the system.
	CA string `toml:"ca" path:"authorities"`

	// StaleFor is how long a permission holds while the forge does not answer.
	StaleFor Duration `toml:"stale_for" default:"1h"`
}

// GroupConfig is a group of callers, which rules name as "group:NAME".
type GroupConfig struct {
	// Name has letters, digits and "._-@+".
	Name string `toml:"name"`

	// Members lists names, and names with the kind of their credential, as in auth.rule.who. Groups have no groups.
	Members []string `toml:"members"`
}

// RuleConfig is a rule, which gives callers a permission for repositories. Each rule is a separate table. The first
// rule that matches a caller and a repository decides. If none matches, the hook decides; without a hook the request is
// refused. Without rules and hook, a token allows what its scope says. SIGHUP reads the rules again.
type RuleConfig struct {
	// Who lists callers: "anonymous" for callers without credentials, "*" for all others, a name ("alice"), or a
	// name with its kind of credential: "token:ci", "key:alice", "certificate:alice", "hook:alice", "oidc:*". A group is
	// "group:devs".
	Who []string `toml:"who"`

	// Repositories lists patterns of whole path components: "team/app" is one repository, "team/*" are those directly
	// in team, "team/**" are those at any depth below it, "**" are all. A final ".git" does not matter. "{name}" stands
	// for the name of the caller: "users/{name}/**".
	Repositories []string `toml:"repositories"`

	// Refs lists patterns of full names of refs, such as "refs/heads/main" or "refs/heads/{name}/**". The rule then
	// decides only about changes of these refs. Other rules decide about reading and other refs.
	Refs []string `toml:"refs"`

	// May is the highest permission: "none", "read", "write" or "admin". Each includes the ones before it. Anonymous
	// callers may at most read, and everybody may do what they may. A token never allows more than its scope. Single
	// kinds of changes are "create", "write" (with refs: only fast-forwards), "force" and "delete", several with commas:
	// "create, write".
	May string `toml:"may"`

	// Name is shown when the rule refuses a change. Empty means its number.
	Name string `toml:"name"`
}

func (r *RuleConfig) spec() auth.RuleSpec {
	return auth.RuleSpec{Name: r.Name, Who: r.Who, Repositories: r.Repositories, Refs: r.Refs, May: r.May}
}

func (c *AuthConfig) groups() (groups []auth.GroupSpec) {
	for _, g := range c.Group {
		groups = append(groups, auth.GroupSpec{Name: g.Name, Members: g.Members})
	}
	return groups
}

// HookConfig is the auth hook: an application that checks credentials other than our tokens over HTTP, and decides
// about requests that no rule matches.
type HookConfig struct {
	// URL is the URL to which questions are sent with POST: "http://..." or "https://...". Empty means no hook.
	URL string `toml:"url"`

	// SecretFile is the file with the secret that is sent as "Authorization: Bearer SECRET"; see storage.secret_file.
	SecretFile string `toml:"secret_file" path:"secret"`

	// Timeout is how long the hook may take to answer. After that the request gets 503 with Retry-After.
	Timeout Duration `toml:"timeout" default:"2s" range:">0s"`

	// CacheTTL is how long an answer is cached. A refusal is cached for at most 10 seconds.
	CacheTTL Duration `toml:"cache_ttl" default:"1m"`

	// Many reports that the hook answers questions about many repositories at once, which searches ask.
	Many bool `toml:"many"`

	// Fail is the result when the hook fails: "closed" refuses, "stale" uses a cached answer that expired within the
	// last hour.
	Fail string `toml:"fail" default:"closed" values:"closed stale"`

	// PerAddress caches answers for each client address separately.
	PerAddress bool `toml:"per_address"`
}

// FailStale is the value of auth.hook.fail that uses cached answers.
const FailStale = "stale"

// OIDCConfig accepts the identity tokens of CI jobs (docs/how-to/ci-tokens.md). Each table is for the tokens of one
// issuer with certain claims, and there may be several for an issuer. The first one whose audience and claims match
// decides. Changed tables apply after a restart.
type OIDCConfig struct {
	// Issuer is the exact issuer of the tokens (the claim iss), such as "https://token.actions.githubusercontent.com".
	// Its keys are fetched from there over HTTPS.
	Issuer string `toml:"issuer"`

	// Audience is the exact audience of the tokens (the claim aud), which jobs request for this server.
	Audience string `toml:"audience"`

	// Claims lists the claims that a token must have, with their patterns, as in { ref = "refs/heads/*" }. "*" matches any
	// characters, and "?" one.
	Claims stringTable `toml:"claims"`

	// Repositories lists the repositories that a token gives access to, as patterns like those of auth.rule, with claims
	// in braces: "github.com/{repository}". A pattern without a claim needs claims.
	Repositories []string `toml:"repositories"`

	// May is the highest permission: "read" or "write". Rules may limit it further (who = ["oidc:*"]).
	May string `toml:"may" default:"read" values:"read write"`

	// Name is the claim with the name of the caller, such as "preferred_username" or "email", for people who sign in on
	// pages. Empty means a name made from the subject.
	Name string `toml:"name"`

	// JWKSURL is the URL of the issuer's keys. Empty means that the issuer's configuration names it.
	JWKSURL string `toml:"jwks_url"`

	// CA is the file with the authorities of the issuer's certificate. Empty means those of the system.
	CA string `toml:"ca" path:"yes"`

	// TokenFile is the file with a Bearer token for the requests to the issuer, as the API server of Kubernetes needs it.
	TokenFile string `toml:"token_file" path:"yes"`
}

// Rules reads the [[auth.rule]] tables.
func (c *AuthConfig) Rules() ([]auth.Rule, error) {
	set := c.RuleSet()
	return auth.ParseRules(set.Groups, set.Rules, auth.ConfiguredRule)
}

// RuleSet returns the groups and rules as they are written.
func (c *AuthConfig) RuleSet() auth.RuleSet {
	set := auth.RuleSet{Groups: c.groups()}
	for i := range c.Rule {
		set.Rules = append(set.Rules, c.Rule[i].spec())
	}
	return set
}

// lockedOut reports whether a rule refuses everything to everybody before any rule permits something.
func (c *AuthConfig) lockedOut() (last int, locked bool) {
	for i := range c.Rule {
		r := &c.Rule[i]
		switch {
		case r.May != "none":
			return 0, false
		case len(r.Refs) == 0 && slices.Contains(r.Who, "*") && slices.Contains(r.Repositories, "**"):
			return i, true
		}
	}
	return 0, false
}

// checkRules reports the mistakes in groups and rules: first in each word of a rule, then in their combination.
func (c *AuthConfig) checkRules(f *Findings) {
	groups := c.groups()
	for i := range groups {
		if _, err := auth.ParseRules(groups[:i+1], nil, nil); err != nil {
			f.at(fmt.Sprintf("auth.group[%d]", i), "auth.group %d: %w", i+1, err)
			return
		}
	}
	for i := range c.Rule {
		r, wrong := c.Rule[i].spec(), false
		look := func(key string, spec auth.RuleSpec) {
			label := func(int) string { return auth.ConfiguredRule(i) }
			if _, err := auth.ParseRules(groups, []auth.RuleSpec{spec}, label); err != nil {
				wrong = true
				f.at(fmt.Sprintf("auth.rule[%d]%s", i, key), "auth.%w", err)
			}
		}
		everybody, everything := []string{"*"}, []string{"**"}
		for _, who := range r.Who {
			look(".who", auth.RuleSpec{Who: []string{who}, Repositories: everything, May: "none"})
		}
		for _, pattern := range r.Repositories {
			look(".repositories", auth.RuleSpec{Who: everybody, Repositories: []string{pattern}, May: "none"})
		}
		for _, pattern := range r.Refs {
			look(".refs", auth.RuleSpec{Who: everybody, Repositories: everything, Refs: []string{pattern}, May: "none"})
		}
		look(".may", auth.RuleSpec{Who: everybody, Repositories: everything, May: r.May})
		if !wrong {
			look("", r)
		}
	}
}

// OIDCRules returns the [[auth.oidc]] tables.
func (c *AuthConfig) OIDCRules() (all []auth.OIDCRule) {
	for _, o := range c.OIDC {
		all = append(all, o.rule())
	}
	return all
}

func (o *OIDCConfig) rule() auth.OIDCRule {
	return auth.OIDCRule{Issuer: o.Issuer, Audience: o.Audience, Name: o.Name, Claims: o.Claims,
		Repositories: o.Repositories, May: o.May, JWKSURL: o.JWKSURL, CA: o.CA, TokenFile: o.TokenFile}
}

// KnowsCallers reports whether callers can be identified: there is a rule, a hook, an issuer of tokens or a token.
func (c *AuthConfig) KnowsCallers() bool {
	if len(c.Rule) > 0 || c.Shared || c.Hook.URL != "" || len(c.OIDC) > 0 {
		return true
	}
	info, err := os.Stat(c.Tokens)
	return err == nil && info.Size() > 0
}

// checkAuth reports mistakes in rules, issuers and the hook.
func (c *Config) checkAuth(f *Findings) {
	c.Auth.checkRules(f)
	for i := range c.Auth.OIDC {
		if err := c.Auth.OIDC[i].rule().Check(); err != nil {
			f.at(fmt.Sprintf("auth.oidc[%d]", i), "auth.oidc %d: %w", i+1, err)
		}
	}
	c.checkOrigin(f)
	h := &c.Auth.Hook
	if h.URL == "" {
		return
	}
	if c.originsDecide() {
		f.bad("auth.hook.url: callers' credentials for an origin must not reach the hook: remove [auth.hook], or " +
			"[auth.origin] and the [[mirror]] tables with auth = \"origin\"")
	}
	u, err := url.Parse(h.URL)
	switch {
	case err != nil, u.Scheme != "http" && u.Scheme != "https", u.Host == "":
		f.bad("auth.hook.url is not a URL with http or https and a host") // not shown, because it may contain a secret
	case u.User != nil:
		f.bad("auth.hook.url contains a user name or a password: put the secret into a file, and name it with " +
			"auth.hook.secret_file")
	}
}

// checkOrigin reports mistakes in [auth.origin].
func (c *Config) checkOrigin(f *Findings) {
	o := &c.Auth.Origin
	if o.URL == "" {
		return
	}
	if u, err := origin.ParseURL(o.URL); err != nil {
		f.bad("auth.origin.url: %w", err)
	} else if u.Scheme == "ssh" {
		f.bad("auth.origin.url: %q cannot check credentials: use https:// or http://", u.Redacted())
	}
	if o.Prefix != "" {
		if p, err := git.ParseRepoPath(o.Prefix); err != nil || p.String() != o.Prefix {
			f.bad("auth.origin.prefix: %q is not a path without slashes at its ends", o.Prefix)
		}
	}
	if c.Push.Enabled {
		f.bad("push.enabled: pushes go to the forge of [auth.origin]: set push.enabled = false")
	}
	if c.Maintenance.Enabled {
		f.bad("maintenance.enabled: the forge of [auth.origin] maintains its repositories: set maintenance.enabled = false")
	}
}

// CheckOpen returns an error if callers on other machines, or web pages of all origins, could read every repository
// without authentication.
func (c *Config) CheckOpen() error {
	host, err := SplitAddress(c.HTTP.Address)
	others, remedy := "other machines", "listen on 127.0.0.1"
	if IsLoopback(host) {
		if !slices.Contains(c.HTTP.CORSOrigins, "*") {
			return nil
		}
		others, remedy = "web pages (http.cors_origins)", "list their origins"
	}
	if err != nil || c.HTTP.PublicRead || c.Auth.KnowsCallers() || c.originsDecide() ||
		c.SSH.Address != "" && c.SSH.KnowsKeys() {
		return nil
	}
	return fmt.Errorf("http.address %q is reachable from %s, and there is no authentication, so everybody could read "+
		"every repository. Create a token (packhorse token create NAME), write [[auth.rule]] tables, %s, or make reading "+
		"public with --public-read (http.public_read = true)", c.HTTP.Address, others, remedy)
}

// CheckTokens returns an error if the file of tokens cannot be read, or is missing although it was configured or had
// existed. Without the file, callers might need no authentication.
func (c *Config) CheckTokens() error {
	if c.Auth.Tokens == "" {
		return nil
	}
	named := c.Auth.Tokens != filepath.Join(c.State, "tokens")
	return auth.NewTokenFile(c.Auth.Tokens).Check(named)
}
