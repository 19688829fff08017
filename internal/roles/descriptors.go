package roles

import (
	"fmt"
	"log/slog"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/config"
	"github.com/packhorse-git/packhorse/internal/connlimit"
)

// How the file descriptors of a process are divided. A connection with a running request may need more than its own:
// the file of a pack, a connection to a worker or a node, the pipes of a git process. So connections get half of the
// descriptors unless the configuration says otherwise, and never more than three quarters. The rest is also for the
// private listener, the admin socket and repositories.
const (
	fewDescriptors   = 4096  // fewer are worth a warning
	mostConnections  = 32768 // of HTTP, automatically: an idle one takes about 20 KiB
	mostSSH          = 4096  // of SSH, automatically
	mostSSHLogins    = 256   // of those, that have not logged in
	addressPart      = 4     // one address gets a quarter of the connections, automatically
	unlimitedProcess = 1 << 20
)

// descriptors is the number of file descriptors that the process may have open. At startup Go raises the soft limit to
// the hard one; child processes get the soft limit that the process was started with (package os, rlimit.go, and
// package syscall, forkExec).
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

// limitsOf completes what the configuration says with what the descriptors allow.
func limitsOf(c *config.Config, descriptors int) connectionLimits {
	l := connectionLimits{descriptors: descriptors, http: c.HTTP.Connections, ssh: c.SSH.Connections}
	half := max(descriptors/2, 2)
	switch {
	case c.SSH.Address == "":
		l.ssh = 0
	case l.ssh == 0:
		l.ssh = min(mostSSH, max(half/4, 1))
	}
	if l.http == 0 {
		l.http = min(mostConnections, max(half-l.ssh, half/4, 1))
	}
	if most := max(descriptors*3/4, 4); l.http+l.ssh > most { // neither takes all of the other
		l.ssh = min(l.ssh, max(most/4, most-l.http))
		l.http, l.lowered = min(l.http, most-l.ssh), true
	}
	l.httpAddress = partOf(l.http, c.HTTP.AddressConnections, addressPart)
	l.sshAddress = partOf(l.ssh, c.SSH.AddressConnections, addressPart)
	if l.sshLogins = partOf(l.ssh, c.SSH.Logins, 2); c.SSH.Logins == 0 {
		l.sshLogins = min(l.sshLogins, mostSSHLogins)
	}
	l.addressLogins = partOf(l.sshLogins, c.SSH.AddressLogins, 2)
	return l
}

// partOf is a limit within another one: what the configuration says, else a part of that.
func partOf(all, configured, part int) int {
	if configured > 0 {
		return min(configured, max(all, 1))
	}
	return max(all/part, 1)
}

// tell writes into the log what is worth knowing of the limits.
func (l connectionLimits) tell(log *slog.Logger) {
	attributes := []any{"descriptors", l.descriptors, "http_connections", l.http, "ssh_connections", l.ssh}
	switch {
	case l.lowered:
		log.Warn("connection limits lowered: too few file descriptors", attributes...)
	case l.descriptors < fewDescriptors:
		log.Warn("the process may open few files, and takes few connections; raise LimitNOFILE (ulimit -n)", attributes...)
	default:
		log.Debug("connection limits", attributes...)
	}
}

// tooManyConnections is what an HTTP client is told whose connection is refused.
const tooManyConnections = "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: " +
	"1\r\nCache-Control: no-store\r\n" +
	"Content-Type: text/plain; charset=utf-8\r\nContent-Length: 33\r\n\r\ntoo many connections; try again\r\n"

// notes are the lines about refused connections for the answer of /readyz.
func (c *clientListeners) notes() (lines []string) {
	for _, one := range []*connlimit.Limiter{c.http, c.ssh} {
		if one == nil {
			continue
		}
		if n := one.Recent(); n > 0 {
			lines = append(lines, fmt.Sprintf("warning: the %s listener refused %d connections in the last minute; its limit "+
				"is %d (%s.connections)",
				one.Name, n, one.Connections, one.Name))
		}
	}
	return lines
}
