package config

import (
	"log/slog"

	"github.com/packhorse-git/packhorse/internal/transport/credfile"
)

// StorageConfig is the port of a storage node: the control API and the side channels of gateways.
type StorageConfig struct {
	// Listen is the address for gateways: "HOST:PORT", or "unix:PATH" for gateways on the same machine. Empty means
	// none, which only "packhorse serve" allows. An address that other machines can reach needs client_ca or
	// secret_file.
	Listen string `toml:"listen"`

	// SocketMode is the file mode of the socket of "unix:PATH". With "0660" processes of its group may connect too.
	SocketMode FileMode `toml:"socket_mode" default:"0600"`

	// SecretFile is the file with the secret that callers must know: one word of at least 16 bytes, as from "openssl
	// rand -hex 32". Only its owner may read the file (mode 0600). Changes apply at once.
	SecretFile string `toml:"secret_file" path:"yes"`

	// TLSCert is the PEM file with the TLS certificate of the node and its chain. With it and tls_key the port only
	// accepts TLS. Changes of the TLS files apply at once.
	TLSCert string `toml:"tls_cert" path:"yes"`

	// TLSKey is the PEM file with the private key of tls_cert.
	TLSKey string `toml:"tls_key" path:"yes"`

	// ClientCA is the PEM file with the certificates of the authorities that sign certificates of gateways. With it
	// callers without such a certificate are refused.
	ClientCA string `toml:"client_ca" path:"yes"`
}

// LoadTrust loads the secret and the certificates that authenticate callers.
func (s *StorageConfig) LoadTrust(log *slog.Logger) (credfile.Trust, error) {
	return credfile.LoadTrust(s.SecretFile, s.TLSCert, s.TLSKey, s.ClientCA, log)
}
