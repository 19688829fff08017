package config

// AuthConfig sets authentication and permissions (docs/how-to/auth.md). A gateway and serve authenticate callers. A
// storage node trusts its gateways.
type AuthConfig struct {
	// Tokens is the file with the hashes of the tokens that "packhorse token" creates and revokes. Changes apply at
	// once. Empty means STATE/tokens. Any other file must exist when the server starts.
	Tokens string `toml:"tokens" path:"yes"`

	// Guesses is the number of wrong credentials that are not delayed, for each client address. After them one is answered
	// each minute, and others get 429 with Retry-After. Right tokens are never delayed. Empty passwords, a repeated wrong
	// credential, and wrong credentials before a right one do not count. Zero means no limit.
	Guesses int `toml:"guesses" default:"10" range:"0.."`

	// TTL is how long an origin's permission for a caller is cached: an access that is revoked at the origin ends after at
	// most this time. A refusal is cached for at most 10 seconds, or 30 if the repository does not exist. Origins are
	// those of [auth.origin] and [[mirror]].
	TTL Duration `toml:"ttl" default:"1m" range:">0s"`

	Rule   []RuleConfig `toml:"rule"`
	Hook   HookConfig   `toml:"hook"`
	OIDC   []OIDCConfig `toml:"oidc"`
	Origin OriginConfig `toml:"origin"`
}

// OriginConfig asks a forge on the same disk whether a caller may read a repository, with the caller's own credential
// (docs/how-to/sidecar.md). The repositories belong to the forge, so push.enabled and maintenance.enabled are false.
type OriginConfig struct {
	// URL is the forge: "https://HOST/" or "http://HOST/", with a path if its repositories are below one. Empty means
	// that there is none.
	URL string `toml:"url"`

	// Prefix is the directory below the root that has the forge's repositories. It is not a part of their paths at the
	// forge. Empty means the root itself.
	Prefix string `toml:"prefix"`

	// FoldCase changes paths of requests to lower case, as Gitea and Forgejo do on their disk.
	FoldCase bool `toml:"fold_case"`

	// Private allows a forge whose name has addresses of private networks or of this machine. A forge whose URL has an
	// address, or localhost, needs no permission.
	Private bool `toml:"private"`

	// CA is the PEM file with the certificates of the authorities that sign the forge's certificate. Empty means those of
	// the system.
	CA string `toml:"ca" path:"yes"`

	// StaleFor is how long a permission holds while the forge does not answer.
	StaleFor Duration `toml:"stale_for" default:"1h"`
}

// RuleConfig is a rule, which gives callers a permission for repositories. Each rule is a separate table. The first
// rule that matches a caller and a repository decides. If none matches, the hook decides; without a hook the request is
// refused. Without rules and hook, a token allows what its scope says. SIGHUP reads the rules again, but not if all of
// them are gone.
type RuleConfig struct {
	// Who lists callers: "anonymous" for callers without credentials, "*" for all others, a name ("alice"), or a
	// name with its kind of credential: "token:ci", "key:alice", "certificate:alice", "hook:alice", "oidc:*".
	Who []string `toml:"who"`

	// Repositories lists patterns of whole path components: "team/app" is one repository, "team/*" are those directly
	// in team, "team/**" are those at any depth below it, "**" are all. A final ".git" does not matter.
	Repositories []string `toml:"repositories"`

	// May is the highest permission: "none", "read", "write" or "admin". Each includes the ones before it. Anonymous
	// callers may at most read. Everybody may do what anonymous callers may. A token never allows more than its scope.
	May string `toml:"may"`
}

// HookConfig is the auth hook: an application that checks credentials other than our tokens over HTTP, and decides
// about requests that no rule matches.
type HookConfig struct {
	// URL is the URL to which questions are sent with POST: "http://..." or "https://...". Empty means no hook.
	URL string `toml:"url"`

	// SecretFile is the file with the secret that is sent as "Authorization: Bearer SECRET": one word of at least 16
	// bytes. Only its owner may read the file (mode 0600). Changes apply at once.
	SecretFile string `toml:"secret_file" path:"yes"`

	// Timeout is how long the hook may take to answer. After that the request gets 503 with Retry-After.
	Timeout Duration `toml:"timeout" default:"2s" range:">0s"`

	// CacheTTL is how long an answer is cached. A refusal is cached for at most 10 seconds.
	CacheTTL Duration `toml:"cache_ttl" default:"1m"`

	// Many reports that the hook answers questions about many repositories at once ("readable", docs/how-to/auth.md).
	// Searches ask them. If it is false, each repository needs a separate question.
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

	// Claims lists the claims that a token must have, with their patterns: { repository_owner = "acme", ref =
	// "refs/heads/*" }. "*" matches any characters, also slashes, and "?" one.
	Claims stringTable `toml:"claims"`

	// Repositories lists the repositories that a token gives access to, as patterns like those of auth.rule, with claims
	// in braces: "github.com/{repository}". If the value of a claim is missing or is not a path, the pattern gives no
	// access. A pattern without a claim needs claims.
	Repositories []string `toml:"repositories"`

	// May is the highest permission: "read" or "write". Rules may limit it further (who = ["oidc:*"]).
	May string `toml:"may" default:"read" values:"read write"`

	// JWKSURL is the URL of the issuer's keys. Empty means that the issuer's configuration names it, with the issuer's
	// host.
	JWKSURL string `toml:"jwks_url"`

	// CA is the file with the authorities of the issuer's certificate. Empty means those of the system.
	CA string `toml:"ca" path:"yes"`

	// TokenFile is the file with a Bearer token for the requests to the issuer, as the API server of Kubernetes needs it.
	TokenFile string `toml:"token_file" path:"yes"`
}
