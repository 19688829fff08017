package config

import "time"

// HTTPConfig is the public listener.
type HTTPConfig struct {
	// Host and port of the public listener. Port 0 picks a free port, which is printed at the start.
	Address string `toml:"address"`

	// Lets everybody who reaches the listener read every repository that no [[auth.rule]] is about. Without it, and without tokens, rules or a
	// hook (docs/how-to/auth.md), only a loopback address is accepted; there everybody may read as long as there are none of these.
	PublicRead bool `toml:"public_read"`

	// File with the TLS certificate and its chain (PEM). With it and tls_key the listener speaks TLS only. Both files are read again
	// when they change; what cannot be loaded is reported in the log and the last good certificate stays.
	TLSCert string `toml:"tls_cert"`

	// File with the private key of tls_cert (PEM).
	TLSKey string `toml:"tls_key"`

	// ProxyProtocol has each connection from trusted_proxies begin with a header of the PROXY protocol (version 1 or 2), which says who the client is;
	// without one it is refused. A header from anybody else is refused. Default false.
	ProxyProtocol bool `toml:"proxy_protocol"`

	// Connections is the maximum number of connections. At the limit the connection that has been idle for the longest time is closed for a new
	// one; if all have a running request, the new one is refused. 0 means automatic: up to half of the file descriptors that the process
	// may open (RLIMIT_NOFILE), and 32768 at most. Default 0.
	Connections int `toml:"connections"`

	// AddressConnections is the maximum number of connections from one address (IPv6: from one network of 64 bits). It closes and refuses as
	// connections does, among those of the address. 0 means automatic: a quarter of connections. Default 0.
	AddressConnections int `toml:"address_connections"`

	// How long a client may take to send a request's headers, and to finish a TLS handshake.
	HeaderTimeout Duration `toml:"header_timeout"`

	// How long a connection may stay open without a request.
	IdleTimeout Duration `toml:"idle_timeout"`

	// ReadStall is how long a client may take to send the next 64 KiB of a request's body, or its end. The whole body may take ten times that. A
	// push may be silent for that long, and the body of a request for the application ends as docs/how-to/app.md says.
	ReadStall Duration `toml:"read_stall"`

	// How long a client may keep an answer waiting before its connection is cut: each time, it has to take 64 KiB, or what is left.
	WriteStall Duration `toml:"write_stall"`

	// The most bytes of a request's headers.
	MaxHeader Size `toml:"max_header"`

	// The most bytes of a request's body, counted after gzip was undone.
	MaxBody Size `toml:"max_body"`

	// Whether there are pages for browsers: /-/search, and the files that it links to (docs/reference/pages.md). They show what may be cloned.
	Pages bool `toml:"pages"`
}

func defaultHTTP() HTTPConfig {
	return HTTPConfig{
		Address:       "127.0.0.1:8080",
		HeaderTimeout: Duration{10 * time.Second},
		IdleTimeout:   Duration{2 * time.Minute},
		ReadStall:     Duration{time.Minute},
		WriteStall:    Duration{time.Minute},
		MaxHeader:     64 << 10,
		MaxBody:       64 << 20,
		Pages:         true,
	}
}

func (c *HTTPConfig) checkNumbers(b bounds) {
	b.number("http.connections", c.Connections, 0, many)
	b.number("http.address_connections", c.AddressConnections, 0, many)
	b.size("http.max_header", c.MaxHeader, 4<<10)
	b.size("http.max_body", c.MaxBody, 64<<10)
	b.time("http.header_timeout", c.HeaderTimeout)
	b.time("http.idle_timeout", c.IdleTimeout)
	b.time("http.read_stall", c.ReadStall)
	b.time("http.write_stall", c.WriteStall)
}
