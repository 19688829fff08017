// Package client is a client of a Packhorse storage node. It creates, lists and deletes repositories, looks up refs and
// objects, and watches for changes. It makes commits, merges, diffs and archives without a working copy.
//
//	node, err := client.New("https://storage-1.example:9100", client.Options{Secret: secret})
//	...
//	defer node.Close()
//	request := &packhorsev1.ResolveRequest{Repository: "team/app", Name: "main"}
//	found, err := node.Refs().Resolve(ctx, connect.NewRequest(request))
//
// The services are Connect clients of the definitions in proto/packhorse/v1. This package adds loops: over pages, parts
// of a blob, messages of a stream, and broken connections. KindOf returns the kind of any error, which determines what
// a program can do about it. FaultOf returns its details, such as the field of the request or the refs that have moved.
//
// Calls end with their context: set a deadline for each. Calls of the services are not repeated after a failure. A
// program that repeats one should wait for RetryAfter.
//
// docs/reference/api.md shows the calls with curl. This package and version 1 of the definitions are stable: later
// releases add to them, and do not change or remove anything.
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

	"github.com/packhorse-git/packhorse/internal/schedule/retry"
	"github.com/packhorse-git/packhorse/internal/transport/unaryhttp"
	healthv1 "github.com/packhorse-git/packhorse/proto/packhorse/health/v1"
	"github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"
)

// Options of a Client. The zero value is for a node on the same machine that needs no credentials.
type Options struct {
	// Secret returns the shared secret of the node (its secret_file). It is called for each request, so that the secret
	// can change. Nil or an empty text means none. Without TLS the secret is readable on the network.
	Secret func() string
	// TLS has the trusted roots and the certificate of the client. Nil means the roots of the system and no certificate.
	TLS *tls.Config
	// Dial makes connections to the node. Nil means to its address.
	Dial func(ctx context.Context) (net.Conn, error)
}

// Client is a client of one node. It connects when necessary, and again after a failure. Safe for concurrent use.
type Client struct {
	transport *http.Transport
	short     *unaryhttp.Client
	http      *http.Client // over transport
	base      string       // URL

	repositories packhorsev1connect.RepositoryServiceClient
	refs         packhorsev1connect.RefServiceClient
	objects      packhorsev1connect.ObjectServiceClient
	commits      packhorsev1connect.CommitServiceClient
	merges       packhorsev1connect.MergeServiceClient
	diffs        packhorsev1connect.DiffServiceClient
	history      packhorsev1connect.HistoryServiceClient
	tokens       packhorsev1connect.TokenServiceClient
	rules        packhorsev1connect.RuleServiceClient
	archives     packhorsev1connect.ArchiveServiceClient
	events       packhorsev1connect.EventServiceClient
	webhooks     packhorsev1connect.WebhookServiceClient
	health       *connect.Client[healthv1.HealthCheckRequest, healthv1.HealthCheckResponse]

	pauses retry.Policy // between attempts to resume a watch
}

// maxMessage is the maximum length of a message from a node in bytes.
const maxMessage = 64 << 20

// Time limits of connections. The client pings a connection that is silent for pingAfter, and closes it without a
// reply, so that the watch of an unreachable node ends.
const (
	dialTimeout  = 10 * time.Second
	lookupLimit  = 30 * time.Second // of a look-up of refs, which takes milliseconds
	lookupQuiet  = 5 * time.Second  // until the first byte of a response on a reused connection
	keepIdle     = 5 * time.Minute
	pingAfter    = 10 * time.Second
	pingTimeout  = 10 * time.Second
	firstPause   = 100 * time.Millisecond
	lastPause    = 10 * time.Second
	maxResponses = 1 << 20 // bytes of a response header
)

// New returns a client of the node at an address: "http://HOST:PORT", "https://HOST:PORT", "HOST:PORT", which uses TLS
// if o.TLS is set, or "unix:PATH" for a Unix socket. It does not connect. It fails for an invalid address.
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
			Transport: authorized{t, o.Secret},
			// nodes send no redirects, and the secret is not for other hosts
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
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
		objects:  packhorsev1connect.NewObjectServiceClient(doer, base, limit),
		commits:  packhorsev1connect.NewCommitServiceClient(doer, base, limit),
		merges:   packhorsev1connect.NewMergeServiceClient(doer, base, limit),
		diffs:    packhorsev1connect.NewDiffServiceClient(doer, base, limit),
		history:  packhorsev1connect.NewHistoryServiceClient(doer, base, limit),
		tokens:   packhorsev1connect.NewTokenServiceClient(doer, base, limit),
		rules:    packhorsev1connect.NewRuleServiceClient(doer, base, limit),
		archives: packhorsev1connect.NewArchiveServiceClient(doer, base, limit),
		events:   packhorsev1connect.NewEventServiceClient(doer, base, limit),
		webhooks: packhorsev1connect.NewWebhookServiceClient(doer, base, limit),
		health: connect.NewClient[healthv1.HealthCheckRequest, healthv1.HealthCheckResponse](
			doer, base+"/grpc.health.v1.Health/Check", limit),
		pauses: retry.Policy{First: firstPause, Max: lastPause},
	}, nil
}

// parseAddress returns the base URL of calls, and the path of the Unix socket, if it is one.
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
		return "", "", fmt.Errorf(`packhorse: invalid address %q of a node: use "http://HOST:PORT", "https://HOST:PORT", "HOST:PORT" or "unix:PATH"`, address)
	}
	if secure && u.Scheme == "http" {
		return "", "", fmt.Errorf("packhorse: TLS is configured, but %q says http", address)
	}
	return u.Scheme + "://" + u.Host, "", nil
}

// authorized adds the secret to each request.
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

// Close closes idle connections. Running calls continue until their contexts end.
func (c *Client) Close() {
	c.transport.CloseIdleConnections()
	c.short.CloseIdle()
}

// Repositories returns the client of RepositoryService.
func (c *Client) Repositories() packhorsev1connect.RepositoryServiceClient { return c.repositories }

// Refs returns the client of RefService.
func (c *Client) Refs() packhorsev1connect.RefServiceClient { return c.refs }

// Objects returns the client of ObjectService.
func (c *Client) Objects() packhorsev1connect.ObjectServiceClient { return c.objects }

// CommitService returns the client of CommitService. See also OpenCommit, for large files.
func (c *Client) CommitService() packhorsev1connect.CommitServiceClient { return c.commits }

// Merges returns the client of MergeService. See also CheckMerges.
func (c *Client) Merges() packhorsev1connect.MergeServiceClient { return c.merges }

// Diffs returns the client of DiffService. All its calls are for Messages.
func (c *Client) Diffs() packhorsev1connect.DiffServiceClient { return c.diffs }

// Tokens returns the client of TokenService, which a node has with auth.shared.
func (c *Client) Tokens() packhorsev1connect.TokenServiceClient { return c.tokens }

// Rules returns the client of RuleService, which a node has with auth.shared.
func (c *Client) Rules() packhorsev1connect.RuleServiceClient { return c.rules }

// History returns the client of HistoryService. Blame and LastCommits are for Messages.
func (c *Client) History() packhorsev1connect.HistoryServiceClient { return c.history }

// Archives returns the client of ArchiveService. See also OpenArchive.
func (c *Client) Archives() packhorsev1connect.ArchiveServiceClient { return c.archives }

// Events returns a client of the EventService.
func (c *Client) Events() packhorsev1connect.EventServiceClient { return c.events }

// Webhooks returns a client of the WebhookService.
func (c *Client) Webhooks() packhorsev1connect.WebhookServiceClient { return c.webhooks }

// HTTP returns the HTTP client and the base URL of the node, for generated clients of other services. Its requests
// carry the secret.
func (c *Client) HTTP() (httpClient connect.HTTPClient, baseURL string) { return c.http, c.base }

// Healthy reports whether the node accepts calls of a service ("packhorse.v1.RefService"), or any calls if service is
// empty. It does not while it drains or cannot read its root. The error is about the call itself or an unknown service.
func (c *Client) Healthy(ctx context.Context, service string) (bool, error) {
	response, err := c.health.CallUnary(ctx, connect.NewRequest(&healthv1.HealthCheckRequest{Service: service}))
	if err != nil {
		return false, err
	}
	return response.Msg.GetStatus() == healthv1.HealthCheckResponse_SERVING, nil
}
