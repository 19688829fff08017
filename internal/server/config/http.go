package config

import (
	"regexp"
	"strings"
)

// HTTPConfig is the public listener.
type HTTPConfig struct {
	// Address is the host and port of the public listener. Port 0 chooses a free port, which is printed at the start. The
	// default of "packhorse mirror" is ":8080".
	Address string `toml:"address" default:"127.0.0.1:8080"`

	// PublicRead lets everybody read every repository that no [[auth.rule]] covers. Without it an address that other
	// machines can reach needs a token, a rule or a hook (docs/how-to/auth.md). On a loopback address everybody may
	// read as long as there are none of these, in requests for localhost or a loopback address.
	PublicRead bool `toml:"public_read"`

	// TLSCert is the PEM file with the TLS certificate and its chain. With it and tls_key the listener only accepts
	// TLS. Both files are read again when they change. If they cannot be loaded, the log has the
	// reason, and the previous certificate stays in use.
	TLSCert string `toml:"tls_cert" path:"yes"`

	// TLSKey is the PEM file with the private key of tls_cert.
	TLSKey string `toml:"tls_key" path:"yes"`

	// ProxyProtocol requires a PROXY protocol header (version 1 or 2) on each connection from trusted_proxies; it
	// contains the address of the client. Connections with a header from other addresses are refused.
	ProxyProtocol bool `toml:"proxy_protocol"`

	// Connections is the maximum number of connections. At the limit, the connection that has been idle for the longest
	// time is closed for a new one. If all have a running request, the new one is refused. 0 means half of the file
	// descriptors that the process may open (RLIMIT_NOFILE), at most 32768.
	Connections int `toml:"connections" range:"0.."`

	// AddressConnections is the maximum number of connections from one address (IPv6: from one /64 network). It closes
	// and refuses connections as the key connections does. 0 means a quarter of connections.
	AddressConnections int `toml:"address_connections" range:"0.."`

	// IdleTimeout is how long a connection may stay open without a request.
	IdleTimeout Duration `toml:"idle_timeout" default:"2m" range:">0s"`

	// Stall is how long a client may take to send or to receive the next 64 KiB, or the end, of a request or a response.
	// Then its connection is cut. A whole body of a request may take ten times that. It applies to SSH, too.
	Stall Duration `toml:"stall" default:"1m" range:">0s"`

	// MaxHeader is the maximum size of the headers of a request.
	MaxHeader Size `toml:"max_header" default:"64KiB" range:"4KiB.."`

	// MaxBody is the maximum size of the body of a request, after decompression.
	MaxBody Size `toml:"max_body" default:"64MiB" range:"64KiB.."`

	// Pages serves pages for browsers: /-/search, and the files that its results link to (docs/reference/pages.md).
	// They show only repositories that the visitor may read.
	Pages bool `toml:"pages" default:"true"`

	// CORSOrigins lists the origins of web pages whose scripts may use Git and Git LFS here (CORS), as in
	// "https://ide.example" (docs/how-to/auth.md). "*", alone, stands for all pages, whose requests then have no
	// credentials of the browser. By default scripts of other origins cannot read any response.
	CORSOrigins []string `toml:"cors_origins"`
}

// webOrigin is an origin as browsers send it.
var webOrigin = regexp.MustCompile(`^[a-z][a-z0-9+.-]*://([a-z0-9._-]+|\[[0-9a-f:]+\])(:[1-9][0-9]*)?$`)

// check reports origins that no browser would send.
func (c *HTTPConfig) check(bad func(format string, args ...any)) {
	for _, origin := range c.CORSOrigins {
		switch scheme, rest, _ := strings.Cut(origin, "://"); {
		case origin == "*" && len(c.CORSOrigins) == 1:
		case origin == "*":
			bad(`http.cors_origins: "*" stands for all origins: remove it or the others`)
		case !webOrigin.MatchString(origin):
			bad(`http.cors_origins: %q is not an origin: write one in lower case and without a path, as in `+
				`"https://ide.example" or "http://localhost:5173"`, origin)
		case scheme == "https" && strings.HasSuffix(rest, ":443"), scheme == "http" && strings.HasSuffix(rest, ":80"):
			bad("http.cors_origins: %q has the default port, which browsers omit: remove it", origin)
		}
	}
}
