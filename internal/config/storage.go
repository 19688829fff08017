package config

import (
	"log/slog"
	"time"

	"github.com/packhorse-git/packhorse/internal/credfile"
)

// StorageConfig is the port of a storage node: the control API and the side channels of gateways.
type StorageConfig struct {
	// Where the node listens: "HOST:PORT", or "unix:PATH" for gateways on the same machine. Empty: nowhere, which `packhorse serve` accepts.
	// An address that other machines can reach needs client_ca or secret_file.
	Listen string `toml:"listen"`

	// Rights on the socket of "unix:PATH". With "0660" the processes of its group may connect as well.
	SocketMode FileMode `toml:"socket_mode"`

	// File with the secret that callers have to know: one word of at least 16 bytes, as from `openssl rand -hex 32`, that others cannot
	// read (mode 0600). It is read again when it changes.
	SecretFile string `toml:"secret_file"`

	// File with the node's TLS certificate and its chain (PEM). With it and tls_key the port speaks TLS only. The TLS files are read again when
	// they change.
	TLSCert string `toml:"tls_cert"`

	// File with the private key of tls_cert (PEM).
	TLSKey string `toml:"tls_key"`

	// File with the certificates (PEM) of those who sign gateways' certificates. With it a caller without such a certificate is refused.
	ClientCA string `toml:"client_ca"`

	// The most side channels that may be open; if several callers have some, each at most three quarters of it.
	Channels int `toml:"channels"`

	// How long a side channel may stay open without a transfer. Gateways are told, and close theirs after half of it at the latest.
	ChannelIdle Duration `toml:"channel_idle"`

	// How long a caller may keep the node waiting: in the middle of a transfer on a side channel, within a request, or while it is sent an answer.
	Stall Duration `toml:"stall"`
}

func defaultStorage() StorageConfig {
	return StorageConfig{SocketMode: 0o600, Channels: 4096, ChannelIdle: Duration{30 * time.Second}, Stall: Duration{time.Minute}}
}

func (c *StorageConfig) checkNumbers(b bounds) {
	b.number("storage.channels", c.Channels, 1, many)
	b.time("storage.channel_idle", c.ChannelIdle)
	b.time("storage.stall", c.Stall)
}

func (s *StorageConfig) LoadTrust(log *slog.Logger) (credfile.Trust, error) {
	return credfile.LoadTrust(s.SecretFile, s.TLSCert, s.TLSKey, s.ClientCA, log)
}
