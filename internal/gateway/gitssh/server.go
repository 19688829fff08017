// Package gitssh is the front end for SSH: it serves the services of git and Git LFS, and nothing else. There is no
// shell, no program, no forwarding and no terminal.
package gitssh

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/crypto/ssh"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/schedule/retry"
	"github.com/packhorse-git/packhorse/internal/transport/bulk"
	"github.com/packhorse-git/packhorse/internal/transport/clients"
)

// Keys identifies users by their SSH keys and certificates. Safe for concurrent use.
type Keys interface {
	// Key returns the identity for a key that a client at an address uses to log in with a name. noTouch means that a
	// security key need not be touched. It is also called for keys that are only offered, and again before each command
	// on a connection. It fails with Unauthenticated for an invalid key, or Unavailable.
	Key(ctx context.Context, login string, key ssh.PublicKey, from netip.Addr) (id auth.Identity, noTouch bool,
		err error)
}

// Options configures a Server.
type Options struct {
	*gateway.Gateway
	HostKeys   []ssh.Signer
	Keys       Keys // nil: none
	Anonymous  bool // without a key one may come in as "anonymous", or by any name if there are no Keys
	Algorithms Algorithms
	Agent      string // the server's banner after "SSH-2.0-"
	Limits     Limits
	Registerer prometheus.Registerer // of metrics; may be nil

	Idle       time.Duration // a connection may stay without a session, a session without a command
	WriteStall time.Duration // a client may keep an answer waiting

	LoginGrace  time.Duration // maximum time of a login; default 30s
	SessionIdle time.Duration // a client may be silent between the requests of a command; default 12h
	Sessions    int           // at once on one connection; default 10

	// KeepAlive is the interval of questions whether the client is still there, by default 30s. After three without an
	// answer it is not.
	KeepAlive time.Duration
}

// authTries is the number of keys that a client may try.
const authTries = 6

// AnonymousLogin is the user name for a login without a key.
const AnonymousLogin = "anonymous"

// Server serves SSH.
type Server struct {
	Options
	config   ssh.ServerConfig
	keys     []ssh.MultiAlgorithmSigner
	gate     *gate
	metrics  *metrics
	failures *clients.LogLimit
	unread   atomic.Int64 // bytes, see backlog

	mu       sync.Mutex
	closing  bool // Serve returns soon
	ending   bool // new connections are closed
	listener map[net.Listener]struct{}
	serving  sync.WaitGroup // calls of Serve
	clients  map[*client]struct{}
	all      sync.WaitGroup // connections
}

// New makes a Server.
func New(o Options) (*Server, error) {
	o.Algorithms = o.Algorithms.WithDefaults()
	o.LoginGrace, o.KeepAlive = cmp.Or(o.LoginGrace, 30*time.Second), cmp.Or(o.KeepAlive, 30*time.Second)
	o.SessionIdle, o.Sessions = cmp.Or(o.SessionIdle, 12*time.Hour), cmp.Or(o.Sessions, 10)
	s := &Server{
		Options: o, gate: newGate(o.Limits), failures: clients.NewLogLimit(failureBurst, failurePause),
		listener: map[net.Listener]struct{}{}, clients: map[*client]struct{}{},
	}
	s.metrics = newMetrics(o.Registerer, s.gate)
	s.config = ssh.ServerConfig{
		Config: ssh.Config{
			KeyExchanges: o.Algorithms.KeyExchanges, Ciphers: o.Algorithms.Ciphers, MACs: o.Algorithms.MACs,
		},
		PublicKeyAuthAlgorithms: userKeys, MaxAuthTries: authTries, ServerVersion: "SSH-2.0-" + o.Agent,
	}
	for _, key := range o.HostKeys {
		m, ok := key.(ssh.MultiAlgorithmSigner)
		if !ok {
			return nil, fmt.Errorf("host key of kind %s: not supported", key.PublicKey().Type())
		}
		s.keys = append(s.keys, m)
	}
	if len(s.keys) == 0 {
		return nil, errors.New("no SSH host key")
	}
	return s, nil
}

// Serve accepts connections until Shutdown. It then returns nil.
func (s *Server) Serve(l net.Listener) error {
	l = bulk.Listen(l, s.Pump, s.WriteStall)
	s.mu.Lock()
	if s.closing {
		s.mu.Unlock()
		return l.Close()
	}
	s.listener[l] = struct{}{}
	s.serving.Add(1)
	defer s.serving.Done()
	s.mu.Unlock()
	for failures := 0; ; {
		conn, err := l.Accept()
		if err != nil {
			if s.isEnding() || errors.Is(err, net.ErrClosed) {
				return nil
			}
			// As in net/http: file descriptors, for example, may be available again soon.
			if temporary(err) {
				failures++
				pause := retry.Policy{First: 5 * time.Millisecond, Max: time.Second}.Pause(failures)
				s.Log.Warn("cannot accept an SSH connection", "error", err, "pause", pause.String())
				time.Sleep(pause)
				continue
			}
			return fmt.Errorf("serve SSH: %w", err)
		}
		failures = 0
		s.accept(conn)
	}
}

func temporary(err error) bool {
	e, ok := errors.AsType[*net.OpError](err)
	return ok && e.Temporary() //nolint:staticcheck // there is no other way to ask
}

// accept admits a connection, or refuses it without a goroutine.
func (s *Server) accept(conn net.Conn) {
	c := &client{
		Server: s, wire: &wireConn{Conn: conn, backlog: backlog{all: &s.unread}}, counted: clients.ConnOf(conn),
		address:  clients.AddressOf(conn),
		sessions: map[*session]struct{}{}, left: make(chan struct{}, 1),
	}
	if s.Limits.Exempt == nil || !s.Limits.Exempt(c.address) {
		c.source = clients.NetworkOf(c.address)
	}
	if why := s.gate.enter(c.source); why != "" {
		s.metrics.connections.WithLabelValues(why).Inc()
		s.Log.Debug("SSH connection refused", "client", conn.RemoteAddr().String(), "reason", why)
		_, _ = conn.Write([]byte("too many connections; try again\r\n")) // fits into the socket's buffer
		conn.Close()
		return
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ending {
		c.end()
		return
	}
	s.clients[c] = struct{}{}
	s.all.Go(c.run)
}

func (s *Server) isEnding() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ending
}

// firstSessionTimeout is how long a connection without a session may take to begin one during a shutdown.
const firstSessionTimeout = 5 * time.Second

// Shutdown stops accepting connections, closes those without a session, and waits for the others. A connection that has
// not had a session yet may begin one within firstSessionTimeout. When ctx ends, the remaining clients get a message,
// and are disconnected two seconds later at the latest.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	s.closing = true
	for l := range s.listener {
		l.Close()
	}
	s.mu.Unlock()
	s.serving.Wait() // clients has all accepted connections
	s.mu.Lock()
	s.ending = true
	for c := range s.clients {
		if c.wasUsed() {
			c.endIfIdle()
		} else {
			time.AfterFunc(firstSessionTimeout, c.endIfIdle)
		}
	}
	s.mu.Unlock()
	done := make(chan struct{})
	go func() { s.all.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	clients := slices.Collect(maps.Keys(s.clients))
	s.mu.Unlock()
	var cutting sync.WaitGroup
	for _, c := range clients {
		cutting.Go(func() { c.cutAll(cutShutdown) })
	}
	select {
	case <-done:
	case <-time.After(2 * sayPatience): // for clients to read the message and to close
	}
	for _, c := range clients {
		c.cancel()
		c.wire.Close()
	}
	<-done
	cutting.Wait()
	return ctx.Err()
}

// client is one connection.
type client struct {
	*Server
	wire    *wireConn
	counted *clients.Conn // nil: not counted
	address netip.Addr
	source  netip.Prefix    // zero: no limits for this address
	ctx     context.Context // ends with the connection
	cancel  context.CancelFunc

	conn  *ssh.ServerConn
	user  user
	agent string

	excused  bool // the client got the message that its key is not to blame
	loggedIn bool
	mu       sync.Mutex
	sessions map[*session]struct{} // that have not ended
	used     bool                  // it has had a session
	commands int                   // running
	idle     *time.Timer
	left     chan struct{}  // capacity 1: a session has ended
	running  sync.WaitGroup // sessions
	timedOut atomic.Bool
}

// user is the user of a login. The zero value is anonymous.
type user struct {
	id  auth.Identity
	key ssh.PublicKey
}

// userKey is the key of the user in ssh.Permissions.ExtraData.
type userKey struct{}

// end releases the resources of a connection.
func (c *client) end() {
	c.cancel()
	c.wire.Close()
	c.wire.backlog.close()
	c.gate.leave(c.source, c.loggedIn)
}

// run serves the connection until its end.
func (c *client) run() {
	defer func() {
		c.end()
		c.Server.mu.Lock()
		delete(c.clients, c)
		c.Server.mu.Unlock()
	}()
	channels, requests, err := c.login()
	if err != nil {
		c.failed(err)
		return
	}
	c.metrics.connections.WithLabelValues("ok").Inc()
	c.serve(channels, requests)
}

// login does the handshake, and authenticates the user.
func (c *client) login() (<-chan ssh.NewChannel, <-chan *ssh.Request, error) {
	grace := time.AfterFunc(c.LoginGrace, func() { c.timedOut.Store(true); c.wire.Close() })
	defer grace.Stop()
	config := c.config
	limit := &rekeyLimit{wire: c.wire, ended: c.ctx.Done()}
	for _, key := range c.keys {
		config.AddHostKey(limitedSigner{key, limit})
	}
	if c.Keys != nil {
		config.PublicKeyCallback = c.offered
		config.VerifiedPublicKeyCallback = c.verified
	}
	if c.Anonymous {
		config.NoClientAuth = true
		config.NoClientAuthCallback = c.none
	}
	conn, channels, requests, err := ssh.NewServerConn(c.wire, &config)
	if err != nil {
		return nil, nil, err
	}
	c.conn = conn
	c.agent = string(conn.ClientVersion())
	if p := conn.Permissions; p != nil {
		c.user, _ = p.ExtraData[userKey{}].(user)
	}
	c.loggedIn = true
	c.gate.loggedIn(c.source)
	return channels, requests, nil
}

// offered reports whether a key would be accepted. It proves nothing about the client yet.
func (c *client) offered(meta ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
	_, noTouch, err := c.Keys.Key(c.ctx, meta.User(), key, c.address)
	if err != nil {
		return nil, c.excuse(key, err)
	}
	p := &ssh.Permissions{}
	if noTouch {
		p.Extensions = map[string]string{"no-touch-required": ""}
	}
	return p, nil
}

// verified is called with the key after its signature was checked.
func (c *client) verified(meta ssh.ConnMetadata, key ssh.PublicKey, p *ssh.Permissions, _ string) (*ssh.Permissions,
	error) {
	id, _, err := c.Keys.Key(c.ctx, meta.User(), key, c.address)
	if err != nil {
		return nil, c.excuse(key, err)
	}
	return &ssh.Permissions{Extensions: p.Extensions, ExtraData: map[any]any{userKey{}: user{id, key}}}, nil
}

// excuse has the client show why a key is refused if the key is not to blame (RFC 4252, section 5.4), once for each
// connection. Without it the client only learns that the key is refused. The log names the key.
func (c *client) excuse(key ssh.PublicKey, err error) error {
	if kind := fault.KindOf(err); c.excused || kind != fault.Unavailable && kind != fault.Exhausted {
		return fmt.Errorf("%w (%s)", err, ssh.FingerprintSHA256(key))
	}
	c.excused = true
	return &ssh.BannerError{Err: err, Message: "packhorse: " + fault.Message(err) + "\r\n"}
}

// none logs in a user without a key.
func (c *client) none(meta ssh.ConnMetadata) (*ssh.Permissions, error) {
	if c.Keys != nil && meta.User() != AnonymousLogin {
		return nil, fault.New(fault.Unauthenticated, "authentication required: log in with a key")
	}
	return &ssh.Permissions{}, nil
}

// serve serves sessions until the connection ends.
func (c *client) serve(channels <-chan ssh.NewChannel, requests <-chan *ssh.Request) {
	c.mu.Lock()
	c.idle = time.AfterFunc(c.Idle, c.endIfIdle)
	c.mu.Unlock()
	defer c.idle.Stop()
	go ssh.DiscardRequests(requests) // forwarding, and the client's keep-alives; ends with the connection
	c.running.Go(c.keepAlive)
	for one := range channels {
		c.open(one)
	}
	c.cancel()
	c.conn.Close()
	c.running.Wait()
}

// keepAlive pings the client, and closes the connection if it does not answer.
func (c *client) keepAlive() {
	if c.KeepAlive <= 0 {
		return
	}
	tick := time.NewTicker(c.KeepAlive)
	defer tick.Stop()
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-tick.C:
		}
		dead := time.AfterFunc(3*c.KeepAlive, func() { c.wire.Close() })
		_, _, err := c.conn.SendRequest("keepalive@openssh.com", true, nil)
		dead.Stop()
		if err != nil {
			return
		}
	}
}
