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

	// RedisCA is the PEM file with the authorities of the certificate of Redis. Empty means those of the system.
	RedisCA string `toml:"redis_ca" path:"yes"`

	// RedisPasswordFile is the file with the password of Redis; see storage.secret_file.
	RedisPasswordFile string `toml:"redis_password_file" path:"secret"`

	// RedisSecretFile is the file with a secret that authenticates the values in Redis, the same for all gateways; see
	// storage.secret_file. With it, values that others wrote are ignored. It is read at the start.
	RedisSecretFile string `toml:"redis_secret_file" path:"secret"`

	// RedisTimeout is how long a request may wait for Redis. Then Redis is bypassed.
	RedisTimeout Duration `toml:"redis_timeout" default:"50ms" range:">0s"`
}

func (c *ResolverConfig) check(f *Findings) {
	if c.Redis == "" {
		return
	}
	if _, err := resolve.ParseRedisURL(c.Redis); err != nil {
		f.bad("resolver.redis: %w", err)
	}
	if c.RedisCA != "" && !strings.HasPrefix(c.Redis, "rediss://") {
		f.bad("resolver.redis_ca is for a Redis that uses TLS: resolver.redis has to begin with rediss://")
	}
}
