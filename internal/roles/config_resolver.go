package roles

import (
	"log/slog"

	"github.com/packhorse-git/packhorse/internal/config"
	"github.com/packhorse-git/packhorse/internal/credfile"
	"github.com/packhorse-git/packhorse/internal/resolve"
)

// redis makes the tier in Redis; nil: there is none.
func newRedis(c *config.ResolverConfig, metrics *resolve.Metrics, log *slog.Logger) (*resolve.Redis, error) {
	if c.Redis == "" {
		return nil, nil
	}
	o := resolve.RedisOptions{URL: c.Redis, Timeout: c.RedisTimeout.Duration, TTL: c.TTL.Duration, Metrics: metrics, Log: log}
	if c.RedisCA != "" {
		authorities, err := credfile.LoadAuthorities(c.RedisCA, log)
		if err != nil {
			return nil, err
		}
		o.Authorities = authorities.Pool()
	}
	if c.RedisPasswordFile != "" {
		password, err := credfile.LoadSecret(c.RedisPasswordFile, log)
		if err != nil {
			return nil, err
		}
		o.Password = password.Get
	}
	if c.RedisSecretFile != "" {
		secret, err := credfile.LoadSecret(c.RedisSecretFile, log)
		if err != nil {
			return nil, err
		}
		o.Secret = []byte(secret.Get())
	}
	return resolve.NewRedis(o)
}
