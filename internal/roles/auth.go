package roles

import (
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/auth"
	"github.com/packhorse-git/packhorse/internal/credfile"
)

// rules reads the [[auth.rule]] tables.
func (c *AuthConfig) rules() ([]auth.Rule, error) {
	var all []auth.Rule
	for i, r := range c.Rule {
		rule, err := auth.ParseRule(r.Who, r.Repositories, r.May)
		if err != nil {
			return nil, fmt.Errorf("auth.rule %d: %w", i+1, err)
		}
		all = append(all, rule)
	}
	return all, nil
}

// check finds what is wrong with a rule: each of its words by itself, and if none is, all together.
func (r *RuleConfig) check(i int, f *findings) {
	wrong := false
	look := func(key string, who, repositories []string, may string) {
		if _, err := auth.ParseRule(who, repositories, may); err != nil {
			wrong = true
			f.at(fmt.Sprintf("auth.rule[%d]%s", i, key))("auth.rule %d: %w", i+1, err)
		}
	}
	for _, who := range r.Who {
		look(".who", []string{who}, []string{"**"}, "none")
	}
	for _, pattern := range r.Repositories {
		look(".repositories", []string{"*"}, []string{pattern}, "none")
	}
	look(".may", []string{"*"}, []string{"**"}, r.May)
	if !wrong {
		look("", r.Who, r.Repositories, r.May)
	}
}

// knowsCallers tells whether the configuration or the machine has what callers can be told from one another by.
func (c *AuthConfig) knowsCallers() bool {
	if len(c.Rule) > 0 || c.Hook.URL != "" {
		return true
	}
	info, err := os.Stat(c.Tokens)
	return err == nil && info.Size() > 0
}

// checkAuth finds what cannot be right about who may do what.
func (c *Config) checkAuth(f *findings) {
	bad := f.bad
	for i := range c.Auth.Rule {
		c.Auth.Rule[i].check(i, f)
	}
	h := &c.Auth.Hook
	if h.URL == "" {
		return
	}
	u, err := url.Parse(h.URL)
	switch {
	case err != nil, u.Scheme != "http" && u.Scheme != "https", u.Host == "":
		bad("auth.hook.url is no URL with http or https and a host") // it may hold a secret: it is not shown
	case u.User != nil:
		bad("auth.hook.url holds a user name or a password; put the secret into a file, and name it with auth.hook.secret_file")
	}
	if h.Timeout.Duration <= 0 {
		bad("auth.hook.timeout is %s; it has to be more than 0s", h.Timeout)
	}
}

// checkOpen refuses to let in more than is meant: from other machines everybody reaches the listener.
func (c *Config) checkOpen() error {
	host, err := splitAddress(c.HTTP.Address)
	if err != nil || isLoopback(host) || c.HTTP.PublicRead || c.Auth.knowsCallers() || c.SSH.Address != "" && c.SSH.knowsKeys() {
		return nil
	}
	return fmt.Errorf("http.address %q can be reached by other machines, and nobody has to say who they are, so everybody could read every repository: "+
		"add --public-read (http.public_read = true) if that is meant, make a token (packhorse token create NAME) or write [[auth.rule]] tables if not, "+
		"or listen on 127.0.0.1", c.HTTP.Address)
}

// checkTokens refuses a file of tokens that cannot be read, or is not there where it was named or had been: without
// it everybody might be let in.
func (c *Config) checkTokens() error {
	if c.Auth.Tokens == "" {
		return nil
	}
	named := c.Auth.Tokens != filepath.Join(c.State, "tokens")
	return auth.NewTokenFile(c.Auth.Tokens).Check(named)
}

// newAuth makes what knows callers. Its close is called once, last.
func newAuth(cfg Config, log *slog.Logger, reg prometheus.Registerer) (*auth.Auth, error) {
	rules, err := cfg.Auth.rules()
	if err != nil {
		return nil, err
	}
	metrics := auth.NewMetrics()
	host, err := splitAddress(cfg.HTTP.Address)
	if err != nil {
		return nil, err
	}
	o := auth.Options{
		Tokens: auth.NewTokenFile(cfg.Auth.Tokens), Rules: rules, OpenRead: cfg.HTTP.PublicRead, OpenUntilKnown: isLoopback(host),
		Keys: cfg.SSH.Address != "" && cfg.SSH.knowsKeys(), Guesses: cfg.Auth.Guesses, Metrics: metrics, Log: log,
	}
	if h := cfg.Auth.Hook; h.URL != "" {
		hook := auth.HookOptions{
			URL: h.URL, Timeout: h.Timeout.Duration, TTL: h.CacheTTL.Duration, Size: h.CacheSize, Stale: h.Fail == failStale,
			PerAddress: h.PerAddress, Many: h.Many, Metrics: metrics, Log: log,
		}
		if h.SecretFile != "" {
			secret, err := credfile.LoadSecret(h.SecretFile, log)
			if err != nil {
				return nil, err
			}
			hook.Secret = secret.Get
		}
		if u, err := url.Parse(h.URL); err == nil && u.Scheme == "http" && !isLoopback(u.Hostname()) {
			log.Warn("what callers offer to prove who they are goes to the auth hook without TLS", "host", u.Host)
		}
		o.Hook = auth.NewHook(hook)
	}
	register(reg, metrics)
	callers := auth.New(o)
	if !isLoopback(host) && cfg.HTTP.TLSCert == "" && callers.Configured() {
		log.Warn("tokens and passwords of callers come without TLS, unless something in front of http.address has it: give --tls-cert and --tls-key", "address", cfg.HTTP.Address)
	}
	return callers, nil
}
