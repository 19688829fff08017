package gitssh

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/packhorse-git/packhorse/internal/gateway/auth"
)

// failed counts and logs a connection that ended before its login. All refused logins are logged, for programs like
// fail2ban. Other failures cost a scanner nothing, and are logged as often as the limit allows.
func (c *client) failed(err error) {
	what, suppressed := "handshake", 0
	refusal, refused := errors.AsType[*ssh.ServerAuthError](err)
	switch {
	case c.wire.silent: // a health check, for example of our own watchdog
		c.metrics.connections.WithLabelValues("silent").Inc()
		return
	case errors.Is(err, errProxyHeader):
		what = "proxy_header"
	case c.wire.bad:
		what = "banner"
	case c.timedOut.Load():
		what = "timeout"
	case refused:
		what, err = "auth", refusalOf(refusal)
	default:
		c.metrics.failures.WithLabelValues(handshakeFailure(err)).Inc()
	}
	c.metrics.connections.WithLabelValues(what).Inc()
	if !refused {
		ok := false
		if ok, suppressed = c.failures.Take(c.source); !ok {
			return
		}
	}
	a := []slog.Attr{
		slog.String("client", c.wire.RemoteAddr().String()), slog.String("reason", what),
		slog.String("agent", logged(c.wire.version)),
	}
	text := err.Error()
	if n, ok := errors.AsType[*ssh.AlgorithmNegotiationError](err); ok {
		text = "no common algorithm for " + n.What
		a = append(a, slog.String("offered", logged(strings.Join(n.RequestedAlgorithms, ","))))
	}
	a = append(a, slog.String("error", logged(text)))
	if suppressed > 0 {
		a = append(a, slog.Int("suppressed", suppressed))
	}
	c.Log.LogAttrs(c.ctx, slog.LevelInfo, "SSH login failed", a...)
}

// refusalOf returns why each offered key was refused.
func refusalOf(refusal *ssh.ServerAuthError) error {
	var all []string
	for _, err := range refusal.Errors {
		if !errors.Is(err, ssh.ErrNoAuth) { // the client asked for the methods
			all = append(all, err.Error())
		}
	}
	if len(all) == 0 {
		return errors.New("no key was offered")
	}
	return errors.New(strings.Join(all, "; "))
}

// handshakeFailure returns why a handshake failed, as a metric label: the kind of algorithm for which client and server
// have none in common, or "closed", or "protocol".
func handshakeFailure(err error) string {
	if n, ok := errors.AsType[*ssh.AlgorithmNegotiationError](err); ok {
		for _, of := range []struct{ what, label string }{
			{"key exchange", "key_exchange"}, {"host key", "host_key"}, {"cipher", "cipher"}, {"MAC", "mac"},
			{"compression", "compression"},
		} {
			if strings.HasSuffix(n.What, of.what) {
				return of.label
			}
		}
	}
	for _, closed := range []error{io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, syscall.ECONNRESET, syscall.EPIPE} {
		if errors.Is(err, closed) {
			return "closed"
		}
	}
	if strings.HasPrefix(err.Error(), "ssh: disconnect") { // the client's message; the library does not export its type
		return "closed"
	}
	return "protocol"
}

// maxLoggedClient is the maximum length in bytes of a client's text in the log.
const maxLoggedClient = 1 << 10

// logged returns a client's text for the log.
func logged(s string) string {
	s = s[:min(len(s), maxLoggedClient)]
	return auth.Redact(strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, s))
}

// Of the failures of one address failureBurst are logged at once, and then one each failurePause.
const (
	failureBurst = 8
	failurePause = 15 * time.Second
)
