package config

// SSHConfig is the SSH listener (docs/how-to/ssh.md).
type SSHConfig struct {
	// Address is the host and port of the SSH listener. Empty means none. Port 0 chooses a free port, which is printed
	// at the start.
	Address string `toml:"address"`

	// HostKeys is the directory of the host keys: ssh_host_ed25519_key, ssh_host_ecdsa_key and ssh_host_rsa_key, files
	// of ssh-keygen that only their owner can read. If none of them exists, all are created. If at least one exists, no
	// other is created. Empty means STATE/ssh, where missing keys are created at each start.
	HostKeys string `toml:"host_keys" path:"yes"`

	// AuthorizedKeys is the file or directory with the public keys of users, in the format of authorized_keys. A
	// directory has a file for each user, named after the user. In a single file the comment at the end of each line is
	// the name of the user. Changes apply at once.
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

	// Ciphers lists the ciphers that clients may use. Ciphers other than AES-GCM cost several times the CPU. Older
	// clients need aes256-ctr or aes128-ctr.
	Ciphers []string `toml:"ciphers"`

	// MACs lists the message authentication codes for ciphers that need one, such as aes256-ctr. Empty means
	// hmac-sha2-256-etm@openssh.com and hmac-sha2-512-etm@openssh.com, and with such a cipher in ssh.ciphers also
	// hmac-sha2-256 and hmac-sha2-512.
	MACs []string `toml:"macs"`

	// IdleTimeout is how long a connection may stay open without a session, and a session without a command.
	IdleTimeout Duration `toml:"idle_timeout" default:"2m" range:">0s"`

	// ProxyProtocol requires a PROXY protocol header (version 1 or 2) on each connection from trusted_proxies; it
	// contains the address of the client. Connections with a header from other addresses are refused.
	ProxyProtocol bool `toml:"proxy_protocol"`

	// Connections is the maximum number of connections. At the limit, the connection that has been idle for the longest
	// time is closed for a new one. If all have a running command, the new one is refused. A command that has waited
	// for its client for ssh.idle_timeout counts as idle. 0 means an eighth of the file descriptors that the process
	// may open (RLIMIT_NOFILE), at most 4096.
	Connections int `toml:"connections" range:"0.."`

	// AddressConnections is the maximum number of connections from one address (IPv6: from one /64 network). 0 means a
	// quarter of connections.
	AddressConnections int `toml:"address_connections" range:"0.."`

	// AddressRate is the maximum number of new connections from one address in a second, on average over ten seconds. 0
	// means no limit.
	AddressRate int `toml:"address_rate" default:"50" range:"0.."`
}
