// Package remote is the gateway's side of a storage node elsewhere: it has the same methods as the node itself, and
// carries them over the node's control API (package control).
//
// Control calls share one HTTP/2 connection, which is asked for a sign of life when it is silent: a node that was
// stopped or cut off is noticed, and the calls on it end. Bulk bytes take the road that the options say. A session
// whose answer is short, such as ls-refs of a few refs, is one message each way, on a connection that it has for itself
// meanwhile (package unaryhttp).
//
// Whether the node can be reached is known from memory (Ready): a prober looks each second, and a connection that
// cannot be made counts at once. While the node is away, a new connection is tried every 300 ms, whatever became of the
// one before: it is found again as soon as it is back. Until then sessions are refused without a wait.
package remote

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/bulk"
	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/inflight"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1/internalv1connect"
	"github.com/packhorse-git/packhorse/internal/sidechannel"
	"github.com/packhorse-git/packhorse/internal/unaryhttp"
	healthv1 "github.com/packhorse-git/packhorse/proto/packhorse/health/v1"
	"github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"
)

// Options says which node it is and how it is reached.
type Options struct {
	Name    string // in messages to clients, logs, and metric labels
	Address string // "host:port" or "unix:PATH"
	// TLS gives what a new connection is made with; nil: connections without TLS. A ServerName that is empty is the
	// address's host. What its GetClientCertificate gives is asked for beforehand too: when it is another certificate,
	// new connections take the place of those there are.
	TLS    func() *tls.Config
	Secret func() string // what the node demands, as it is now; nil, or an empty one, for none
	InBand bool          // bulk bytes go inside the calls, not by side channels
	// Channels counts what the side channels carry; nil stands for InBand.
	Channels     *sidechannel.Metrics
	ChannelIdle  time.Duration // how long a channel is kept for the next transfer; 0: sidechannel's default
	NoFiles      bool          // by a Unix socket the node sends the bytes of packs, and not their files
	ChannelStall time.Duration // how long the node may take or send nothing in a transfer; 0: sidechannel's default
	Pump         *bulk.Pump
	Metrics      *Metrics
	Log          *slog.Logger
}

// Node is a storage node elsewhere. Safe for concurrent use.
type Node struct {
	Options
	network, address string
	host             string                                  // of the URLs
	reach            func(context.Context) (net.Conn, error) // makes a connection to the address

	link  atomic.Pointer[link]
	state atomic.Pointer[state]
	kick  chan struct{} // capacity 1: look at the node now
	stop  context.CancelFunc
	done  sync.WaitGroup

	mu      sync.Mutex
	retired []*link // may still have transfers
}

const (
	dialLimit      = 2 * time.Second
	handshakeLimit = 5 * time.Second

	// A connection that is silent for pingAfter is asked for a sign of life, and given up if none comes within
	// pingTimeout.
	pingAfter   = 5 * time.Second
	pingTimeout = 5 * time.Second

	// streamWindow is how much of one answer may be under way, in bytes: what a slow client makes the gateway hold if
	// the road is the call itself.
	streamWindow = 1 << 20
	// frameSize is the largest frame that is taken, in bytes. With HTTP/2's own 16 KiB the node spends a third more CPU
	// time.
	frameSize = 256 << 10
	// maxHeader bounds the header and the trailer of an answer, in bytes. What is wrong is told there.
	maxHeader = 256 << 10
	// maxAnswer bounds a message of the node, in bytes; maxRefs one that tells of refs.
	maxAnswer = 1 << 20
	maxRefs   = 4 << 20

	idleLimit = 90 * time.Second
	// shortLimit bounds a session that is expected to be short, whatever became of the node.
	shortLimit = time.Minute
	// shortSilence is how long nothing may come of the answer to such a session on a connection that is used again.
	shortSilence = 5 * time.Second
)

// New makes a Node, which begins to look whether it can be reached. Until it knows, it takes it for granted.
func New(o Options) (*Node, error) {
	n, err := newNode(o)
	if err != nil {
		return nil, err
	}
	n.begin()
	return n, nil
}

// newNode makes a Node that does not look yet.
func newNode(o Options) (*Node, error) {
	n := &Node{Options: o, network: "tcp", address: o.Address, host: o.Address, kick: make(chan struct{}, 1)}
	if path, ok := strings.CutPrefix(o.Address, "unix:"); ok {
		n.network, n.address, n.host = "unix", path, "localhost"
	} else if _, _, err := net.SplitHostPort(o.Address); err != nil {
		return nil, fault.Wrap(fault.Invalid, "the storage node's address is neither host:port nor unix:PATH", err)
	}
	n.reach = func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{Control: bulk.UnpacedDial}).DialContext(ctx, n.network, n.address)
	}
	n.link.Store(n.newLink())
	n.state.Store(&state{reachable: true})
	return n, nil
}

// begin begins to look.
func (n *Node) begin() {
	n.Metrics.open(n.Name)
	ctx, cancel := context.WithCancel(context.Background())
	n.stop = cancel
	n.done.Go(func() { n.watch(ctx) })
}

// Close ends the connections. No session may be running.
func (n *Node) Close() error {
	n.stop()
	n.done.Wait()
	n.link.Load().close()
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range n.retired {
		l.close()
	}
	n.Metrics.close(n.Name)
	return nil
}

// link is a connection to the node, or several if there are more calls than one carries, and the side channels beside
// it. All of them show the node the same certificate: a channel can be claimed only by a call of the caller that opened
// it.
type link struct {
	certificate *tls.Certificate // nil: none
	transport   *http.Transport
	pool        *sidechannel.Pool // nil: bulk bytes go inside the calls
	transfers   internalv1connect.SessionServiceClient
	refs        packhorsev1connect.RefServiceClient
	node        internalv1connect.NodeServiceClient
	direct      *unaryhttp.Client // for short sessions: connections of their own, as many as are under way
	shorts      internalv1connect.SessionServiceClient
	health      *connect.Client[healthv1.HealthCheckRequest, healthv1.HealthCheckResponse]
	since       time.Time // when it was retired
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
		t.DialTLSContext = func(ctx context.Context, _, _ string) (net.Conn,
			error) {
			return n.dial(ctx, "h2", l.certificate)
		}
	}
	if !n.InBand && n.Channels != nil {
		l.pool = sidechannel.NewPool(sidechannel.PoolOptions{
			Dial:   func(ctx context.Context) (net.Conn, error) { return n.dial(ctx, "http/1.1", l.certificate) },
			Host:   n.host,
			Header: n.credentials, NoFiles: n.NoFiles, Pump: n.Pump, Idle: n.ChannelIdle, Stall: n.ChannelStall,
			Metrics: n.Channels, Log: n.Log,
		})
	}
	client := &http.Client{Transport: t}
	options := connect.WithClientOptions(
		connect.WithGRPC(), connect.WithCodec(codec{}), connect.WithReadMaxBytes(maxAnswer),
		connect.WithAcceptCompression("gzip", nil, nil),
		connect.WithInterceptors(connect.UnaryInterceptorFunc(takeUsage)),
	)
	l.transport = t
	l.direct = &unaryhttp.Client{Limit: shortLimit, Silence: shortSilence,
		Dial: func(ctx context.Context) (net.Conn, error) { return n.dial(ctx, "http/1.1", l.certificate) }}
	l.shorts = internalv1connect.NewSessionServiceClient(l.direct, base,
		connect.WithReadMaxBytes(maxAnswer), connect.WithAcceptCompression("gzip", nil, nil))
	l.transfers = internalv1connect.NewSessionServiceClient(client, base, options)
	l.refs = packhorsev1connect.NewRefServiceClient(client, base, options, connect.WithReadMaxBytes(maxRefs))
	l.node = internalv1connect.NewNodeServiceClient(client, base, options)
	l.health = connect.NewClient[healthv1.HealthCheckRequest, healthv1.HealthCheckResponse](client, base+healthCheck,
		options)
	return l
}

// certificate is what new connections show the node now; nil: nothing.
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
		n.Log.Error("the certificate for a storage node cannot be had", "node", n.Name, "error", err)
		return nil
	}
	return c
}

// shows tells whether the link shows the node this certificate.
func (l *link) shows(c *tls.Certificate) bool {
	if l.certificate == nil || c == nil {
		return l.certificate == c
	}
	return slices.EqualFunc(l.certificate.Certificate, c.Certificate, bytes.Equal)
}

// healthCheck is gRPC's procedure (github.com/grpc/grpc, doc/health-checking.md).
const healthCheck = "/grpc.health.v1.Health/Check"

// close ends the link. No session may be running.
func (l *link) close() {
	l.transport.CloseIdleConnections()
	l.direct.Close()
	if l.pool != nil {
		_ = l.pool.Close() // never fails
	}
}

// rest closes what no session uses now. It reports whether that was all.
func (l *link) rest() bool {
	l.transport.CloseIdleConnections()
	empty := l.direct.CloseIdle()
	return (l.pool == nil || l.pool.Retire()) && empty
}

// dialError is a connection that could not be made, for reasons of the node or of the network.
type dialError struct{ err error }

func (e *dialError) Error() string { return e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

// dialFailed is the error of a step that had until limit's end. If ctx ends before that, it says nothing of the node
// that the time was too short.
func dialFailed(ctx, limit context.Context, err error) error {
	if own, ok := ctx.Deadline(); ok && errors.Is(err, context.DeadlineExceeded) {
		if end, _ := limit.Deadline(); end.Equal(own) {
			return err
		}
	}
	return &dialError{err}
}

// dial makes a connection to the node, by TLS for a protocol of its own and with a link's certificate if there is TLS.
func (n *Node) dial(ctx context.Context, protocol string, certificate *tls.Certificate) (net.Conn, error) {
	limit, stop := context.WithTimeout(ctx, dialLimit)
	defer stop()
	c, err := n.reach(limit)
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
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate,
			error) {
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

// authorize adds what the node demands to a call.
func (n *Node) authorize(h http.Header) {
	if n.Secret == nil {
		return
	}
	if secret := n.Secret(); secret != "" {
		h.Set("Authorization", "Bearer "+secret)
	}
}

// introduce adds what the node demands to a call, and which request it is for.
func (n *Node) introduce(ctx context.Context, h http.Header) {
	n.authorize(h)
	inflight.From(ctx).Leave(h.Set)
	inflight.LeaveTrace(ctx, h)
}

// credentials are what a side channel is opened with.
func (n *Node) credentials() http.Header {
	h := http.Header{}
	n.authorize(h)
	return h
}

// unreachable is what a client is told.
func (n *Node) unreachable(err error) error {
	return &fault.Error{
		Kind: fault.Unavailable, Msg: "the storage node " + n.Name + " cannot be reached; try again in a moment",
		RetryAfter: fault.RetrySoon, Err: err,
	}
}

// isDial tells whether a call failed because there was no connection.
func isDial(err error) bool {
	_, ok := errors.AsType[*dialError](err)
	return ok
}
