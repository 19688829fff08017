package roles

import (
	"fmt"
	"log/slog"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/server/config"
	"github.com/packhorse-git/packhorse/internal/transport/clients"
)

// Division of the file descriptors of a process. A connection with a running request may need several: the file of a
// pack, a connection to a worker or a node, the pipes of a git process. So connections get half of the descriptors by
// default, and never more than three quarters. The rest is also for the private listener, the admin socket and
// repositories.
const (
	fewDescriptors   = 4096  // a smaller number causes a warning
	maxHTTP          = 32768 // default maximum of HTTP connections: an idle one takes about 20 KiB
	maxSSH           = 4096  // default maximum of SSH connections
	maxSSHLogins     = 256   // maximum of SSH connections before their login
	addressPart      = 4     // one address gets a quarter of the connections by default
	unlimitedProcess = 1 << 20
)

// descriptors returns the maximum number of open file descriptors of the process. At startup Go raises the soft limit
// to the hard one. Child processes get the original soft limit (package os, rlimit.go, and package syscall, forkExec).
func descriptors() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil || limit.Cur > unlimitedProcess {
		return unlimitedProcess
	}
	return int(limit.Cur)
}

// connectionLimits are the limits of a process that serves clients.
type connectionLimits struct {
	descriptors              int
	http, httpAddress        int
	ssh, sshAddress          int
	sshLogins, addressLogins int
	lowered                  bool // the configuration asks for more than the descriptors allow
}

// limitsOf returns the limits of a configuration. The number of descriptors determines the others.
func limitsOf(c *config.Config, descriptors int) connectionLimits {
	l := connectionLimits{descriptors: descriptors, http: c.HTTP.Connections, ssh: c.SSH.Connections}
	half := max(descriptors/2, 2)
	switch {
	case c.SSH.Address == "":
		l.ssh = 0
	case l.ssh == 0:
		l.ssh = min(maxSSH, max(half/4, 1))
	}
	if l.http == 0 {
		l.http = min(maxHTTP, max(half-l.ssh, half/4, 1))
	}
	if limit := max(descriptors*3/4, 4); l.http+l.ssh > limit { // each keeps a share
		l.ssh = min(l.ssh, max(limit/4, limit-l.http))
		l.http, l.lowered = min(l.http, limit-l.ssh), true
	}
	l.httpAddress = ofAddress(l.http, c.HTTP.AddressConnections)
	l.sshAddress = ofAddress(l.ssh, c.SSH.AddressConnections)
	l.sshLogins = min(max(l.ssh/2, 1), maxSSHLogins)
	l.addressLogins = max(l.sshLogins/2, 1)
	return l
}

// ofAddress returns the limit of an address: the configured value, or a part of the limit of all.
func ofAddress(all, configured int) int {
	if configured > 0 {
		return min(configured, max(all, 1))
	}
	return max(all/addressPart, 1)
}

// report logs the limits, with a warning if they are low.
func (l connectionLimits) report(log *slog.Logger) {
	attributes := []any{"descriptors", l.descriptors, "http_connections", l.http, "ssh_connections", l.ssh}
	switch {
	case l.lowered:
		log.Warn("connection limits lowered: too few file descriptors", attributes...)
	case l.descriptors < fewDescriptors:
		log.Warn("few file descriptors limit the number of connections: raise LimitNOFILE (ulimit -n)", attributes...)
	default:
		log.Debug("connection limits", attributes...)
	}
}

// tooManyConnections is the response to an HTTP client whose connection is refused.
const tooManyConnections = "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\n" +
	"Cache-Control: no-store\r\n" +
	"Content-Type: text/plain; charset=utf-8\r\nContent-Length: 33\r\n\r\ntoo many connections; try again\r\n"

// notes returns lines about refused connections for the response of /readyz.
func (c *clientListeners) notes() (lines []string) {
	for _, one := range []*clients.Limiter{c.http, c.ssh} {
		if one == nil {
			continue
		}
		if n := one.Recent(); n > 0 {
			lines = append(lines, fmt.Sprintf("warning: the %s listener refused %d connections in the last minute; its "+
				"limit is %d (%[1]s.connections)", one.Name, n, one.Connections))
		}
	}
	return lines
}
