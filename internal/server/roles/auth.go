package roles

import (
	"log/slog"
	"net/url"

	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/server/config"
	"github.com/packhorse-git/packhorse/internal/transport/credfile"
)

// newAuth makes the Auth of a gateway. Add a further authenticator to the list here. mirrors asks the origins of
// mirrors, and may be nil.
func newAuth(d *deps, mirrors auth.Prober, access *auth.Access) (*auth.Auth, error) {
	cfg, log := d.cfg, d.log
	rules, err := cfg.Auth.Rules()
	if err != nil {
		return nil, err
	}
	metrics := auth.NewMetrics(d.reg)
	host, err := config.SplitAddress(cfg.HTTP.Address)
	if err != nil {
		return nil, err
	}
	sources := auth.NewSources(metrics, log)
	var keys *auth.Keys
	if cfg.SSH.Address != "" {
		if keys, err = cfg.SSH.LoadKeys(sources, log); err != nil {
			return nil, err
		}
	}
	hook, err := newHook(cfg.Auth.Hook, log, metrics, sources)
	if err != nil {
		return nil, err
	}
	o := auth.Options{
		Rules: rules, Access: access, Hook: hook, OpenRead: cfg.HTTP.PublicRead, OpenUntilKnown: config.IsLoopback(host),
		Guesses: cfg.Auth.Guesses, Metrics: metrics, Sources: sources, Log: log,
	}
	if o.Origins, err = newOrigins(d, mirrors, metrics); err != nil {
		return nil, err
	}
	if len(cfg.Auth.OIDC) > 0 { // before the tokens, which may accept every secret
		jobs, err := auth.NewOIDC(auth.OIDCOptions{Rules: cfg.Auth.OIDCRules(), Sources: sources})
		if err != nil {
			return nil, err
		}
		o.Authenticators = append(o.Authenticators, jobs)
	}
	if access.IsShared() {
		o.Authenticators = append(o.Authenticators, access.SharedTokens(sources))
	}
	o.Authenticators = append(o.Authenticators, auth.NewTokens(auth.TokenOptions{
		File: auth.NewTokenFile(cfg.Auth.Tokens), All: hook == nil && o.Origins == nil, Sources: sources, Log: log}))
	if keys != nil {
		o.Authenticators = append(o.Authenticators, keys)
	}
	if hook != nil {
		o.Authenticators = append(o.Authenticators, hook)
	}
	callers := auth.New(o)
	callers.ShowRules(cfg.Auth.RuleSet())
	d.mentions = append(d.mentions, callers.Mentions)
	if !config.IsLoopback(host) && cfg.HTTP.TLSCert == "" && callers.Configured() {
		log.Warn("credentials of callers arrive without TLS, unless a proxy terminates it: set --tls-cert and --tls-key",
			"address", cfg.HTTP.Address)
	}
	followRules(d, callers)
	return callers, nil
}

// followRules has rules follow the configuration.
func followRules(d *deps, callers *auth.Auth) {
	d.life.onReload(func(cfg config.Config) error {
		rules, err := cfg.Auth.Rules()
		if err != nil {
			return err
		}
		return callers.CheckRules(rules)
	}, func(cfg config.Config) error {
		rules, err := cfg.Auth.Rules()
		if err == nil {
			callers.SetRules(rules)
			callers.ShowRules(cfg.Auth.RuleSet())
		}
		return err
	})
}

// newAccess returns the tokens and rules that are managed while the server runs. log is that of the object store.
func newAccess(cfg *config.Config, log node.AccessLog) *auth.Access {
	if cfg.Auth.Shared {
		return auth.AccessInLog(log)
	}
	return auth.AccessInFile(auth.NewTokenFile(cfg.Auth.Tokens))
}

// hookAnswers is the maximum number of cached answers of the auth hook.
const hookAnswers = 10_000

// newHook makes the auth hook, or returns nil if auth.hook.url is empty.
func newHook(h config.HookConfig, log *slog.Logger, metrics *auth.Metrics, sources *auth.Sources) (*auth.Hook, error) {
	if h.URL == "" {
		return nil, nil
	}
	o := auth.HookOptions{
		URL: h.URL, Timeout: h.Timeout.Duration, TTL: h.CacheTTL.Duration, Size: hookAnswers,
		Stale: h.Fail == config.FailStale, PerAddress: h.PerAddress, Many: h.Many,
		Metrics: metrics, Sources: sources, Log: log,
	}
	if h.SecretFile != "" {
		secret, err := credfile.LoadSecret(h.SecretFile, log)
		if err != nil {
			return nil, err
		}
		o.Secret = secret.Get
	}
	if u, err := url.Parse(h.URL); err == nil && u.Scheme == "http" && !config.IsLoopback(u.Hostname()) {
		log.Warn("credentials are sent to the auth hook without TLS", "host", u.Host)
	}
	return auth.NewHook(o), nil
}
