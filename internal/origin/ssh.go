package origin

import (
	"net"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// SSHOptions are the keys and the known hosts of an SSH origin.
type SSHOptions struct{}

// newSessions returns the sessions of an SSH origin.
func newSessions(o Options, _ *net.Dialer) (sessions, error) {
	return nil, fault.New(fault.Invalid, "origin %s: SSH is not supported", o.URL.Host)
}
