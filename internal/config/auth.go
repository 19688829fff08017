package config

import "time"

// AuthConfig says who may do what; docs/how-to/auth.md tells how it fits together. A gateway and serve know callers; a storage node trusts its gateways.
type AuthConfig struct {
	// File with the hashes of the tokens that "packhorse token" makes and revokes; a server follows it. Empty means
	// STATE/tokens. Another file has to exist when the server starts.
	Tokens string `toml:"tokens"`

	// Guesses is the number of wrong credentials that are not delayed, for each client address and for each user name. After them one is
	// answered each minute, and others get 429 with Retry-After. Right tokens are never delayed. Empty passwords, a repeated wrong credential,
	// and wrong credentials before a right one do not count. Zero means no limit. Default 10.
	Guesses int `toml:"guesses"`

	Rule []RuleConfig `toml:"rule"`
	Hook HookConfig   `toml:"hook"`
}

// RuleConfig says what some callers may do with some repositories; each has a table of its own. The first that is for a
// caller and a repository decides; where none is, the hook does; without a hook nothing is allowed. Without any rule
// and hook, whoever has a token may do what the token is for. SIGHUP reads them again, and does not take a
// configuration that has lost all of them.
type RuleConfig struct {
	// Who: "anonymous" for callers who say nothing of themselves, "*" for those who are known, a name ("alice"), or a name with how it was proved:
	// "token:ci", "key:alice", "certificate:alice", "hook:alice".
	Who []string `toml:"who"`

	// Which repositories, by whole components of their paths: "team/app" that one, "team/*" those directly in team, "team/**" those at any depth
	// below it, "**" all. A final ".git" does not count.
	Repositories []string `toml:"repositories"`

	// What they may do: "none", "read", "write" or "admin", each with those before it. Anonymous callers may read at most. What they may, everybody
	// may. A token may do no more than it was made for, whatever the rules say.
	May string `toml:"may"`
}

// HookConfig is an application that is asked, over HTTP, whom a credential that is no token of ours proves, and what callers may do whom no rule is
// about.
type HookConfig struct {
	// Where questions are sent with POST: "http://..." or "https://...". Empty: there is no hook.
	URL string `toml:"url"`

	// File with the secret that is sent along as "Authorization: Bearer SECRET": one word of at least 16 bytes, that others cannot read (mode 0600).
	// It is read again when it changes.
	SecretFile string `toml:"secret_file"`

	// How long an answer may take. Without one a request is answered with 503 and Retry-After.
	Timeout Duration `toml:"timeout"`

	// How long an answer is remembered; one that refuses for 10 seconds at most.
	CacheTTL Duration `toml:"cache_ttl"`

	// The most answers that are remembered; and 20 times as many about which repositories callers may read who search.
	CacheSize int `toml:"cache_size"`

	// Whether it understands the question which of many repositories somebody may read, as searches ask ("readable", docs/how-to/auth.md). If not, each
	// repository is a question.
	Many bool `toml:"many"`

	// What holds when the hook fails: "closed", nothing, or "stale", an answer that is remembered and ran out within the last hour.
	Fail string `toml:"fail"`

	// Whether an answer holds for the client's address alone that was in the question.
	PerAddress bool `toml:"per_address"`
}

// Values of auth.hook.fail.
const (
	failClosed = "closed"
	FailStale  = "stale"
)

func defaultAuth() AuthConfig {
	return AuthConfig{
		Guesses: 10,
		Hook:    HookConfig{Timeout: Duration{2 * time.Second}, CacheTTL: Duration{time.Minute}, CacheSize: 10_000, Fail: failClosed},
	}
}

func (c *AuthConfig) checkNumbers(b bounds) {
	b.number("auth.guesses", c.Guesses, 0, many)
	b.number("auth.hook.cache_size", c.Hook.CacheSize, 0, many)
}
