package config

import (
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/resolve"
)

// ResolverConfig is what a gateway remembers of its nodes' revisions (docs/explanation/resolver.md). In serve the node is in the same process, and is asked itself.
type ResolverConfig struct {
	// How many answers a gateway remembers in memory, about 500 bytes each. 0: none, each question goes to a node.
	Entries int `toml:"entries"`

	// How many repositories a gateway has nodes tell it of changes of. What is remembered of others holds for the TTL.
	Watched int `toml:"watched"`

	// For how long what is remembered holds while nodes tell of no changes: it is not among those watched, or the connection is broken. It is also the
	// time to live of values in Redis.
	TTL Duration `toml:"ttl"`

	// For how long it is remembered at most that a repository has no such revision.
	MissingTTL Duration `toml:"missing_ttl"`

	// A Redis that gateways share answers in: "redis://[USER@]HOST[:PORT][/DB]", "rediss://..." for TLS, or "unix:///PATH". Empty: none. While it
	// fails it is bypassed; no request fails for it.
	Redis string `toml:"redis"`

	// File with the certificates (PEM) of those who sign the Redis's certificate, for "rediss://...". Empty: those whom the system trusts.
	RedisCA string `toml:"redis_ca"`

	// File with the password of the Redis: one word of at least 16 bytes, that others cannot read (mode 0600). It is read again when it changes.
	RedisPasswordFile string `toml:"redis_password_file"`

	// File with a secret that gateways mark values in Redis with: one word of at least 16 bytes, that others cannot read (mode 0600). With it nothing is
	// believed that others wrote there. All gateways need the same one; it is read at the start.
	RedisSecretFile string `toml:"redis_secret_file"`

	// How long a question may wait for Redis, once; then Redis is bypassed.
	RedisTimeout Duration `toml:"redis_timeout"`
}

func defaultResolver() ResolverConfig {
	return ResolverConfig{
		Entries: 100_000, Watched: 10_000, TTL: Duration{time.Minute}, MissingTTL: Duration{2 * time.Second}, RedisTimeout: Duration{50 * time.Millisecond},
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
		b.bad("resolver.redis needs resolver.entries: what is in Redis is used only for versions that memory knows to be current")
	}
}
