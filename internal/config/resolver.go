package config

import (
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/resolve"
)

// ResolverConfig caches revisions that a gateway has resolved (docs/explanation/resolver.md). In serve the node is in
// the same process and needs no cache.
type ResolverConfig struct {
	// Entries is the maximum number of cached answers, about 500 bytes each. 0 means no cache.
	Entries int `toml:"entries"`

	// Watched is the number of repositories whose changes nodes report to a gateway. Cached answers about other
	// repositories are valid for ttl.
	Watched int `toml:"watched"`

	// TTL is how long a cached answer is valid while its repository is not watched or the node is disconnected. It is
	// also the time to live of values in Redis.
	TTL Duration `toml:"ttl"`

	// MissingTTL is how long at most a missing revision is cached.
	MissingTTL Duration `toml:"missing_ttl"`

	// Redis is the URL of a Redis for answers that gateways share: "redis://[USER@]HOST[:PORT][/DB]", "rediss://..."
	// for TLS, or "unix:///PATH". Empty means none. While Redis fails it is bypassed, and no request fails.
	Redis string `toml:"redis"`

	// RedisCA is the PEM file with the certificates of the authorities that sign the certificate of Redis, for
	// "rediss://...". Empty means those that the system trusts.
	RedisCA string `toml:"redis_ca"`

	// RedisPasswordFile is the file with the password of Redis: one word of at least 16 bytes. Only its owner may read
	// the file (mode 0600). Changes apply at once.
	RedisPasswordFile string `toml:"redis_password_file"`

	// RedisSecretFile is the file with a secret that authenticates the values in Redis: one word of at least 16 bytes.
	// Only its owner may read the file (mode 0600). With it, values that others wrote are ignored. All gateways need
	// the same secret. It is read at the start.
	RedisSecretFile string `toml:"redis_secret_file"`

	// RedisTimeout is how long a request may wait for Redis. Then Redis is bypassed.
	RedisTimeout Duration `toml:"redis_timeout"`
}

func defaultResolver() ResolverConfig {
	return ResolverConfig{
		Entries: 100_000, Watched: 10_000, TTL: Duration{time.Minute}, MissingTTL: Duration{2 * time.Second},
		RedisTimeout: Duration{50 * time.Millisecond},
	}
}

func (c *ResolverConfig) checkNumbers(b bounds) {
	b.number("resolver.entries", c.Entries, 0, many)
	b.number("resolver.watched", c.Watched, 1, 10_000)
	b.time("resolver.ttl", c.TTL)
	b.time("resolver.missing_ttl", c.MissingTTL)
	b.time("resolver.redis_timeout", c.RedisTimeout)
	if c.Redis == "" {
		return
	}
	if _, err := resolve.ParseRedisURL(c.Redis); err != nil {
		b.bad("resolver.redis: %w", err)
	}
	if c.RedisCA != "" && !strings.HasPrefix(c.Redis, "rediss://") {
		b.bad("resolver.redis_ca is for a Redis that speaks TLS: resolver.redis has to begin with rediss://")
	}
	if c.Entries == 0 {
		b.bad("resolver.redis needs resolver.entries: what is in Redis is used only for versions that memory knows to be " +
			"current")
	}
}
