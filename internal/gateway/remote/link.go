package remote

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"slices"
	"time"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/proto/internalv1/internalv1connect"
	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
	"github.com/packhorse-git/packhorse/internal/transport/httpguard"
	"github.com/packhorse-git/packhorse/internal/transport/sidechannel"
	"github.com/packhorse-git/packhorse/internal/transport/unaryhttp"
	healthv1 "github.com/packhorse-git/packhorse/proto/packhorse/health/v1"
	"github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"
)

// link has the connections to the node with one client certificate. These are an HTTP/2 connection, or several if there
// are more calls than one can carry, connections for unary sessions, and side channels. A channel can be claimed only
// in a call with the certificate that opened it.
type link struct {
	certificate *tls.Certificate // nil: none
	transport   *http.Transport
	client      *http.Client // of transport
	base        string       // URL
	options     connect.ClientOption
	pool        *sidechannel.Pool // nil: bulk data is in the calls
	sessions    internalv1connect.SessionServiceClient
	refs        packhorsev1connect.RefServiceClient
	node        internalv1connect.NodeServiceClient
	lfs         internalv1connect.LFSServiceClient
	unaryClient *unaryhttp.Client // one connection for each session in flight
	unary       internalv1connect.SessionServiceClient
	health      *connect.Client[healthv1.HealthCheckRequest, healthv1.HealthCheckResponse]
	retired     time.Time
}

func (n *Node) newLink() *link {
	l := &link{certificate: n.certificate()}
	base := "http://" + n.host
	t := &http.Transport{
		Protocols:          new(http.Protocols),
		DisableCompression: true,

		MaxResponseHeaderBytes: maxHeader,
		IdleConnTimeout:        idleLimit,
		HTTP2: &http.HTTP2Config{
			MaxReadFrameSize: frameSize, MaxReceiveBufferPerStream: streamWindow, SendPingTimeout: pingAfter,
			PingTimeout: pingTimeout,
		},
	}
	if n.TLS == nil {
		t.Protocols.SetUnencryptedHTTP2(true)
		t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return n.dial(ctx, "", nil) }
	} else {
		base = "https://" + n.host
		t.Protocols.SetHTTP2(true)
		t.DialTLSContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return n.dial(ctx, "h2", l.certificate)
		}
	}
	if !n.InBand && n.Channels != nil {
		l.pool = sidechannel.NewPool(sidechannel.PoolOptions{
			Dial: func(ctx context.Context) (net.Conn, error) { return n.dial(ctx, "http/1.1", l.certificate) },
			Host: n.host, Header: n.credentials, Pump: n.Pump, Stall: n.ChannelStall,
			Metrics: n.Channels, Log: n.Log,
		})
	}
	client := httpguard.Client(t)
	options := connect.WithClientOptions(
		connect.WithGRPC(), connect.WithCodec(codec{}), connect.WithReadMaxBytes(maxMessage),
		connect.WithAcceptCompression("gzip", nil, nil),
		connect.WithInterceptors(connect.UnaryInterceptorFunc(countUsage)),
	)
	l.transport, l.client, l.base, l.options = t, client, base, options
	l.unaryClient = &unaryhttp.Client{Limit: unaryTimeout, Silence: unarySilence,
		Dial: func(ctx context.Context) (net.Conn, error) { return n.dial(ctx, "http/1.1", l.certificate) }}
	l.unary = internalv1connect.NewSessionServiceClient(l.unaryClient, base,
		connect.WithReadMaxBytes(maxMessage), connect.WithAcceptCompression("gzip", nil, nil))
	l.sessions = internalv1connect.NewSessionServiceClient(client, base, options)
	l.refs = packhorsev1connect.NewRefServiceClient(client, base, options, connect.WithReadMaxBytes(maxRefs))
	l.node = internalv1connect.NewNodeServiceClient(client, base, options)
	l.lfs = internalv1connect.NewLFSServiceClient(client, base, options, connect.WithReadMaxBytes(maxLFS))
	l.health = connect.NewClient[healthv1.HealthCheckRequest, healthv1.HealthCheckResponse](client, base+healthCheck,
		options)
	return l
}

// certificate returns the client certificate for new connections; nil if there is none.
func (n *Node) certificate() *tls.Certificate {
	if n.TLS == nil {
		return nil
	}
	get := n.TLS().GetClientCertificate
	if get == nil {
		return nil
	}
	c, err := get(&tls.CertificateRequestInfo{})
	if err != nil {
		n.Log.Error("cannot load the client certificate for a storage node", "node", n.Name, "error", err)
		return nil
	}
	return c
}

// hasCertificate reports whether the link uses this certificate.
func (l *link) hasCertificate(c *tls.Certificate) bool {
	if l.certificate == nil || c == nil {
		return l.certificate == c
	}
	return slices.EqualFunc(l.certificate.Certificate, c.Certificate, bytes.Equal)
}

// healthCheck is the method of gRPC's health checking protocol (github.com/grpc/grpc, doc/health-checking.md).
const healthCheck = "/grpc.health.v1.Health/Check"

// close closes all connections. No session may be in flight.
func (l *link) close() {
	l.transport.CloseIdleConnections()
	l.unaryClient.Close()
	if l.pool != nil {
		_ = l.pool.Close() // never fails
	}
}

// closeIdle closes the connections that no session uses. It reports whether all are closed.
func (l *link) closeIdle() bool {
	l.transport.CloseIdleConnections()
	empty := l.unaryClient.CloseIdle()
	return (l.pool == nil || l.pool.Retire()) && empty
}

// dialError is an error of a connection attempt that the node or the network caused.
type dialError struct{ err error }

func (e *dialError) Error() string { return e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

// dialFailed returns the error of a step whose timeout is limit's deadline. It is not a dialError if ctx's own deadline
// was earlier, because then the node is not the cause.
func dialFailed(ctx, limit context.Context, err error) error {
	if own, ok := ctx.Deadline(); ok && errors.Is(err, context.DeadlineExceeded) {
		if end, _ := limit.Deadline(); end.Equal(own) {
			return err
		}
	}
	return &dialError{err}
}

// dial makes a connection to the node. With TLS it negotiates the protocol and uses the certificate.
func (n *Node) dial(ctx context.Context, protocol string, certificate *tls.Certificate) (net.Conn, error) {
	limit, stop := context.WithTimeout(ctx, dialLimit)
	defer stop()
	c, err := n.connect(limit)
	if err != nil {
		return nil, dialFailed(ctx, limit, err)
	}
	if n.TLS == nil {
		return c, nil
	}
	config := n.TLS().Clone()
	if config.ServerName == "" && n.network == "tcp" {
		config.ServerName, _, _ = net.SplitHostPort(n.address)
	}
	config.NextProtos = []string{protocol}
	if certificate != nil {
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return certificate, nil
		}
	}
	limit, cancel := context.WithTimeout(ctx, handshakeLimit)
	defer cancel()
	secure := tls.Client(c, config)
	if err := secure.HandshakeContext(limit); err != nil {
		c.Close()
		return nil, dialFailed(ctx, limit, err)
	}
	return secure, nil
}

// addSecret adds the shared secret to a request.
func (n *Node) addSecret(h http.Header) {
	if n.Secret == nil {
		return
	}
	if secret := n.Secret(); secret != "" {
		h.Set("Authorization", "Bearer "+secret)
	}
}

// addHeaders adds the shared secret to a call, and the IDs of the request and the trace that it belongs to.
func (n *Node) addHeaders(ctx context.Context, h http.Header) {
	n.addSecret(h)
	inflight.From(ctx).Forward(h.Set)
	inflight.InjectTrace(ctx, h)
}

// credentials returns the header that opens a side channel.
func (n *Node) credentials() http.Header {
	h := http.Header{}
	n.addSecret(h)
	return h
}
