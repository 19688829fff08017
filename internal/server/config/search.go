package config

import (
	"fmt"
	"log/slog"
	"strings"

	"github.com/packhorse-git/packhorse/internal/search/ipc"
	"github.com/packhorse-git/packhorse/internal/transport/credfile"
)

// SearchConfig is code search, in "packhorse serve" or in a separate process, "packhorse search", for gateways.
type SearchConfig struct {
	// Enabled makes "packhorse serve" index its repositories and answer searches. In "packhorse mirror" it is off by
	// default.
	Enabled bool `toml:"enabled" default:"true"`

	// Address is for gateways: the address of the search process, "HOST:PORT" or "unix:PATH". One on another machine
	// needs tls_ca or secret_file. Empty means no search.
	Address string `toml:"address"`

	// Listen is for search processes: the address for gateways, "HOST:PORT" or "unix:PATH". An address that other
	// machines can reach needs client_ca or secret_file.
	Listen string `toml:"listen"`

	// SocketMode is the file mode of the socket of "unix:PATH". With "0660" processes of its group may connect too.
	SocketMode FileMode `toml:"socket_mode" default:"0600"`

	// SecretFile is the file with the secret that gateways show to the search process, on both sides; see
	// storage.secret_file.
	SecretFile string `toml:"secret_file" path:"yes"`

	// TLSCert is the PEM file with a certificate and its chain: of the search process, or the one that a gateway shows
	// to it.
	TLSCert string `toml:"tls_cert" path:"yes"`

	// TLSKey is the PEM file with the private key of tls_cert.
	TLSKey string `toml:"tls_key" path:"yes"`

	// ClientCA is for search processes: the PEM file with the certificates of the authorities that sign certificates of
	// gateways. With it callers without such a certificate are refused.
	ClientCA string `toml:"client_ca" path:"yes"`

	// TLSCA is for gateways: the PEM file with the certificates of the authorities that sign the certificate of the
	// search process. With it the gateway uses TLS.
	TLSCA string `toml:"tls_ca" path:"yes"`

	// ServerName is for gateways: the name in the certificate of the search process, if it is not the host of the
	// address.
	ServerName string `toml:"server_name"`
}

// checkSearch checks the connection between gateways and a search process.
func (c *Config) checkSearch(bad func(format string, args ...any)) {
	s := &c.Search
	if (s.TLSCert == "") != (s.TLSKey == "") {
		bad("search.tls_cert and search.tls_key need each other")
	}
	if s.ClientCA != "" && s.TLSCert == "" {
		bad("search.client_ca needs search.tls_cert and search.tls_key: gateways present their certificates only with TLS")
	}
	if s.Listen != "" {
		if local, err := splitNodeAddress(s.Listen); err != nil {
			bad("search.listen: %w", err)
		} else if !local && s.ClientCA == "" && s.SecretFile == "" {
			bad("search.listen %q is reachable from other machines, which could read every repository: set "+
				"search.client_ca (mutual TLS) or search.secret_file, or listen on 127.0.0.1 or unix:PATH", s.Listen)
		}
	}
	if s.Address == "" {
		return
	}
	if local, err := splitNodeAddress(s.Address); err != nil {
		bad("search.address: %w", err)
	} else if !local && s.SecretFile == "" && s.TLSCA == "" {
		bad("search.address %q is on another machine without authentication: set search.tls_ca (and tls_cert and "+
			"tls_key) or search.secret_file", s.Address)
	}
	if s.TLSCA != "" && s.ServerName == "" && strings.HasPrefix(s.Address, UnixPrefix) {
		bad("search.address is a socket, which has no name to compare with a certificate: set search.server_name, or " +
			"remove search.tls_ca")
	}
}

// LoadTrust loads the secret and the certificates of the connection between a gateway and a search process, for the
// role.
func (s *SearchConfig) LoadTrust(role Role, log *slog.Logger) (credfile.Trust, error) {
	authorities := s.TLSCA
	if role == RoleSearch {
		authorities = s.ClientCA
	}
	return credfile.LoadTrust(s.SecretFile, s.TLSCert, s.TLSKey, authorities, log)
}

// FindSearchProgram returns the path of packhorse-search, which a server of the given path and role starts to index and
// to search. An empty path is unknown.
func FindSearchProgram(role Role, server string) (string, error) {
	program, err := ipc.FindProgram(server)
	if err != nil && role.IsServe() {
		err = fmt.Errorf("%w, or set search.enabled = false", err)
	}
	return program, err
}
