package config

import (
	"log/slog"
	"strings"

	"github.com/packhorse-git/packhorse/internal/credfile"
)

// SearchConfig is code search: in the process of `packhorse serve`, or in one of its own, `packhorse search`, which gateways ask.
type SearchConfig struct {
	// Whether `packhorse serve` keeps an index of its repositories and answers searches.
	Enabled bool `toml:"enabled"`

	// Of a gateway: where the search process listens, "HOST:PORT" or "unix:PATH". One on another machine needs tls_ca or secret_file. Empty: nothing
	// is searched.
	Address string `toml:"address"`

	// Of a search process: where it listens for gateways, "HOST:PORT" or "unix:PATH". An address that other machines can reach needs client_ca or
	// secret_file.
	Listen string `toml:"listen"`

	// Rights on the socket of "unix:PATH". With "0660" the processes of its group may connect as well.
	SocketMode FileMode `toml:"socket_mode"`

	// File with the secret that gateways show the search process, for both of them; see storage.secret_file.
	SecretFile string `toml:"secret_file"`

	// File with the certificate and its chain (PEM): the search process's own, or the one that a gateway shows it.
	TLSCert string `toml:"tls_cert"`

	// File with the private key of tls_cert (PEM).
	TLSKey string `toml:"tls_key"`

	// Of a search process: file with the certificates (PEM) of those who sign gateways' certificates. With it a caller without such a certificate is refused.
	ClientCA string `toml:"client_ca"`

	// Of a gateway: file with the certificates (PEM) of those who sign the search process's certificate. With it the gateway speaks TLS with it.
	TLSCA string `toml:"tls_ca"`

	// Of a gateway: the name in the search process's certificate, where it is not the host of its address.
	ServerName string `toml:"server_name"`
}

func defaultSearch() SearchConfig {
	return SearchConfig{Enabled: true, SocketMode: 0o600}
}

// checkSearch finds what is wrong with the way between gateways and a search process.
func (c *Config) checkSearch(bad func(format string, args ...any)) {
	s := &c.Search
	if (s.TLSCert == "") != (s.TLSKey == "") {
		bad("search.tls_cert and search.tls_key need each other")
	}
	if s.ClientCA != "" && s.TLSCert == "" {
		bad("search.client_ca needs search.tls_cert and search.tls_key: gateways show their certificates in TLS only")
	}
	if s.Listen != "" {
		if local, err := splitNodeAddress(s.Listen); err != nil {
			bad("search.listen: %w", err)
		} else if !local && s.ClientCA == "" && s.SecretFile == "" {
			bad("search.listen %q can be reached by other machines, and everybody who reaches it could read every repository: "+
				"set search.client_ca (mutual TLS) or search.secret_file, or listen on 127.0.0.1 or unix:PATH", s.Listen)
		}
	}
	if s.Address == "" {
		return
	}
	if local, err := splitNodeAddress(s.Address); err != nil {
		bad("search.address: %w", err)
	} else if !local && s.SecretFile == "" && s.TLSCA == "" {
		bad("search.address %q is on another machine and nothing proves who is who: set search.tls_ca (and tls_cert and tls_key) or search.secret_file", s.Address)
	}
	if s.TLSCA != "" && s.ServerName == "" && strings.HasPrefix(s.Address, UnixPrefix) {
		bad("search.address is a socket, which has no name to look for in a certificate: set search.server_name, or leave search.tls_ca out")
	}
}

// LoadTrust is what proves who is who between a gateway and a search process, at either end.
func (s *SearchConfig) LoadTrust(role Role, log *slog.Logger) (credfile.Trust, error) {
	authorities := s.TLSCA
	if role == RoleSearch {
		authorities = s.ClientCA
	}
	return credfile.LoadTrust(s.SecretFile, s.TLSCert, s.TLSKey, authorities, log)
}
