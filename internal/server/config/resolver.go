package config

import (
	"strings"

	"github.com/packhorse-git/packhorse/internal/gateway/resolve"
)

// ResolverConfig caches revisions that a gateway has resolved (docs/explanation/resolver.md). In serve the node is in
// the same process and needs no cache.
type ResolverConfig struct {
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
}
