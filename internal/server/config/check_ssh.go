package config

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/gateway/gitssh"
)

// KnowsKeys reports whether the configuration names files with keys of users or of certificate authorities.
func (c *SSHConfig) KnowsKeys() bool { return c.AuthorizedKeys != "" || c.TrustedUserCA != "" }

// Algorithms returns the algorithms that clients may use.
func (c *SSHConfig) Algorithms() gitssh.Algorithms {
	return gitssh.Algorithms{KeyExchanges: c.KeyExchanges, Ciphers: c.Ciphers, MACs: c.MACs}
}

// LoadKeys reads the key files and adds them to the identity sources. It returns nil if the configuration names none.
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

// checkSSH checks [ssh]. A listener needs users who can log in. It may let anonymous users read from other machines
// only with http.public_read. Its algorithms have to be known.
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
		f.at("ssh.address")("ssh.address: no user could log in: set --ssh-keys (ssh.authorized_keys) to a file or " +
			"directory of public keys, or set ssh.trusted_user_ca or auth.hook.url. To let all users log in and read, " +
			"set ssh.anonymous = true")
	case s.Anonymous && !IsLoopback(host) && !c.HTTP.PublicRead:
		bad("ssh.address %q: reachable from other machines, and with ssh.anonymous every client could read every "+
			"repository: add --public-read (http.public_read = true) if that is intended", s.Address)
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
				bad("%s: unknown algorithm %.40q: use one of %s", list.key, name, strings.Join(list.known, ", "))
			}
		}
	}
}
