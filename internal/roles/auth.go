package roles

import (
	"log/slog"
	"net/url"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/auth"
	"github.com/packhorse-git/packhorse/internal/config"
	"github.com/packhorse-git/packhorse/internal/credfile"
)

// newAuth makes what knows callers. Its close is called once, last.
func newAuth(cfg config.Config, log *slog.Logger, reg prometheus.Registerer) (*auth.Auth, error) {
	rules, err := cfg.Auth.Rules()
	if err != nil {
		return nil, err
	}
	metrics := auth.NewMetrics()
	host, err := config.SplitAddress(cfg.HTTP.Address)
	if err != nil {
		return nil, err
	}
	o := auth.Options{
		Tokens: auth.NewTokenFile(cfg.Auth.Tokens), Rules: rules, OpenRead: cfg.HTTP.PublicRead, OpenUntilKnown: config.IsLoopback(host),
		Keys: cfg.SSH.Address != "" && cfg.SSH.KnowsKeys(), Guesses: cfg.Auth.Guesses, Metrics: metrics, Log: log,
	}
	if h := cfg.Auth.Hook; h.URL != "" {
		hook := auth.HookOptions{
			URL: h.URL, Timeout: h.Timeout.Duration, TTL: h.CacheTTL.Duration, Size: h.CacheSize, Stale: h.Fail == config.FailStale,
			PerAddress: h.PerAddress, Many: h.Many, Metrics: metrics, Log: log,
		}
		if h.SecretFile != "" {
			secret, err := credfile.LoadSecret(h.SecretFile, log)
			if err != nil {
				return nil, err
			}
			hook.Secret = secret.Get
		}
		if u, err := url.Parse(h.URL); err == nil && u.Scheme == "http" && !config.IsLoopback(u.Hostname()) {
			log.Warn("what callers offer to prove who they are goes to the auth hook without TLS", "host", u.Host)
		}
		o.Hook = auth.NewHook(hook)
	}
	register(reg, metrics)
	callers := auth.New(o)
	if !config.IsLoopback(host) && cfg.HTTP.TLSCert == "" && callers.Configured() {
		log.Warn("tokens and passwords of callers come without TLS, unless something in front of http.address has it: give --tls-cert and --tls-key", "address", cfg.HTTP.Address)
	}
	return callers, nil
}
