package roles

import (
	"fmt"
	"log/slog"
	"net"

	"github.com/packhorse-git/packhorse/internal/server/config"
	"github.com/packhorse-git/packhorse/internal/transport/clients"
)

// clientListeners wraps the listeners for clients. It limits connections and reads PROXY headers of trusted proxies.
type clientListeners struct {
	limits    connectionLimits
	http, ssh *clients.Limiter // ssh is nil without a listener
	proxies   clients.Proxies
	log       *slog.Logger
}

func newClientListeners(d *deps) (*clientListeners, error) {
	cfg, log := &d.cfg, d.log
	proxies, err := cfg.Proxies()
	if err != nil {
		return nil, err
	}
	metrics := clients.NewMetrics(d.reg)
	c := &clientListeners{limits: limitsOf(cfg, descriptors()), proxies: proxies, log: log}
	c.limits.report(log)
	answer := []byte(tooManyConnections)
	if cfg.HTTP.TLSCert != "" {
		answer = nil // a TLS client could not read it
	}
	// A proxy has the connections of many clients, so it is exempt.
	c.http = clients.NewLimiter(clients.LimiterOptions{
		Name: "http", Connections: c.limits.http, PerAddress: c.limits.httpAddress, Exempt: proxies.Contain, Answer: answer,
		Metrics: metrics, Log: log,
	})
	if cfg.SSH.Address != "" {
		c.ssh = clients.NewLimiter(clients.LimiterOptions{
			Name: "ssh", Connections: c.limits.ssh, PerAddress: c.limits.sshAddress, Exempt: proxies.Contain, Metrics: metrics,
			Log: log, Answer: []byte("too many connections; try again\r\n"),
		})
	}
	return c, nil
}

// listenHTTP and listenSSH wrap a listener: they count all connections, read PROXY headers, and count connections by
// the address of the client.
func (c *clientListeners) listenHTTP(l net.Listener, cfg config.HTTPConfig) net.Listener {
	answer := badHeaderHTTP
	if cfg.TLSCert != "" {
		answer = nil // a TLS client could not read it
	}
	return c.http.ByAddress(c.proxied(c.http.Listen(l), cfg.ProxyProtocol, answer))
}

func (c *clientListeners) listenSSH(l net.Listener, cfg config.SSHConfig) net.Listener {
	return c.ssh.ByAddress(c.proxied(c.ssh.Listen(l), cfg.ProxyProtocol, badHeaderSSH))
}

func (c *clientListeners) proxied(l net.Listener, on bool, answer func(string) []byte) net.Listener {
	if !on {
		return l
	}
	p := &clients.ProxyProtocol{Proxies: c.proxies, Answer: answer, Log: c.log}
	return p.Listen(l)
}

// badHeaderHTTP returns the HTTP response to a proxy without a valid PROXY header.
func badHeaderHTTP(why string) []byte {
	return fmt.Appendf(nil, "HTTP/1.1 400 Bad Request\r\nConnection: close\r\nCache-Control: no-store\r\n"+
		"Content-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\n\r\n%s\n", len(why)+1, why)
}

// badHeaderSSH returns the same as a line, which SSH servers may send before their banner (RFC 4253, section 4.2).
func badHeaderSSH(why string) []byte { return []byte(why + "\r\n") }
