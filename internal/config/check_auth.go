package config

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"

	"github.com/packhorse-git/packhorse/internal/auth"
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

// check finds what is wrong with a rule: each of its words by itself, and if none is, all together.
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

// KnowsCallers tells whether the configuration or the machine has what callers can be told from one another by.
func (c *AuthConfig) KnowsCallers() bool {
	if len(c.Rule) > 0 || c.Hook.URL != "" {
		return true
	}
	info, err := os.Stat(c.Tokens)
	return err == nil && info.Size() > 0
}

// checkAuth finds what cannot be right about who may do what.
func (c *Config) checkAuth(f *Findings) {
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
		bad("auth.hook.url holds a user name or a password; put the secret into a file, and name it with " +
			"auth.hook.secret_file")
	}
}

// CheckOpen refuses to let in more than is meant: from other machines everybody reaches the listener.
func (c *Config) CheckOpen() error {
	host, err := SplitAddress(c.HTTP.Address)
	if err != nil || IsLoopback(host) || c.HTTP.PublicRead || c.Auth.KnowsCallers() || c.SSH.Address != "" &&
		c.SSH.KnowsKeys() {
		return nil
	}
	return fmt.Errorf("http.address %q can be reached by other machines, and nobody has to say who they are, so "+
		"everybody could read every repository: "+
		"add --public-read (http.public_read = true) if that is meant, make a token (packhorse token create NAME) or "+
		"write [[auth.rule]] tables if not, "+
		"or listen on 127.0.0.1", c.HTTP.Address)
}

// CheckTokens refuses a file of tokens that cannot be read, or is not there where it was named or had been: without
// it everybody might be let in.
func (c *Config) CheckTokens() error {
	if c.Auth.Tokens == "" {
		return nil
	}
	named := c.Auth.Tokens != filepath.Join(c.State, "tokens")
	return auth.NewTokenFile(c.Auth.Tokens).Check(named)
}
