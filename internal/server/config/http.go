package config

import (
	"fmt"
	"net/netip"
	"regexp"
	"strings"

	"github.com/packhorse-git/packhorse/internal/transport/clients"
)

// HTTPConfig is the public listener.
type HTTPConfig struct {
	// Address is the host and port of the public listener. Port 0 chooses a free port, which is printed at the start. The
	// default of "packhorse mirror" is ":8080".
	Address string `toml:"address" default:"127.0.0.1:8080"`

	// PublicRead lets everybody read every repository that no [[auth.rule]] covers. Otherwise an address that other
	// machines can reach needs a token, a rule or a hook. On a loopback address everybody may read without these.
	PublicRead bool `toml:"public_read"`

	// TLSCert is the PEM file with the TLS certificate and its chain. With it the listener only accepts TLS. Changes of
	// both files apply at once.
	TLSCert string `toml:"tls_cert" path:"yes" needs:"tls_key"`

	// TLSKey is the PEM file with the private key of tls_cert.
	TLSKey string `toml:"tls_key" path:"yes" needs:"tls_cert"`

	// ProxyProtocol requires a PROXY protocol header (version 1 or 2) on each connection from trusted_proxies.
	// Connections with a header from other addresses are refused.
	ProxyProtocol bool `toml:"proxy_protocol"`

	// Connections is the maximum number of connections. At the limit a new one replaces the one that has been idle for
	// the longest time, or is refused. 0 means half of the file descriptors that the process may open, at most 32768.
	Connections int `toml:"connections" range:"0.."`

	// AddressConnections is the maximum number of connections from one address (IPv6: from one /64 network). 0 means a
	// quarter of connections.
	AddressConnections int `toml:"address_connections" range:"0.."`

	// IdleTimeout is how long a connection may stay open without a request.
	IdleTimeout Duration `toml:"idle_timeout" default:"2m" range:">0s"`

	// Stall is how long a client may take to send or to receive the next 64 KiB, or the end, of a request or a response,
	// also over SSH. Then its connection is cut. The body of a request may take ten times that.
	Stall Duration `toml:"stall" default:"1m" range:">0s"`

	// MaxHeader is the maximum size of the headers of a request.
	MaxHeader Size `toml:"max_header" default:"64KiB" range:"4KiB.."`

	// MaxBody is the maximum size of the body of a request, after decompression.
	MaxBody Size `toml:"max_body" default:"64MiB" range:"64KiB.."`

	// API serves the API of repositories below /-/api/v1/repos/: files, history, differences, commits, branches and
	// merges, with the caller's own rights.
	API bool `toml:"api" default:"true"`

	// CORSOrigins lists the origins of web pages whose scripts may use Git and Git LFS here (CORS), as in
	// "https://ide.example". "*", alone, stands for all pages, without credentials of the browser.
	CORSOrigins []string `toml:"cors_origins"`
}

// webOrigin is an origin as browsers send it.
var webOrigin = regexp.MustCompile(`^[a-z][a-z0-9+.-]*://([a-z0-9._-]+|\[[0-9a-f:]+\])(:[1-9][0-9]*)?$`)

// check reports origins that no browser would send.
func (c *HTTPConfig) check(f *Findings) {
	for _, origin := range c.CORSOrigins {
		switch scheme, rest, _ := strings.Cut(origin, "://"); {
		case origin == "*" && len(c.CORSOrigins) == 1:
		case origin == "*":
			f.bad(`http.cors_origins: "*" stands for all origins: remove it or the others`)
		case !webOrigin.MatchString(origin):
			f.bad(`http.cors_origins: %q is not an origin: write one in lower case and without a path, as in `+
				`"https://ide.example" or "http://localhost:5173"`, origin)
		case scheme == "https" && strings.HasSuffix(rest, ":443"), scheme == "http" && strings.HasSuffix(rest, ":80"):
			f.bad("http.cors_origins: %q has the default port, which browsers omit: remove it", origin)
		}
	}
}

// Proxies returns the networks of trusted_proxies.
func (c *Config) Proxies() (list clients.Proxies, err error) {
	for _, text := range c.TrustedProxies {
		network, err := netip.ParsePrefix(text)
		if address, notOne := netip.ParseAddr(text); err != nil && notOne == nil && address.Zone() == "" {
			network, err = netip.PrefixFrom(address, address.BitLen()), nil
		}
		if err != nil {
			return nil, fmt.Errorf("trusted_proxies: %q is not a network: write one as in \"10.0.0.0/8\", or an address", text)
		}
		list = append(list, network.Masked())
	}
	return list, nil
}

// checkProxies checks trusted_proxies and the keys that need it.
func (c *Config) checkProxies(f *Findings) {
	if _, err := c.Proxies(); err != nil {
		f.bad("%w", err)
	}
	for key, on := range map[string]bool{"http.proxy_protocol": c.HTTP.ProxyProtocol,
		"ssh.proxy_protocol": c.SSH.ProxyProtocol} {
		if on && len(c.TrustedProxies) == 0 {
			f.bad("%s is on, and trusted_proxies is empty, so every connection would be refused: name the networks of the "+
				"proxies in trusted_proxies", key)
		}
	}
}
