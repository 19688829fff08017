package config

import (
	"time"

	"github.com/packhorse-git/packhorse/internal/gateway/gitssh"
)

// SSHConfig is the SSH listener. docs/how-to/ssh.md says more.
type SSHConfig struct {
	// Host and port of the SSH listener; empty: there is none. Port 0 picks a free port, which is printed at the start.
	Address string `toml:"address"`

	// HostKeys is the directory of the host keys: ssh_host_ed25519_key, ssh_host_ecdsa_key and ssh_host_rsa_key, files of
	// ssh-keygen that nobody else can read. If it has none of them, all are made; if it has one, it is left alone, and clients
	// get the kinds that are there. Empty means STATE/ssh, where those that are missing are made at each start.
	HostKeys string `toml:"host_keys"`

	// Public keys of users: a directory with a file for each user, called as the user, or one file, where the comment at the end of each line is the
	// user's name. The format is that of authorized_keys. Read again when it changes.
	AuthorizedKeys string `toml:"authorized_keys"`

	// File with the public keys of those who sign users' certificates. Read again when it changes.
	TrustedUserCA string `toml:"trusted_user_ca"`

	// File with what is no longer good: public keys, fingerprints, and certificates by "serial: N" or "id: NAME". Read again when it changes;
	// if that fails, no key is good.
	RevokedKeys string `toml:"revoked_keys"`

	// Lets clients in without a key, who log in as "anonymous", or by any name if there are no keys.
	Anonymous bool `toml:"anonymous"`

	// KeyExchanges are the key exchange algorithms that clients may use.
	KeyExchanges []string `toml:"key_exchanges"`

	// Ciphers are the ciphers that clients may use. Others than AES-GCM cost several times the CPU. Older clients need
	// aes256-ctr or aes128-ctr.
	Ciphers []string `toml:"ciphers"`

	// MACs are the message authentication codes that clients may use with ciphers that need one, such as aes256-ctr. Empty means
	// hmac-sha2-256-etm@openssh.com and hmac-sha2-512-etm@openssh.com; if ssh.ciphers has such a cipher, hmac-sha2-256 and
	// hmac-sha2-512 as well, since clients that need it often have no others. Default empty.
	MACs []string `toml:"macs"`

	// How long a client may take to log in.
	LoginGrace Duration `toml:"login_grace"`

	// How many keys a client may try.
	AuthTries int `toml:"auth_tries"`

	// KeepAlive is how often a client is asked whether it is there; its connection ends if it does not answer for three times
	// as long. 0 means never: dead clients are then found by ssh.session_idle_timeout alone. Default 30s.
	KeepAlive Duration `toml:"keep_alive"`

	// IdleTimeout is how long a connection may stay open without a session, and a session without a command.
	// Default 2m.
	IdleTimeout Duration `toml:"idle_timeout"`

	// SessionIdleTimeout is how long a client may be silent between the requests of a session, while it runs a pre-push hook or
	// indexes a pack. Clients that are not there any more are found earlier, by ssh.keep_alive. Default 12h.
	SessionIdleTimeout Duration `toml:"session_idle_timeout"`

	// The most sessions at once on one connection.
	Sessions int `toml:"sessions"`

	// ProxyProtocol has each connection from trusted_proxies begin with a header of the PROXY protocol (version 1 or 2), which says who the client is;
	// without one it is refused. A header from anybody else is refused. Default false.
	ProxyProtocol bool `toml:"proxy_protocol"`

	// Connections is the maximum number of connections. At the limit the connection that has been idle for the longest time is closed for a new
	// one; if all have a running command, the new one is refused. A command that has waited for its client for ssh.idle_timeout is not
	// counted as running. 0 means automatic: an eighth of the file descriptors that the process
	// may open (RLIMIT_NOFILE), and 4096 at most. Default 0.
	Connections int `toml:"connections"`

	// AddressConnections is the maximum number of connections from one address (IPv6: from one network of 64 bits). 0 means automatic: a quarter of
	// connections. Default 0.
	AddressConnections int `toml:"address_connections"`

	// Logins is the maximum number of connections that have not logged in yet. From half of it on some new ones are refused at random, and more and
	// more. 0 means automatic: half of connections, and 256 at most. Default 0.
	Logins int `toml:"logins"`

	// AddressLogins is the maximum number of connections from one address that have not logged in yet. 0 means automatic: half of logins. Default 0.
	AddressLogins int `toml:"address_logins"`

	// The most new connections each second from one address, on average over ten seconds. 0 means without a limit.
	AddressRate int `toml:"address_rate"`
}

func defaultSSH() SSHConfig {
	algorithms := gitssh.DefaultAlgorithms()
	return SSHConfig{
		KeyExchanges:       algorithms.KeyExchanges,
		Ciphers:            algorithms.Ciphers,
		MACs:               []string{},
		LoginGrace:         Duration{30 * time.Second},
		AuthTries:          6,
		KeepAlive:          Duration{30 * time.Second},
		IdleTimeout:        Duration{2 * time.Minute},
		SessionIdleTimeout: Duration{12 * time.Hour},
		Sessions:           10,
		AddressRate:        50,
	}
}
