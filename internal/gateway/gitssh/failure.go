package gitssh

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/time/rate"

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
		if ok, suppressed = c.failures.take(c.source); !ok {
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

// Of the failures of one address failureBurst are logged at once, and then one each failurePause. Of all addresses
// together eight times as many are logged.
const (
	failureBurst = 8
	failurePause = 15 * time.Second
	failureShare = 8

	manyFailures = 1 << 12 // maximum number of addresses in memory
)

// failureLimit limits how many failures are logged. Safe for concurrent use.
type failureLimit struct {
	now func() time.Time
	all *rate.Limiter

	mu         sync.Mutex
	sources    map[netip.Prefix]*rate.Limiter
	suppressed int
}

func newFailureLimit() *failureLimit {
	return &failureLimit{now: time.Now, sources: map[netip.Prefix]*rate.Limiter{},
		all: rate.NewLimiter(rate.Every(failurePause/failureShare), failureBurst*failureShare)}
}

// take reports whether a failure of an address should be logged, and how many were suppressed since the last logged
// one.
func (l *failureLimit) take(source netip.Prefix) (ok bool, suppressed int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.sources) >= manyFailures {
		clear(l.sources) // the limit of all addresses still holds
	}
	own := l.sources[source]
	if own == nil {
		own = rate.NewLimiter(rate.Every(failurePause), failureBurst)
		l.sources[source] = own
	}
	now := l.now()
	if own.TokensAt(now) < 1 || !l.all.AllowN(now, 1) {
		l.suppressed++
		return false, 0
	}
	own.AllowN(now, 1)
	suppressed, l.suppressed = l.suppressed, 0
	return true, suppressed
}
