// Package clients knows the clients of a listener. A Limiter bounds their connections: all of them, and those from one
// address. Proxies find out who a client is when trusted proxies stand between: for a connection by the PROXY protocol,
// for a request by the X-Forwarded-* headers. Other peers are not believed.
//
// A listener at a limit closes the connection that has been idle for the longest time, and accepts the new one. A
// connection is idle while it waits for its client: it is new, it is kept alive between two requests, or its request
// has not been received whole. A connection with a running request is never closed for another. If no connection is
// idle, the new one is refused.
//
// Two listeners apply the limits, because the address may become known after the connection is accepted (the PROXY
// protocol):
//
//	l = limiter.Listen(l)    // all connections
//	l = ...                  // reads PROXY headers
//	l = limiter.ByAddress(l) // those from one address
package clients

import (
	"container/list"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/packhorse-git/packhorse/internal/transport/bulk"
)

// LimiterOptions configures a Limiter.
type LimiterOptions struct {
	Name        string                // of the listener, in metrics and the log: "http"
	Connections int                   // maximum number of connections
	PerAddress  int                   // maximum number of connections from one address (IPv6: from one /64)
	Exempt      func(netip.Addr) bool // reports addresses without the limit of PerAddress, as those of proxies; nil: none
	Answer      []byte                // is sent to a connection that is refused; nil: nothing
	Metrics     *Metrics
	Log         *slog.Logger
}

// Why a connection is refused, or closed for another; metric labels.
const (
	byTotal   = "connections"
	byAddress = "address_connections"
)

// Limiter bounds the connections of one listener. Safe for concurrent use.
type Limiter struct {
	LimiterOptions
	now      func() time.Time
	warnings *LogLimit
	refusals chan struct{} // has a place for each refused connection that is still open

	mu      sync.Mutex
	open    int
	idle    *list.List // of all idle connections, the longest idle first
	sources map[netip.Prefix]*source
	since   time.Time // of the count of refusals
	refused int       // since then
}

// source is one address that has connections.
type source struct {
	network netip.Prefix
	open    int
	idle    *list.List
}

const (
	refusalsAtOnce = 32               // refused connections whose client is given time to read the answer
	refusalTime    = time.Second      // that time
	refusalBytes   = 64 << 10         // read from a refused connection: closed with unread bytes, it would lose the answer
	warnEvery      = 10 * time.Second // interval of log lines about refusals
	recently       = time.Minute      // for Recent
)

// NewLimiter makes a Limiter.
func NewLimiter(o LimiterOptions) *Limiter {
	l := &Limiter{LimiterOptions: o, now: time.Now, refusals: make(chan struct{}, refusalsAtOnce),
		idle: list.New(), sources: map[netip.Prefix]*source{}, warnings: NewLogLimit(1, warnEvery)}
	l.Metrics.watch(l)
	return l
}

// Listen returns a listener that bounds all connections. Connections that are not sockets of the kernel are not
// counted.
func (l *Limiter) Listen(from net.Listener) net.Listener { return &listener{from, l} }

// ByAddress returns a listener that bounds the connections from one address. Its connections have come through that of
// Listen.
func (l *Limiter) ByAddress(from net.Listener) net.Listener { return &byAddressListener{from, l} }

type listener struct {
	net.Listener
	limiter *Limiter
}

func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		socket, ok := c.(bulk.Socket)
		if !ok {
			return c, nil
		}
		conn := &Conn{Socket: socket, limiter: l.limiter}
		if l.limiter.enter(conn) {
			return conn, nil
		}
		l.limiter.refuse(conn, socket.RemoteAddr(), byTotal)
	}
}

type byAddressListener struct {
	net.Listener
	limiter *Limiter
}

func (l *byAddressListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		conn := ConnOf(c)
		if conn == nil || l.limiter.identify(conn, AddressOf(c)) {
			return c, nil
		}
		l.limiter.refuse(conn, c.RemoteAddr(), byAddress)
	}
}

// AddressOf returns the IP address of a connection's peer without its zone, or the zero value if it has none.
func AddressOf(c net.Conn) netip.Addr {
	a, ok := c.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	return a.AddrPort().Addr().Unmap().WithZone("")
}

// NetworkOf is the network that an address counts as: one address of IPv4, 64 bits of IPv6.
func NetworkOf(a netip.Addr) netip.Prefix {
	a = a.Unmap().WithZone("")
	bits := a.BitLen()
	if a.Is6() {
		bits = 64
	}
	p, _ := a.Prefix(bits)
	return p
}

// enter counts a new connection. It reports false if there are too many.
func (l *Limiter) enter(c *Conn) bool {
	l.mu.Lock()
	var victim *Conn
	if l.open >= l.Connections {
		if victim = first(l.idle); victim == nil {
			l.mu.Unlock()
			return false
		}
		l.remove(victim)
	}
	l.open++
	c.entered = true
	l.setIdle(c)
	l.mu.Unlock()
	l.closeFor(victim, byTotal)
	return true
}

// identify counts a connection for an address. It reports false if that has too many.
func (l *Limiter) identify(c *Conn, a netip.Addr) bool {
	if !a.IsValid() || l.Exempt != nil && l.Exempt(a) {
		return true
	}
	network := NetworkOf(a)
	l.mu.Lock()
	if !c.entered { // it was closed for another meanwhile
		l.mu.Unlock()
		return true
	}
	s := l.sources[network]
	if s == nil {
		s = &source{network: network, idle: list.New()}
		l.sources[network] = s
	}
	var victim *Conn
	if s.open >= l.PerAddress {
		if victim = first(s.idle); victim == nil {
			l.mu.Unlock()
			return false
		}
		l.remove(victim)
		l.sources[network] = s // with the last of its connections it was removed
	}
	s.open++
	c.source = s
	if !c.running {
		c.own = s.idle.PushBack(c)
	}
	l.mu.Unlock()
	l.closeFor(victim, byAddress)
	return true
}

// closeFor closes a connection, unless it is nil, that has been removed for a new one.
func (l *Limiter) closeFor(victim *Conn, why string) {
	if victim != nil {
		l.Metrics.closed.WithLabelValues(l.Name, why).Inc()
		victim.Socket.Close()
	}
}

// remove forgets a connection. l.mu is held.
func (l *Limiter) remove(c *Conn) {
	if !c.entered {
		return
	}
	c.entered = false
	l.open--
	c.unlist()
	if s := c.source; s != nil {
		if s.open--; s.open == 0 {
			delete(l.sources, s.network)
		}
	}
}

// setIdle appends a connection to the lists of the idle ones. l.mu is held.
func (l *Limiter) setIdle(c *Conn) {
	c.running = false
	c.unlist()
	c.all = l.idle.PushBack(c)
	if c.source != nil {
		c.own = c.source.idle.PushBack(c)
	}
}

// unlist removes a connection from the lists of the idle ones. l.mu is held.
func (c *Conn) unlist() {
	if c.all != nil {
		c.limiter.idle.Remove(c.all)
	}
	if c.own != nil {
		c.source.idle.Remove(c.own)
	}
	c.all, c.own = nil, nil
}

// first returns the first connection of a list, or nil.
func first(l *list.List) *Conn {
	if e := l.Front(); e != nil {
		return e.Value.(*Conn)
	}
	return nil
}

// refuse sends the answer for too many connections and closes the connection.
func (l *Limiter) refuse(c *Conn, client net.Addr, why string) {
	l.Metrics.refused.WithLabelValues(l.Name, why).Inc()
	l.note(client, why)
	l.mu.Lock()
	l.remove(c)
	l.mu.Unlock()
	if len(l.Answer) == 0 {
		c.Socket.Close()
		return
	}
	select {
	case l.refusals <- struct{}{}:
	default:
		c.Socket.Close()
		return
	}
	go func() { // for refusalTime at most
		defer func() { <-l.refusals }()
		defer c.Socket.Close()
		_ = c.Socket.SetDeadline(time.Now().Add(refusalTime))
		if _, err := c.Socket.Write(l.Answer); err == nil && c.Socket.CloseWrite() == nil {
			_, _ = io.CopyN(io.Discard, c.Socket, refusalBytes)
		}
	}()
}

// note remembers a refusal for Recent, and writes a line into the log from time to time.
func (l *Limiter) note(client net.Addr, why string) {
	l.mu.Lock()
	if now := l.now(); now.Sub(l.since) >= recently {
		l.since, l.refused = now, 0
	}
	l.refused++
	open := l.open
	l.mu.Unlock()
	if ok, suppressed := l.warnings.Take(netip.Prefix{}); ok {
		l.Log.Warn("connection refused: too many connections have a running request", "listener", l.Name, "reason", why,
			"client", client.String(),
			"connections", open, "suppressed", suppressed)
	}
}

// Recent is the number of connections that were refused in about the last minute.
func (l *Limiter) Recent() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.now().Sub(l.since) >= recently {
		return 0
	}
	return l.refused
}

// counts has the numbers of all connections and of idle ones.
func (l *Limiter) counts() (open, idle int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open, l.idle.Len()
}

// State is for http.Server.ConnState.
func (l *Limiter) State(c net.Conn, s http.ConnState) {
	switch s {
	case http.StateActive:
		ConnOf(c).Running()
	case http.StateIdle:
		ConnOf(c).Idle()
	}
}

// WithConn is for http.Server.ConnContext; see ConnFrom.
func WithConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, ConnOf(c))
}

type connKey struct{}

// ConnFrom returns the connection of a request from the request's context, or nil if the connection is not counted.
func ConnFrom(ctx context.Context) *Conn {
	c, _ := ctx.Value(connKey{}).(*Conn)
	return c
}

// ConnOf is the counted connection below others; nil if there is none.
func ConnOf(c net.Conn) *Conn {
	for {
		switch below := c.(type) {
		case *Conn:
			return below
		case *bulk.Conn:
			c = below.Socket
		case interface{ NetConn() net.Conn }:
			c = below.NetConn()
		default:
			return nil
		}
	}
}

// Conn is a connection that counts. It is idle at first. The methods that change this do nothing with nil.
type Conn struct {
	bulk.Socket
	limiter   *Limiter
	receiving atomic.Bool
	received  int64 // bytes, since the last progress; of the goroutine that reads

	// Guarded by limiter.mu:
	entered  bool // it is counted
	running  bool
	source   *source       // nil: not known, or exempt
	all, own *list.Element // in the lists of the limiter and of the source; nil while it is running
}

// leastProgress is the number of bytes by which a request that is being received gets on: its connection counts as idle
// from then on.
const leastProgress = 64 << 10

// NetConn is the connection below.
func (c *Conn) NetConn() net.Conn { return c.Socket }

// Running records that a request runs. Then the connection is not closed for another one.
func (c *Conn) Running() {
	if c == nil {
		return
	}
	c.receiving.Store(false)
	c.limiter.mu.Lock()
	defer c.limiter.mu.Unlock()
	if c.running = true; c.entered {
		c.unlist()
	}
}

// Idle records that no request runs.
func (c *Conn) Idle() {
	if c == nil {
		return
	}
	c.receiving.Store(false)
	c.idle()
}

// Receiving records that a request is being received, and does not run yet. Meanwhile the connection counts as idle.
func (c *Conn) Receiving() {
	if c == nil {
		return
	}
	c.idle()
	c.receiving.Store(true)
}

func (c *Conn) idle() {
	c.limiter.mu.Lock()
	defer c.limiter.mu.Unlock()
	if c.entered {
		c.limiter.setIdle(c)
	}
}

// Read reads bytes of the client.
func (c *Conn) Read(p []byte) (int, error) {
	n, err := c.Socket.Read(p)
	if n > 0 && c.receiving.Load() {
		if c.received += int64(n); c.received >= leastProgress {
			c.received = 0
			c.idle()
		}
	}
	return n, err
}

// Close closes the connection, which counts no more.
func (c *Conn) Close() error {
	c.limiter.mu.Lock()
	c.limiter.remove(c)
	c.limiter.mu.Unlock()
	return c.Socket.Close()
}
