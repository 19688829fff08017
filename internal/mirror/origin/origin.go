// Package origin is the client of a server that mirrors follow: any Git host, over HTTP or SSH.
//
// An Origin is one host. It asks for refs and packs in protocol version 2 (gitprotocol-v2(5)), and in version 0
// (gitprotocol-pack(5)) if the host does not know version 2. It also relays requests of clients without a change. All
// requests to the host share one budget, one pause after Retry-After, and one circuit breaker.
//
// Nothing that the origin sends is trusted. Names, lengths, redirects and addresses are checked, and an answer that is
// too large or too slow ends with an error. A credential goes to the configured scheme, host and port only.
package origin

import (
	"cmp"
	"context"
	"crypto/x509"
	"log/slog"
	"net/url"
	"strings"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/time/rate"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/schedule/retry"
	"github.com/packhorse-git/packhorse/internal/transport/httpguard"
)

// Secret is a credential. An origin takes and sends it as the value of an Authorization header.
type Secret = node.Secret

// Source returns the mirror's own credential as the value of an Authorization header (Basic or Bearer). It is safe for
// concurrent use and does its own caching.
type Source interface {
	Authorization(ctx context.Context) (Secret, error)
}

// Anonymous is the credential of requests that must not have one, also if the mirror has its own.
var Anonymous = node.NewSecret("\x00")

// Options configure an Origin. Only URL is required.
type Options struct {
	// URL is the origin, see ParseURL. Repositories are below it.
	URL *url.URL
	// Private allows private, loopback and link-local addresses. It is implied if the host of URL is an address or
	// localhost.
	Private bool
	// Authorities are trusted for TLS. Nil means those of the system.
	Authorities *x509.CertPool
	// Proxy is an HTTP proxy. Nil means none: the environment is not read. A proxy connects to any address.
	Proxy *url.URL
	// Hosts are other hosts from which the origin may have content fetched, see CheckHost. Private applies to them, too.
	Hosts []string

	Requests      int           // maximum number of concurrent requests; 3/4 of them may be packs. Zero means 16.
	PerMinute     int           // maximum number of requests per minute. Zero means no limit.
	Share         *Origin       // another origin at the host; its limits and breaker count for both. Nil means none.
	AnswerTimeout time.Duration // until the header of an answer; ten times as long for pushes. Zero means 30 s.
	// Stall is how long a pack may bring nothing, because the origin has to make it first. It may bring less than 1 KiB/s
	// for ten times as long, such as packets that keep the connection alive. Other answers have to bring 1 KiB/s within
	// one minute, or Stall if that is shorter, and downloads 8 KiB/s. Zero means 5 min.
	Stall   time.Duration
	MaxRefs int         // maximum number of refs in a list. Zero means 1,000,000.
	Lists   *ListMemory // of the lists of all origins. Nil means that this one has its own.

	Credential Source      // the mirror's own credential, for requests without a caller's. Nil means none.
	SSH        *SSHOptions // keys and known hosts of an ssh:// origin
	Agent      string      // agent string; "" means "packhorse"

	Metrics *Metrics     // nil means none
	Log     *slog.Logger // nil means none
}

// Origin is a client of one origin host. It is safe for concurrent use.
//
// A path is that of a repository below Options.URL, decoded, without a slash at its ends, such as "owner/repo.git".
// Requests of upload-pack with a zero auth use Options.Credential, if there is one. Errors have kinds of package fault
// and wrap an *Error if the origin refused or did not answer. IsDown reports whether one means an outage.
// Unauthenticated and Denied are about the caller's credential only: a refusal of the mirror's own is Unavailable.
type Origin struct {
	o         Options
	base      string // path of Options.URL, with a slash at its end
	transport *httpguard.Transport
	sessions  sessions // of an SSH origin, else nil
	limits    *limits
	metrics   *Metrics
	log       *slog.Logger
	hostLog   rate.Sometimes                    // about hosts that are not allowed
	known     *lru.Cache[string, repository]    // by path
	logins    *retry.Answers[string, *lfsLogin] // of an SSH origin, by path
	closing   context.Context
	close     context.CancelFunc
}

// repository is a repository at the origin as its last advertisement described it.
type repository struct {
	*advertisement
	moved string // its path after redirects, "" if there were none
}

// maxKnown is the number of repositories whose capabilities are remembered.
const maxKnown = 10_000

// New returns an Origin, which need not be reachable. The caller has to close it.
func New(o Options) (*Origin, error) {
	if o.URL == nil {
		return nil, fault.New(fault.Invalid, "an origin needs a URL")
	}
	if err := checkURL(o.URL); err != nil {
		return nil, err
	}
	o.Requests, o.MaxRefs = cmp.Or(o.Requests, 16), cmp.Or(o.MaxRefs, 1_000_000)
	o.AnswerTimeout, o.Stall = cmp.Or(o.AnswerTimeout, 30*time.Second), cmp.Or(o.Stall, 5*time.Minute)
	o.Agent = cmp.Or(o.Agent, "packhorse")
	if o.Lists == nil {
		o.Lists = NewListMemory(0)
	}
	c := &Origin{o: o, base: "/" + strings.Trim(o.URL.Path, "/"), metrics: o.Metrics, log: o.Log,
		hostLog: rate.Sometimes{Interval: time.Minute}}
	if c.base != "/" {
		c.base += "/"
	}
	if c.metrics == nil {
		c.metrics = NewMetrics(nil)
	}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	var err error
	if c.known, err = lru.New[string, repository](maxKnown); err != nil {
		return nil, err
	}
	c.logins = retry.NewAnswers[string, *lfsLogin](maxKnown, 0, time.Now)
	if o.URL.Scheme == "ssh" {
		if c.sessions, err = newSessions(o, o.dialer(o.URL.Hostname())); err != nil {
			return nil, err
		}
	}
	c.transport = httpguard.NewTransport(newTransport(o))
	c.closing, c.close = context.WithCancel(context.Background())
	if o.Share != nil {
		c.limits = o.Share.limits
		return c, nil
	}
	open := c.metrics.open.WithLabelValues(c.Host())
	c.limits = newLimits(o.Requests, o.PerMinute, func(isOpen bool, cause error) {
		if isOpen {
			open.Set(1)
			c.log.Warn("requests to origin stopped", "origin", c.Host(), "error", cause)
		} else {
			open.Set(0)
			c.log.Info("requests to origin resumed", "origin", c.Host())
		}
	})
	return c, nil
}

// Close ends running requests and closes the connections.
func (o *Origin) Close() error {
	o.close()
	o.transport.CloseIdleConnections()
	if o.sessions != nil {
		return o.sessions.Close()
	}
	return nil
}

// Host returns the host of the origin, for messages and labels.
func (o *Origin) Host() string { return o.o.URL.Host }

// CanRelay reports whether the origin takes requests of clients as they are. Only HTTP origins do. Probe,
// Advertisement and Relay fail at others.
func (o *Origin) CanRelay() bool { return o.sessions == nil }

// limited sends a request under the limits and counts it. send calls leave when the answer has been read, except after
// an error.
func (o *Origin) limited(ctx context.Context, operation, path string, isPack bool,
	send func(leave func()) error) (err error) {
	began := time.Now()
	defer func() { o.count(operation, began, err) }()
	if err := checkPath(path); err != nil {
		return err
	}
	if after, err := o.limits.check(); err != nil {
		return o.refused(err, after)
	}
	leave, err := o.limits.enter(ctx, callerOf(ctx, path), isPack)
	if err != nil {
		return o.refused(err, 0)
	}
	o.metrics.waits.WithLabelValues(o.Host()).Observe(time.Since(began).Seconds())
	began = time.Now()
	err = o.limits.run(func() error { return send(leave) })
	if err != nil {
		leave()
	}
	if isRefusal(err) {
		return o.refused(err, 0)
	}
	return err
}

// credential returns the credential of a request, and whether it is the mirror's own.
func (o *Origin) credential(ctx context.Context, auth Secret, service protocol.Service) (Secret, bool, error) {
	if auth.Reveal() == Anonymous.Reveal() {
		return Secret{}, false, nil
	}
	if !auth.IsZero() || o.o.Credential == nil || service != protocol.UploadPack {
		return auth, false, nil
	}
	own, err := o.o.Credential.Authorization(ctx)
	return own, true, fault.Wrap(fault.Unavailable, "the mirror's own credential is not available", err)
}

// listing returns an empty list of refs.
func (o *Origin) listing(prefixes []string) *listing {
	return &listing{maxRefs: o.o.MaxRefs, prefixes: prefixes, charge: o.o.Lists.newCharge()}
}

// checkFormat returns an error if the origin's repository has another object format than a request.
func (r repository) checkFormat(f *FetchRequest) error {
	if r.format != f.Format {
		return fault.New(fault.Unavailable, "the object format at the origin is %s instead of %s", r.format, f.Format)
	}
	if r.version == protocol.V0 && !r.has("side-band-64k") {
		return fault.New(fault.Unavailable, "the origin does not support side-band-64k")
	}
	return nil
}

// noRelay is the error of requests that only HTTP origins take.
func (o *Origin) noRelay() error {
	return fault.New(fault.Denied, "origin %s takes no requests of clients: it is reached over SSH", o.Host())
}
