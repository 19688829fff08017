package config

import (
	"fmt"
	"log/slog"

	"github.com/packhorse-git/packhorse/internal/git"
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

	// SocketMode is as storage.socket_mode.
	SocketMode FileMode `toml:"socket_mode" default:"0600"`

	// SecretFile is the file with the secret that gateways show to the search process, on both sides; see
	// storage.secret_file.
	SecretFile string `toml:"secret_file" path:"yes"`

	// TLSCert is the PEM file with a certificate and its chain: of the search process, or the one that a gateway shows
	// to it.
	TLSCert string `toml:"tls_cert" path:"yes" needs:"tls_key"`

	// TLSKey is the PEM file with the private key of tls_cert.
	TLSKey string `toml:"tls_key" path:"yes" needs:"tls_cert"`

	// ClientCA is for search processes: the PEM file with the authorities of the certificates of gateways. With it callers
	// without such a certificate are refused.
	ClientCA string `toml:"client_ca" path:"yes" needs:"tls_cert"`

	// TLSCA is for gateways: the PEM file with the authorities of the certificate of the search process. With it the
	// gateway uses TLS.
	TLSCA string `toml:"tls_ca" path:"yes"`

	// ServerName is for gateways: the name in the certificate of the search process, if it is not the host of the
	// address.
	ServerName string `toml:"server_name"`
}

// checkSearch checks the connection between gateways and a search process, and the index.
func (c *Config) checkSearch(f *Findings) {
	s := &c.Search
	checkListen("search.listen", s.Listen, s.ClientCA+s.SecretFile != "", "read", f)
	if s.Address != "" {
		checkAddress("search.address", "the search process", s.Address, s.SecretFile, s.TLSCA, s.ServerName, f)
	}
	if len(c.Index.Branches) > 32 {
		f.bad("index.branches has %d names; it may have 32", len(c.Index.Branches))
	}
	for _, name := range c.Index.Branches {
		if ref, err := git.ParseRefName(name); err != nil || ref == git.HEAD {
			f.bad("index.branches: %q is not the full name of a branch, as in \"refs/heads/main\"", name)
		}
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

// IndexConfig sets the search index and the processes that build and search it (docs/reference/search-api.md).
type IndexConfig struct {
	// Dir is the directory of the index. Empty means STATE/search. A lost index is rebuilt.
	Dir string `toml:"dir" path:"yes"`

	// Branches lists full names of refs that are indexed in addition to HEAD, as in "refs/heads/release".
	Branches []string `toml:"branches"`

	// MaxFile is the maximum size of an indexed file. Of larger files only the path is found.
	MaxFile Size `toml:"max_file" default:"1MiB" range:"1KiB..32MiB"`

	// MaxRepositoryFiles is the maximum number of files of an indexed repository. Larger ones are not searched: searches
	// and "packhorse search status" name them.
	MaxRepositoryFiles int `toml:"max_repository_files" default:"1000000" range:"1.."`

	// MaxRepositoryBytes is the maximum size of the files of an indexed repository, without those larger than max_file.
	MaxRepositoryBytes Size `toml:"max_repository_bytes" default:"4GiB" range:"1MiB.."`

	// Memory is the maximum memory of an index process, without the index itself. At most two run. The search process may
	// use twice as much.
	Memory Size `toml:"memory" default:"1GiB" range:"256MiB.."`

	// Ctags is the program that finds symbols: the name or path of universal-ctags. Empty, or a missing program, means
	// that there are no symbols.
	Ctags string `toml:"ctags" default:"universal-ctags"`
}

// ShardSize returns the maximum content of a file of the index, in bytes. Building it takes several times the memory.
func (c *IndexConfig) ShardSize() int64 { return max(16<<20, int64(c.Memory)/16) }
