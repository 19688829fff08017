package origin

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
)

const (
	version2     = "version=2" // Git-Protocol header
	maxRedirects = 3
	pushPatience = 10 // the hooks of a push may take so many times as long as another answer
)

// Response is a response of the origin with status 200; that of Do can have another 2xx. The caller closes Body, which
// is not safe for concurrent use. Reading fails if the origin stalls, and when the context of the request ends.
type Response struct {
	Length int64       // bytes of Body, -1 if unknown; only set by Do
	Status int         // only set by Do
	Header http.Header // only set by Do
	Body   io.ReadCloser
}

// newTransport returns a transport of HTTP/1.1, which follows no redirects, keeps no cookies and decompresses nothing.
func newTransport(o Options) *http.Transport {
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		return o.dialer(address).DialContext(ctx, network, address)
	}
	t := &http.Transport{DialContext: dial, TLSHandshakeTimeout: 10 * time.Second, DisableCompression: true,
		TLSClientConfig:     &tls.Config{RootCAs: o.Authorities, MinVersion: tls.VersionTLS12},
		MaxIdleConnsPerHost: o.Requests, IdleConnTimeout: 90 * time.Second, MaxResponseHeaderBytes: 64 << 10,
		WriteBufferSize: 32 << 10, ReadBufferSize: 32 << 10}
	t.Protocols = new(http.Protocols)
	t.Protocols.SetHTTP1(true)
	if o.Proxy != nil {
		t.Proxy = http.ProxyURL(o.Proxy)
	}
	return t
}

// call is one HTTP request about a repository.
type call struct {
	operation   string
	path        string // of the repository
	service     protocol.Service
	auth        Secret
	isOwn       bool // auth is the mirror's
	gitProtocol string
	body        io.Reader // nil: a GET of the advertisement
	length      int64     // of body; -1 if unknown
	isPack      bool      // the answer is long
	foreign     *Request  // of another protocol than Git's; nil: a request of service
	isElsewhere bool      // the target is another host, which the origin named
}

// url returns the target of the request.
func (o *Origin) url(c *call) *url.URL {
	u := &url.URL{Scheme: o.o.URL.Scheme, Host: o.o.URL.Host, Path: o.base + c.path}
	if c.body == nil {
		u.Path += "/info/refs"
		u.RawQuery = "service=" + string(c.service)
	} else {
		u.Path += "/" + string(c.service)
	}
	return u
}

// contentType returns the content type of the answer.
func (c *call) contentType() string {
	if c.body == nil {
		return "application/x-" + string(c.service) + "-advertisement"
	}
	return "application/x-" + string(c.service) + "-result"
}

// isMediaType reports whether a Content-Type header has a media type. Like Git it ignores parameters and case.
func isMediaType(header, mediaType string) bool {
	kind, _, _ := strings.Cut(header, ";")
	return strings.EqualFold(strings.TrimSpace(kind), mediaType)
}

// request sends a call under the limits. With use, the answer is used and closed as a part of the request, else the
// caller closes it.
func (o *Origin) request(ctx context.Context, c *call, use func(*answer) error) (a *answer, err error) {
	if strings.ContainsFunc(c.auth.Reveal(), isControl) {
		return nil, fault.New(fault.Unauthenticated, "the credential contains control characters")
	}
	if pause := o.limits.callerPause(c.auth); pause > 0 {
		return nil, o.refused(errCallerPaused, pause)
	}
	err = o.limited(ctx, c.operation, c.path, c.isPack, func(leave func()) (err error) {
		if a, err = o.send(ctx, c, leave); err == nil && use != nil {
			err = use(a)
			_ = a.Close()
		}
		return err
	})
	return a, err
}

// send sends a call and returns the answer if its status is 200. The answer calls leave when it is closed.
func (o *Origin) send(ctx context.Context, c *call, leave func()) (*answer, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	unwatch := context.AfterFunc(o.closing, func() { cancel(errClosed) })
	timeout := o.o.AnswerTimeout
	if c.service == protocol.ReceivePack && c.body != nil {
		timeout *= pushPatience
	}
	w := newWait(timeout, func() { cancel(errNoAnswer) })
	explain := func(err error) error { return o.transportError(ctx, err) }
	stop := func() {}
	if !c.isPack && !c.isElsewhere && timeout == o.o.AnswerTimeout {
		stop = o.limits.await()
	}
	r, err := o.roundTrip(ctx, c, w)
	w.end()
	stop()
	if err != nil {
		err = explain(err)
		unwatch()
		cancel(nil)
		return nil, err
	}
	a := &answer{body: r.Body, response: r, explain: explain, cancel: cancel, leave: func() { unwatch(); leave() }}
	if !c.isElsewhere {
		o.limits.hear()
	}
	a.watch(o.o.Stall, c.operation, c.isPack)
	switch mediaType := r.Header.Get("Content-Type"); {
	case c.foreign != nil && r.StatusCode < 300:
	case r.StatusCode != http.StatusOK:
		err = o.statusError(c, r, a.errorBody())
		if !c.isElsewhere {
			o.obey(c, err)
		}
	case !isMediaType(mediaType, c.contentType()):
		err = fault.New(fault.Unavailable, "origin %s sent %q instead of an answer of %s", o.Host(),
			Printable(mediaType), c.service)
	}
	if err != nil {
		_ = a.Close()
		return nil, err
	}
	return a, nil
}

// newRequest returns the request of a call without its body.
func (o *Origin) newRequest(ctx context.Context, c *call) (*http.Request, error) {
	if c.foreign != nil {
		return c.foreign.build(ctx, o.o.Agent, c.auth)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, o.url(c).String(), nil)
	if err != nil {
		return nil, err
	}
	// Some hosts answer programs that are not named git with a page for people.
	r.Header.Set("User-Agent", "git/2.0 ("+o.o.Agent+")")
	if c.gitProtocol != "" {
		r.Header.Set("Git-Protocol", c.gitProtocol)
	}
	if !c.auth.IsZero() {
		r.Header.Set("Authorization", c.auth.Reveal())
	}
	if c.body == nil {
		return r, nil
	}
	r.Method = http.MethodPost
	r.Header.Set("Content-Type", "application/x-"+string(c.service)+"-request")
	r.Header.Set("Accept", c.contentType())
	if c.service == protocol.UploadPack {
		r.Header["Idempotency-Key"] = nil // is not sent; it permits net/http to use another connection if one is dead
	}
	return r, nil
}

// roundTrip sends a call over HTTP.
func (o *Origin) roundTrip(ctx context.Context, c *call, w *wait) (*http.Response, error) {
	r, err := o.newRequest(ctx, c)
	if err != nil {
		return nil, err
	}
	if c.body == nil {
		return o.transport.RoundTrip(r)
	}
	body := &upload{Reader: c.body, wait: w}
	r.Body, r.ContentLength = body, c.length
	if whole, ok := c.body.(*bytes.Reader); ok { // net/http sends it in one piece with the header, and can repeat it
		again := *whole
		r.Body = io.NopCloser(whole)
		r.GetBody = func() (io.ReadCloser, error) {
			whole := again
			return io.NopCloser(&whole), nil
		}
	}
	if c.length == 0 {
		r.Body = http.NoBody
	}
	response, err := o.transport.RoundTrip(r)
	if failure := body.failure(); err != nil && failure != nil {
		return nil, fault.Wrap(fault.KindOf(failure), "the request's body could not be read", failure)
	}
	return response, err
}

// Probe finds out whether the origin lets the owner of a credential use a service on a repository. It never uses the
// mirror's own credential and follows no redirect: after one the error is NotFound, and MovedPath returns the new path.
func (o *Origin) Probe(ctx context.Context, path string, service protocol.Service, auth Secret) error {
	if o.sessions != nil {
		return o.noRelay()
	}
	c := &call{operation: opProbe, path: path, service: service, auth: auth, gitProtocol: version2}
	_, err := o.request(ctx, c, func(a *answer) error {
		_, err := beginAdvertisement(pktline.NewReader(a))
		if fault.Is(err, fault.Unavailable) && !IsDown(err) {
			err = fault.Wrap(fault.Denied, "origin "+o.Host()+" denies access", err)
		}
		return err
	})
	if _, ok := o.MovedPath(err); ok {
		return fault.Wrap(fault.NotFound, "origin "+o.Host()+" has moved the repository", err)
	}
	return err
}

// MovedPath returns the new path of a repository from the error of a request that was redirected. ok is false if the
// redirect leads to another scheme, host, port or base path, which is never followed.
func (o *Origin) MovedPath(err error) (path string, ok bool) {
	e, isError := errors.AsType[*Error](err)
	if !isError || e.Moved == nil {
		return "", false
	}
	switch e.Status {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
	default:
		return "", false
	}
	u, own := e.Moved, o.o.URL
	path, ok = strings.CutPrefix(u.Path, o.base)
	if ok {
		path, ok = strings.CutSuffix(path, "/info/refs")
	}
	ok = ok && u.Scheme == own.Scheme && u.User == nil && strings.EqualFold(hostPort(u), hostPort(own)) &&
		checkPath(path) == nil
	return path, ok
}

// hostPort returns the host of a URL with its port.
func hostPort(u *url.URL) string {
	port := u.Port()
	switch {
	case port != "":
	case u.Scheme == "https":
		port = "443"
	case u.Scheme == "http":
		port = "80"
	}
	return net.JoinHostPort(u.Hostname(), port)
}

// discover sends a call for an advertisement and follows redirects. It returns the last path if there was one.
func (o *Origin) discover(ctx context.Context, c call, use func(*answer) error) (a *answer, moved string, err error) {
	for range maxRedirects + 1 {
		if a, err = o.request(ctx, &c, use); err == nil {
			return a, moved, nil
		}
		path, ok := o.MovedPath(err)
		if !ok {
			return nil, "", err
		}
		c.path, moved = path, path
	}
	return nil, "", fault.Wrap(fault.Unavailable, "origin "+o.Host()+" redirects too often", err)
}

// Advertisement asks for the advertisement of a push, as it is. gitProtocol is the client's Git-Protocol header.
func (o *Origin) Advertisement(ctx context.Context, path string, auth Secret, gitProtocol string) (*Response, error) {
	if o.sessions != nil {
		return nil, o.noRelay()
	}
	a, _, err := o.discover(ctx, call{operation: opAdvertisement, path: path, service: protocol.ReceivePack, auth: auth,
		gitProtocol: gitProtocol}, nil)
	if err != nil {
		return nil, err
	}
	return &Response{Body: a}, nil
}

// Relay sends a client's request to the service, as it is. length is that of body in bytes, -1 if unknown. The response
// may arrive before the body has been read, and the body may still be read after an error. An error of the body is
// returned with its kind.
func (o *Origin) Relay(ctx context.Context, path string, service protocol.Service, auth Secret, gitProtocol string,
	body io.Reader, length int64) (*Response, error) {
	if o.sessions != nil {
		return nil, o.noRelay()
	}
	auth, isOwn, err := o.credential(ctx, auth, service)
	if err != nil {
		return nil, err
	}
	a, err := o.request(ctx, &call{operation: opRelay, path: path, service: service, auth: auth, isOwn: isOwn,
		gitProtocol: gitProtocol, body: body, length: length, isPack: true}, nil)
	if err != nil {
		return nil, err
	}
	return &Response{Body: a}, nil
}
