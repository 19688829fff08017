package roles

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/connlimit"
	"github.com/packhorse-git/packhorse/internal/origin"
)

// proxies are the networks of trusted_proxies.
func (c *Config) proxies() (list origin.Proxies, err error) {
	for _, text := range c.TrustedProxies {
		network, err := parseNetwork(text)
		if err != nil {
			return nil, fmt.Errorf("trusted_proxies: %w", err)
		}
		list = append(list, network)
	}
	return list, nil
}

// parseNetwork reads a network, or an address as a network of one.
func parseNetwork(text string) (netip.Prefix, error) {
	if p, err := netip.ParsePrefix(text); err == nil {
		return p.Masked(), nil
	}
	a, err := netip.ParseAddr(text)
	if err != nil || a.Zone() != "" {
		return netip.Prefix{}, fmt.Errorf("%q is no network; write one as in \"10.0.0.0/8\", or an address", text)
	}
	return netip.PrefixFrom(a, a.BitLen()), nil
}

// checkProxies finds what could not work with the proxies in front.
func (c *Config) checkProxies(f *findings) {
	if _, err := c.proxies(); err != nil {
		f.bad("%w", err)
	}
	for _, s := range []struct {
		key string
		on  bool
	}{{"http.proxy_protocol", c.HTTP.ProxyProtocol}, {"ssh.proxy_protocol", c.SSH.ProxyProtocol}} {
		if s.on && len(c.TrustedProxies) == 0 {
			f.bad("%s is on, and trusted_proxies is empty: nobody may send the header; name the proxies' networks in trusted_proxies", s.key)
		}
	}
}

// doors are what the listeners that clients reach have in common.
type doors struct {
	limits    connectionLimits
	http, ssh *connlimit.Limiter // ssh is nil without a listener
	proxies   origin.Proxies
	warnings  *origin.Warnings
}

// newDoors makes them.
func newDoors(cfg Config, log *slog.Logger, reg prometheus.Registerer) (doors, error) {
	proxies, err := cfg.proxies()
	if err != nil {
		return doors{}, err
	}
	metrics := connlimit.NewMetrics()
	register(reg, metrics)
	d := doors{limits: cfg.connectionLimits(descriptors()), proxies: proxies, warnings: origin.NewWarnings(log)}
	d.limits.tell(log)
	answer := []byte(tooManyConnections)
	if cfg.HTTP.TLSCert != "" {
		answer = nil // it could not be read
	}
	// The connections of a proxy are those of many clients, and say nothing of any.
	d.http = connlimit.New(connlimit.Options{
		Name: "http", Connections: d.limits.http, PerAddress: d.limits.httpAddress, Exempt: proxies.Contain, Answer: answer, Metrics: metrics, Log: log,
	})
	if cfg.SSH.Address != "" {
		d.ssh = connlimit.New(connlimit.Options{
			Name: "ssh", Connections: d.limits.ssh, PerAddress: d.limits.sshAddress, Exempt: proxies.Contain, Metrics: metrics, Log: log,
			Answer: []byte("too many connections; try again\r\n"),
		})
	}
	return d, nil
}

// listenHTTP and listenSSH wrap a listener: all connections are counted, PROXY headers are read, and connections are counted by the client's address.
func (d doors) listenHTTP(l net.Listener, c HTTPConfig) net.Listener {
	answer := badHeaderHTTP
	if c.TLSCert != "" {
		answer = nil // it could not be read
	}
	return d.http.ByAddress(d.proxied(d.http.Listen(l), c.ProxyProtocol, answer))
}

func (d doors) listenSSH(l net.Listener, c SSHConfig) net.Listener {
	return d.ssh.ByAddress(d.proxied(d.ssh.Listen(l), c.ProxyProtocol, badHeaderSSH))
}

func (d doors) proxied(l net.Listener, on bool, answer func(string) []byte) net.Listener {
	if !on {
		return l
	}
	p := &origin.ProxyProtocol{Proxies: d.proxies, Answer: answer, Log: d.warnings}
	return p.Listen(l)
}

// badHeaderHTTP tells a proxy in HTTP that it has sent no good PROXY header.
func badHeaderHTTP(why string) []byte {
	return fmt.Appendf(nil, "HTTP/1.1 400 Bad Request\r\nConnection: close\r\nCache-Control: no-store\r\n"+
		"Content-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\n\r\n%s\n", len(why)+1, why)
}

// badHeaderSSH tells it a proxy in one line, which SSH servers may send before their banner (RFC 4253, section 4.2).
func badHeaderSSH(why string) []byte { return []byte(why + "\r\n") }
