package config

import (
	"strings"

	"github.com/packhorse-git/packhorse/internal/gateway/resolve"
)

// ResolverConfig caches revisions that a gateway has resolved (docs/explanation/resolver.md). In serve the node is in
// the same process and needs no cache.
type ResolverConfig struct {
	// Entries is the maximum number of cached answers, about 500 bytes each. 0 means no cache.
	Entries int `toml:"entries" default:"100000" range:"0.."`

	// Watched is the number of repositories whose changes nodes report to a gateway. Cached answers about other
	// repositories are valid for ttl.
	Watched int `toml:"watched" default:"10000" range:"1..10000"`

	// TTL is how long a cached answer is valid while its repository is not watched or the node is disconnected. It is
	// also the time to live of values in Redis.
	TTL Duration `toml:"ttl" default:"1m" range:">0s"`

	// MissingTTL is how long at most a missing revision is cached.
	MissingTTL Duration `toml:"missing_ttl" default:"2s" range:">0s"`

	// Redis is the URL of a Redis for answers that gateways share: "redis://[USER@]HOST[:PORT][/DB]", "rediss://..."
	// for TLS, or "unix:///PATH". Empty means none. While Redis fails it is bypassed, and no request fails.
	Redis string `toml:"redis"`

	// RedisCA is the PEM file with the certificates of the authorities that sign the certificate of Redis, for
	// "rediss://...". Empty means those that the system trusts.
	RedisCA string `toml:"redis_ca" path:"yes"`

	// RedisPasswordFile is the file with the password of Redis: one word of at least 16 bytes. Only its owner may read
	// the file (mode 0600). Changes apply at once.
	RedisPasswordFile string `toml:"redis_password_file" path:"yes"`

	// RedisSecretFile is the file with a secret that authenticates the values in Redis: one word of at least 16 bytes.
	// Only its owner may read the file (mode 0600). With it, values that others wrote are ignored. All gateways need
	// the same secret. It is read at the start.
	RedisSecretFile string `toml:"redis_secret_file" path:"yes"`

	// RedisTimeout is how long a request may wait for Redis. Then Redis is bypassed.
	RedisTimeout Duration `toml:"redis_timeout" default:"50ms" range:">0s"`
}

func (c *ResolverConfig) check(bad func(format string, args ...any)) {
	if c.Redis == "" {
		return
	}
	if _, err := resolve.ParseRedisURL(c.Redis); err != nil {
		bad("resolver.redis: %w", err)
	}
	if c.RedisCA != "" && !strings.HasPrefix(c.Redis, "rediss://") {
		bad("resolver.redis_ca is for a Redis that uses TLS: resolver.redis has to begin with rediss://")
	}
	if c.Entries == 0 {
		bad("resolver.redis needs resolver.entries: values in Redis are used only for versions that memory knows to be " +
			"current")
	}
}
