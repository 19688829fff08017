package config

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/gateway/gitssh"
)

// SSHConfig is the SSH listener (docs/how-to/ssh.md).
type SSHConfig struct {
	// Address is the host and port of the SSH listener. Empty means none. Port 0 chooses a free port, which is printed
	// at the start.
	Address string `toml:"address"`

	// HostKeys is the directory of the host keys, ssh_host_ed25519_key and others. If none exists, all are created. Empty
	// means STATE/ssh, where missing keys are created.
	HostKeys string `toml:"host_keys" path:"yes"`

	// AuthorizedKeys is a file in the format of authorized_keys, whose comments are the names of users, or a directory
	// with a file for each user. Changes apply at once.
	AuthorizedKeys string `toml:"authorized_keys" path:"yes"`

	// TrustedUserCA is the file with the public keys of the authorities that sign certificates of users. Changes apply
	// at once.
	TrustedUserCA string `toml:"trusted_user_ca" path:"yes"`

	// RevokedKeys is the file of revoked keys: public keys, fingerprints, and certificates as "serial: N" or "id:
	// NAME". Changes apply at once. While the file cannot be read, all keys are refused.
	RevokedKeys string `toml:"revoked_keys" path:"yes"`

	// Anonymous lets clients without a key log in as "anonymous", or with any name if there are no keys.
	Anonymous bool `toml:"anonymous"`

	// KeyExchanges lists the key exchange algorithms that clients may use.
	KeyExchanges []string `toml:"key_exchanges"`

	// Ciphers lists the ciphers that clients may use. Ciphers other than AES-GCM cost several times the CPU.
	Ciphers []string `toml:"ciphers"`

	// MACs lists the message authentication codes for ciphers that need one, such as aes256-ctr. Empty means those of
	// OpenSSH with SHA-2.
	MACs []string `toml:"macs"`

	// IdleTimeout is how long a connection may stay open without a session, and a session without a command.
	IdleTimeout Duration `toml:"idle_timeout" default:"2m" range:">0s"`

	// ProxyProtocol is as http.proxy_protocol.
	ProxyProtocol bool `toml:"proxy_protocol"`

	// Connections is the maximum number of connections, as http.connections. A command that has waited for its client for
	// idle_timeout counts as idle. 0 means an eighth of the file descriptors, at most 4096.
	Connections int `toml:"connections" range:"0.."`

	// AddressConnections is the maximum number of connections from one address (IPv6: from one /64 network). 0 means a
	// quarter of connections.
	AddressConnections int `toml:"address_connections" range:"0.."`

	// AddressRate is the maximum number of new connections from one address in a second, on average over ten seconds. 0
	// means no limit.
	AddressRate int `toml:"address_rate" default:"50" range:"0.."`
}

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
	s := &c.SSH
	if s.Address == "" {
		return
	}
	host, err := SplitAddress(s.Address)
	switch {
	case err != nil:
		f.bad("ssh.address: %w", err)
	case !s.KnowsKeys() && c.Auth.Hook.URL == "" && !s.Anonymous:
		f.bad("ssh.address: no user could log in: set --ssh-keys (ssh.authorized_keys) to a file or directory of public " +
			"keys, or set ssh.trusted_user_ca or auth.hook.url. To let all users log in and read, set ssh.anonymous = true")
	case s.Anonymous && !IsLoopback(host) && !c.HTTP.PublicRead:
		f.bad("ssh.address %q: reachable from other machines, and with ssh.anonymous every client could read every "+
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
				f.bad("%s: unknown algorithm %.40q: use one of %s", list.key, name, strings.Join(list.known, ", "))
			}
		}
	}
}
