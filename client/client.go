// Package client talks to a Packhorse storage node: it makes and removes repositories, looks up refs and objects, and watches for changes.
//
//	node, err := client.New("https://storage-1.example:9100", client.Options{Secret: secret})
//	...
//	defer node.Close()
//	found, err := node.Refs().Resolve(ctx, connect.NewRequest(&packhorsev1.ResolveRequest{Repository: "team/app", Name: "main"}))
//
// The services are Connect's typed clients of what proto/packhorse/v1 defines, and every call of theirs can be made; the methods that this
// package adds save loops: over pages, over parts of a blob, over broken connections. They take the same messages. An error of any
// of them can be asked for its kind (KindOf), which says what can be done about it.
//
// Calls end when their context does: give each a deadline. A call that is not made by a method of this package is not repeated after a
// failure; whoever repeats one heeds RetryAfter.
//
// docs/reference/api.md shows the same with curl. What is in this package, and in version 1 of the definitions, stays: things are added, never
// changed or removed.
package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/unaryhttp"
	healthv1 "github.com/packhorse-git/packhorse/proto/packhorse/health/v1"
	"github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"
)

// Options say how to reach a node. The zero value does for a node on the same machine that demands nothing of its callers.
type Options struct {
	// Secret is what the node and its callers share (its secret_file). It is asked for with each call, so that it can change; nil, or
	// an empty secret, for none. Without TLS it can be read on the network.
	Secret func() string
	// TLS is how to make connections secure: roots, the client's certificate. Nil: the system's roots, and no certificate.
	TLS *tls.Config
	// Dial makes the connections to the node; nil: they are made to its address.
	Dial func(ctx context.Context) (net.Conn, error)
}

// Client is a connection to one node, made when it is needed and again when it breaks. Safe for concurrent use.
type Client struct {
	transport *http.Transport
	short     *unaryhttp.Client
	http      *http.Client // over transport
	base      string       // URL

	repositories packhorsev1connect.RepositoryServiceClient
	refs         packhorsev1connect.RefServiceClient
	objects      packhorsev1connect.ObjectServiceClient
	health       *connect.Client[healthv1.HealthCheckRequest, healthv1.HealthCheckResponse]

	firstPause, lastPause time.Duration // between attempts of a watch to come back
}

// maxMessage bounds a message that a node sends, in bytes.
const maxMessage = 64 << 20

// The time limits of connections. One that is silent for pingAfter is asked for a sign of life, and closed if none comes in time: a watch of
// a node that was cut off ends so.
const (
	dialTimeout  = 10 * time.Second
	lookupLimit  = 30 * time.Second // for a look-up of refs, which takes milliseconds
	lookupQuiet  = 5 * time.Second  // until the answer begins, on a connection that is used again
	keepIdle     = 5 * time.Minute
	pingAfter    = 10 * time.Second
	pingTimeout  = 10 * time.Second
	firstPause   = 100 * time.Millisecond
	lastPause    = 10 * time.Second
	maxResponses = 1 << 20 // bytes of a response's header
)

// New makes a client of the node at an address: "http://HOST:PORT" or "https://HOST:PORT"; "HOST:PORT", which is with TLS if o.TLS is
// set; or "unix:PATH" for a Unix socket. It makes no connection: an error says that the address is none.
func New(address string, o Options) (*Client, error) {
	base, socket, err := parseAddress(address, o.TLS != nil)
	if err != nil {
		return nil, err
	}
	dialer := &net.Dialer{Timeout: dialTimeout}
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		if o.Dial != nil {
			return o.Dial(ctx)
		}
		if socket != "" {
			network, address = "unix", socket
		}
		return dialer.DialContext(ctx, network, address)
	}
	transport := &http.Transport{
		DialContext:            dial,
		TLSClientConfig:        o.TLS.Clone(),
		TLSHandshakeTimeout:    dialTimeout,
		IdleConnTimeout:        keepIdle,
		MaxResponseHeaderBytes: maxResponses,
		Protocols:              new(http.Protocols),
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout},
	}
	transport.Protocols.SetHTTP2(true)
	transport.Protocols.SetUnencryptedHTTP2(true)
	caller := func(t http.RoundTripper) *http.Client {
		return &http.Client{
			Transport:     authorized{t, o.Secret},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // a node never sends one; a secret stays
		}
	}
	doer := caller(transport)
	limit := connect.WithReadMaxBytes(maxMessage)
	short := &unaryhttp.Client{Dial: dialShort(dial, base, o.TLS), Limit: lookupLimit, Silence: lookupQuiet}
	return &Client{
		transport: transport, short: short, http: doer, base: base,
		repositories: packhorsev1connect.NewRepositoryServiceClient(doer, base, limit),
		refs: &lookups{
			RefServiceClient: packhorsev1connect.NewRefServiceClient(doer, base, limit),
			short:            packhorsev1connect.NewRefServiceClient(caller(short), base, limit),
		},
		objects: packhorsev1connect.NewObjectServiceClient(doer, base, limit),
		health: connect.NewClient[healthv1.HealthCheckRequest, healthv1.HealthCheckResponse](
			doer, base+"/grpc.health.v1.Health/Check", limit),
		firstPause: firstPause, lastPause: lastPause,
	}, nil
}

// parseAddress finds the URL that calls go to, and the Unix socket, if it is one, that they go through.
func parseAddress(address string, secure bool) (base, socket string, err error) {
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		if path == "" {
			return "", "", errors.New(`packhorse: the address of a Unix socket is "unix:PATH"`)
		}
		if secure {
			return "https://localhost", path, nil
		}
		return "http://localhost", path, nil
	}
	if !strings.Contains(address, "://") {
		scheme := "http://"
		if secure {
			scheme = "https://"
		}
		address = scheme + address
	}
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Port() == "" || u.Hostname() == "" ||
		strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return "", "", fmt.Errorf(`packhorse: %q is no address of a node; it is "http://HOST:PORT", "https://HOST:PORT", "HOST:PORT", or "unix:PATH"`, address)
	}
	if secure && u.Scheme == "http" {
		return "", "", fmt.Errorf("packhorse: TLS is configured, but %q says http", address)
	}
	return u.Scheme + "://" + u.Host, "", nil
}

// authorized shows the secret with each request.
type authorized struct {
	http.RoundTripper
	secret func() string
}

func (a authorized) RoundTrip(r *http.Request) (*http.Response, error) {
	if a.secret != nil {
		if secret := a.secret(); secret != "" {
			r = r.Clone(r.Context())
			r.Header.Set("Authorization", "Bearer "+secret)
		}
	}
	return a.RoundTripper.RoundTrip(r)
}

// Close closes connections that no call uses. Calls that run are not disturbed: they end with their contexts.
func (c *Client) Close() {
	c.transport.CloseIdleConnections()
	c.short.CloseIdle()
}

// Repositories makes, describes, lists, maintains, and removes repositories.
func (c *Client) Repositories() packhorsev1connect.RepositoryServiceClient { return c.repositories }

// Refs looks up refs, and watches for changes.
func (c *Client) Refs() packhorsev1connect.RefServiceClient { return c.refs }

// Objects reads blobs, trees and commits.
func (c *Client) Objects() packhorsev1connect.ObjectServiceClient { return c.objects }

// HTTP returns the HTTP client and the base URL of the node, for generated clients of other services. Its requests carry the secret.
func (c *Client) HTTP() (httpClient connect.HTTPClient, baseURL string) { return c.http, c.base }

// Healthy tells whether the node wants calls of a service ("packhorse.v1.RefService"), or calls at all if service is empty. It does
// not while it drains before its end, and while it cannot read its root. The error says that it could not be asked, or knows no such
// service.
func (c *Client) Healthy(ctx context.Context, service string) (bool, error) {
	response, err := c.health.CallUnary(ctx, connect.NewRequest(&healthv1.HealthCheckRequest{Service: service}))
	if err != nil {
		return false, err
	}
	return response.Msg.GetStatus() == healthv1.HealthCheckResponse_SERVING, nil
}
