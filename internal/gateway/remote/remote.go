// Package remote is the client of a storage node in another process. It has the same methods as the node, and calls
// them through the node's control API (package control).
//
// Control calls share one HTTP/2 connection. If it is silent, it is pinged, so that calls fail when a node was stopped
// or disconnected. Bulk data uses the data path in the options. A session with a short response, such as ls-refs of a
// few refs, is one message each way on a separate connection (package unaryhttp).
//
// Whether the node can be reached is known from memory (Ready): a health check runs every second, and a failed
// connection attempt counts at once. While the node is down, a new connection is tried every 300 ms, even if earlier
// attempts are still in progress. So the node is found as soon as it is back. Until then sessions fail at once.
package remote

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/transport/bulk"
	"github.com/packhorse-git/packhorse/internal/transport/sidechannel"
)

// Options configure a Node.
type Options struct {
	Name    string // in messages to clients, logs, and metric labels
	Address string // "host:port" or "unix:PATH"
	// TLS returns the configuration for a new connection; nil means no TLS. An empty ServerName means the address's
	// host. GetClientCertificate is also called at health checks: after the certificate has changed, new connections
	// replace the old ones.
	TLS    func() *tls.Config
	Secret func() string // returns the current shared secret; nil or "": none
	InBand bool          // bulk data is in the calls, without side channels
	// Channels are the metrics of the side channels; nil means InBand.
	Channels     *sidechannel.Metrics
	ChannelStall time.Duration // how long a transfer may make no progress; 0: sidechannel's default
	Pump         *bulk.Pump
	Log          *slog.Logger
}

// Node is a storage node in another process. It is safe for concurrent use.
type Node struct {
	Options
	network, address string
	host             string                                  // of the URLs
	private          bool                                    // others on the network cannot read the connection
	connect          func(context.Context) (net.Conn, error) // makes a connection to the address

	link  atomic.Pointer[link]
	state atomic.Pointer[state]
	kick  chan struct{} // has room for one token, which triggers a health check
	stop  context.CancelFunc
	done  sync.WaitGroup

	mu      sync.Mutex
	retired []*link // may still have sessions
}

const (
	dialLimit      = 2 * time.Second
	handshakeLimit = 5 * time.Second

	// A connection that is silent for pingAfter is pinged, and closed after pingTimeout without a response.
	pingAfter   = 5 * time.Second
	pingTimeout = 5 * time.Second

	// streamWindow is the maximum number of bytes of one response in flight. With InBand the gateway buffers that much for
	// a slow client.
	streamWindow = 1 << 20
	// frameSize is the maximum size of an HTTP/2 frame in bytes. With the default of 16 KiB the node uses a third more
	// CPU time.
	frameSize = 256 << 10
	// maxHeader is the maximum size of the header and of the trailer of a response in bytes. Errors are there.
	maxHeader = 256 << 10
	// maxMessage is the maximum size of a message of the node in bytes, maxRefs of one with refs, maxLFS of one with
	// states or locks of Git LFS.
	maxMessage = 1 << 20
	maxRefs    = 4 << 20
	maxLFS     = 4 << 20

	idleLimit = 90 * time.Second
	// unaryTimeout is the maximum duration of a unary session.
	unaryTimeout = time.Minute
	// unarySilence is how long a unary session on a reused connection may wait for the first byte of the response.
	unarySilence = 5 * time.Second
)

// New creates a Node and starts its health checks. Until the first one has ended, the node counts as reachable.
func New(o Options) (*Node, error) {
	n, err := newNode(o)
	if err != nil {
		return nil, err
	}
	n.startChecks()
	return n, nil
}

// newNode creates a Node without starting its health checks.
func newNode(o Options) (*Node, error) {
	n := &Node{Options: o, network: "tcp", address: o.Address, host: o.Address, kick: make(chan struct{}, 1)}
	if path, ok := strings.CutPrefix(o.Address, "unix:"); ok {
		n.network, n.address, n.host, n.private = "unix", path, "localhost", true
	} else if host, _, err := net.SplitHostPort(o.Address); err != nil {
		return nil, fault.Wrap(fault.Invalid,
			"storage node address "+strconv.Quote(o.Address)+": want host:port or unix:PATH", err)
	} else {
		ip := net.ParseIP(host)
		n.private = o.TLS != nil || host == "localhost" || ip != nil && ip.IsLoopback()
	}
	n.connect = func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, n.network, n.address)
	}
	n.link.Store(n.newLink())
	n.state.Store(&state{reachable: true})
	return n, nil
}

// startChecks starts the health checks.
func (n *Node) startChecks() {
	ctx, cancel := context.WithCancel(context.Background())
	n.stop = cancel
	n.done.Go(func() { n.checkHealth(ctx) })
}

// Close closes the connections. No session may be in flight.
func (n *Node) Close() error {
	n.stop()
	n.done.Wait()
	n.link.Load().close()
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range n.retired {
		l.close()
	}
	return nil
}

// call makes a call with one message each way, unless the node is down.
func call[Q, A any](ctx context.Context, n *Node, procedure func(context.Context,
	*connect.Request[Q]) (*connect.Response[A], error), message *Q) (*A, error) {
	if s := n.state.Load(); !s.reachable {
		return nil, s.err
	}
	request := connect.NewRequest(message)
	n.addHeaders(ctx, request.Header())
	response, err := procedure(ctx, request)
	if err != nil {
		return nil, n.failed(ctx, err)
	}
	return response.Msg, nil
}

// unreachable returns the error for clients of a node that cannot be reached.
func (n *Node) unreachable(err error) error {
	return &fault.Error{
		Kind: fault.Unavailable, Msg: "the storage node " + n.Name + " cannot be reached; try again in a moment",
		RetryAfter: fault.RetrySoon, Err: err,
	}
}

// isDialError reports whether a call failed because no connection could be made.
func isDialError(err error) bool {
	_, ok := errors.AsType[*dialError](err)
	return ok
}
