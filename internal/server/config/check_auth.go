package config

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"

	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/mirror/origin"
)

// Rules reads the [[auth.rule]] tables.
func (c *AuthConfig) Rules() ([]auth.Rule, error) {
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

// check reports the mistakes in a rule: first in each of its words, then in their combination.
func (r *RuleConfig) check(i int, f *Findings) {
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

// OIDCRules returns the [[auth.oidc]] tables.
func (c *AuthConfig) OIDCRules() (all []auth.OIDCRule) {
	for _, o := range c.OIDC {
		all = append(all, o.rule())
	}
	return all
}

func (o *OIDCConfig) rule() auth.OIDCRule {
	return auth.OIDCRule{Issuer: o.Issuer, Audience: o.Audience, Claims: o.Claims, Repositories: o.Repositories,
		May: o.May, JWKSURL: o.JWKSURL, CA: o.CA, TokenFile: o.TokenFile}
}

// KnowsCallers reports whether callers can be identified: there is a rule, a hook, an issuer of tokens or a token.
func (c *AuthConfig) KnowsCallers() bool {
	if len(c.Rule) > 0 || c.Hook.URL != "" || len(c.OIDC) > 0 {
		return true
	}
	info, err := os.Stat(c.Tokens)
	return err == nil && info.Size() > 0
}

// checkAuth reports mistakes in rules, issuers and the hook.
func (c *Config) checkAuth(f *Findings) {
	bad := f.bad
	for i := range c.Auth.Rule {
		c.Auth.Rule[i].check(i, f)
	}
	for i := range c.Auth.OIDC {
		if err := c.Auth.OIDC[i].rule().Check(); err != nil {
			f.at(fmt.Sprintf("auth.oidc[%d]", i))("auth.oidc %d: %w", i+1, err)
		}
	}
	c.checkOrigin(f)
	h := &c.Auth.Hook
	if h.URL == "" {
		return
	}
	if c.originsDecide() {
		bad("auth.hook.url: callers' credentials for an origin must not reach the hook: remove [auth.hook], or " +
			"[auth.origin] and the [[mirror]] tables with auth = \"origin\"")
	}
	u, err := url.Parse(h.URL)
	switch {
	case err != nil, u.Scheme != "http" && u.Scheme != "https", u.Host == "":
		bad("auth.hook.url is not a URL with http or https and a host") // not shown, because it may contain a secret
	case u.User != nil:
		bad("auth.hook.url contains a user name or a password: put the secret into a file, and name it with " +
			"auth.hook.secret_file")
	}
}

// checkOrigin reports mistakes in [auth.origin].
func (c *Config) checkOrigin(f *Findings) {
	o := &c.Auth.Origin
	if o.URL == "" {
		return
	}
	if u, err := origin.ParseURL(o.URL); err != nil {
		f.bad("auth.origin.url: %w", err)
	} else if u.Scheme == "ssh" {
		f.bad("auth.origin.url: %q cannot check credentials: use https:// or http://", u.Redacted())
	}
	if o.Prefix != "" {
		if p, err := git.ParseRepoPath(o.Prefix); err != nil || p.String() != o.Prefix {
			f.bad("auth.origin.prefix: %q is not a path without slashes at its ends", o.Prefix)
		}
	}
	if c.Push.Enabled {
		f.bad("push.enabled: pushes go to the forge of [auth.origin]: set push.enabled = false")
	}
	if c.Maintenance.Enabled {
		f.bad("maintenance.enabled: the forge of [auth.origin] maintains its repositories: set maintenance.enabled = false")
	}
}

// CheckOpen returns an error if callers on other machines, or web pages of all origins, could read every repository
// without authentication.
func (c *Config) CheckOpen() error {
	host, err := SplitAddress(c.HTTP.Address)
	others, remedy := "other machines", "listen on 127.0.0.1"
	if IsLoopback(host) {
		if !slices.Contains(c.HTTP.CORSOrigins, "*") {
			return nil
		}
		others, remedy = "web pages (http.cors_origins)", "list their origins"
	}
	if err != nil || c.HTTP.PublicRead || c.Auth.KnowsCallers() || c.originsDecide() ||
		c.SSH.Address != "" && c.SSH.KnowsKeys() {
		return nil
	}
	return fmt.Errorf("http.address %q is reachable from %s, and there is no authentication, so everybody could read "+
		"every repository. Create a token (packhorse token create NAME), write [[auth.rule]] tables, %s, or make reading "+
		"public with --public-read (http.public_read = true)", c.HTTP.Address, others, remedy)
}

// CheckTokens returns an error if the file of tokens cannot be read, or is missing although it was configured or had
// existed. Without the file, callers might need no authentication.
func (c *Config) CheckTokens() error {
	if c.Auth.Tokens == "" {
		return nil
	}
	named := c.Auth.Tokens != filepath.Join(c.State, "tokens")
	return auth.NewTokenFile(c.Auth.Tokens).Check(named)
}
