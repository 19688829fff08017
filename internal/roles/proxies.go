package roles

import (
	"fmt"
	"log/slog"
	"net"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/config"
	"github.com/packhorse-git/packhorse/internal/connlimit"
	"github.com/packhorse-git/packhorse/internal/origin"
)

// doors are what the listeners that clients reach have in common.
type doors struct {
	limits    connectionLimits
	http, ssh *connlimit.Limiter // ssh is nil without a listener
	proxies   origin.Proxies
	warnings  *origin.Warnings
}

// newDoors makes them.
func newDoors(cfg config.Config, log *slog.Logger, reg prometheus.Registerer) (doors, error) {
	proxies, err := cfg.Proxies()
	if err != nil {
		return doors{}, err
	}
	metrics := connlimit.NewMetrics()
	register(reg, metrics)
	d := doors{limits: limitsOf(&cfg, descriptors()), proxies: proxies, warnings: origin.NewWarnings(log)}
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
func (d doors) listenHTTP(l net.Listener, c config.HTTPConfig) net.Listener {
	answer := badHeaderHTTP
	if c.TLSCert != "" {
		answer = nil // it could not be read
	}
	return d.http.ByAddress(d.proxied(d.http.Listen(l), c.ProxyProtocol, answer))
}

func (d doors) listenSSH(l net.Listener, c config.SSHConfig) net.Listener {
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
