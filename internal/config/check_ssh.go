package config

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/packhorse-git/packhorse/internal/auth"
	"github.com/packhorse-git/packhorse/internal/gateway/gitssh"
)

// KnowsKeys tells whether files say whose keys are whose.
func (c *SSHConfig) KnowsKeys() bool { return c.AuthorizedKeys != "" || c.TrustedUserCA != "" }

// Algorithms are those that clients may use.
func (c *SSHConfig) Algorithms() gitssh.Algorithms {
	return gitssh.Algorithms{KeyExchanges: c.KeyExchanges, Ciphers: c.Ciphers, MACs: c.MACs}
}

// LoadKeys reads the files of keys, and adds them to the sources; nil if the configuration names none.
func (c *SSHConfig) LoadKeys(sources *auth.Sources, log *slog.Logger) (*auth.Keys, error) {
	if !c.KnowsKeys() && c.RevokedKeys == "" {
		return nil, nil
	}
	keys, err := auth.LoadKeys(auth.KeyOptions{Authorized: c.AuthorizedKeys, Authority: c.TrustedUserCA,
		Revoked: c.RevokedKeys, Sources: sources, Log: log})
	if err != nil {
		return nil, fmt.Errorf("read the SSH keys of users: %w", err)
	}
	return keys, nil
}

// checkSSH finds what could not work, or would let in more than is meant.
func (c *Config) checkSSH(f *Findings) {
	bad := f.bad
	s := &c.SSH
	if s.Address == "" {
		return
	}
	host, err := SplitAddress(s.Address)
	switch {
	case err != nil:
		bad("ssh.address: %w", err)
	case !s.KnowsKeys() && c.Auth.Hook.URL == "" && !s.Anonymous:
		f.at("ssh.address")("who may come in by SSH? name a file or a directory of public keys with --ssh-keys " +
			"(ssh.authorized_keys), or who signs users' certificates " +
			"with ssh.trusted_user_ca, or have an auth hook (auth.hook.url); ssh.anonymous = true lets everybody in to read")
	case s.Anonymous && !IsLoopback(host) && !c.HTTP.PublicRead:
		bad("ssh.address %q can be reached by other machines, and with ssh.anonymous everybody who reaches it could read "+
			"every repository: "+
			"add --public-read (http.public_read = true) if that is meant", s.Address)
	}
	known := gitssh.SupportedAlgorithms()
	for _, list := range []struct {
		key          string
		named, known []string
	}{
		{"ssh.key_exchanges", s.KeyExchanges, known.KeyExchanges},
		{"ssh.ciphers", s.Ciphers, known.Ciphers},
		{"ssh.macs", s.MACs, known.MACs},
	} {
		for _, name := range list.named {
			if !slices.Contains(list.known, name) {
				bad("%s: unknown algorithm %.40q: known ones are %s", list.key, name, strings.Join(list.known, ", "))
			}
		}
	}
}
