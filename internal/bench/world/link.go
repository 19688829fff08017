package world

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// burst is the number of bytes that pass at once, and the size of a read.
const burst = 32 << 10

// clientBuffer is the size of the buffer for bytes that the link has not read at a cut, as on a line with a small
// product of bandwidth and delay.
const clientBuffer = 128 << 10

// Link is a TCP proxy that stands for the network in front of a server. It has a rate and a delay. It can be down, lose
// everything, or cut connections. It is safe for concurrent use.
type Link struct {
	address string // of the link
	server  string
	limiter *rate.Limiter // bytes from the server, of all connections
	delay   atomic.Int64  // nanoseconds in each direction
	bytes   atomic.Int64  // from the server
	sent    atomic.Int64  // bytes from clients
	cutAt   atomic.Int64  // the number of bytes from clients at which a connection is cut; 0: none
	running sync.WaitGroup
	ctx     context.Context
	end     context.CancelFunc

	mu       sync.Mutex
	listener net.Listener // nil: the link is down
	silent   bool
	changed  chan struct{} // closed and replaced when silent changes
	conns    map[net.Conn]bool
}

// NewLink starts a link without limits in front of the server, on a free port of the loopback interface.
func NewLink(server string) (*Link, error) {
	l := &Link{address: "127.0.0.1:0", server: server, limiter: rate.NewLimiter(rate.Inf, burst),
		changed: make(chan struct{}), conns: map[net.Conn]bool{}}
	l.ctx, l.end = context.WithCancel(context.Background())
	return l, l.Up()
}

// Addr is the address to which clients connect. It stays the same while the link is down.
func (l *Link) Addr() string { return l.address }

// Bytes returns the number of bytes that clients received.
func (l *Link) Bytes() int64 { return l.bytes.Load() }

// Sent returns the number of bytes that clients sent, with those that a cut dropped.
func (l *Link) Sent() int64 { return l.sent.Load() }

// CutAt makes the link cut the connection that brings the number of bytes from clients to n.
func (l *Link) CutAt(n int64) { l.cutAt.Store(n) }

// Cut reports whether the connection of CutAt was cut.
func (l *Link) Cut() bool { return l.cutAt.Load() == 0 }

// Shape limits the bytes per second from the server, and sets the delay of each direction. With a rate of 0 there
// is no limit.
func (l *Link) Shape(bytesPerSecond int64, delay time.Duration) {
	limit := rate.Inf
	if bytesPerSecond > 0 {
		limit = rate.Limit(bytesPerSecond)
	}
	l.limiter.SetLimit(limit)
	l.delay.Store(int64(delay))
}

// Silence makes the link lose, or pass again, what it gets. Connections stay open and new ones are accepted.
func (l *Link) Silence(silent bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.silent = silent
	close(l.changed)
	l.changed = make(chan struct{})
}

// Up accepts connections again.
func (l *Link) Up() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.listener != nil {
		return nil
	}
	listener, err := net.Listen("tcp", l.address)
	if err != nil {
		return err
	}
	l.listener, l.address = listener, listener.Addr().String()
	l.running.Go(func() { l.accept(listener) })
	return nil
}

// Down closes all connections and refuses new ones.
func (l *Link) Down() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.listener != nil {
		l.listener.Close()
		l.listener = nil
	}
	for conn := range l.conns {
		conn.Close()
	}
}

// Close ends the link and waits until its connections have ended.
func (l *Link) Close() {
	l.end()
	l.Down()
	l.running.Wait()
}

func (l *Link) accept(listener net.Listener) {
	for {
		client, err := listener.Accept()
		if err != nil {
			return
		}
		l.running.Go(func() { l.carry(client) })
	}
}

// carry passes one connection until both directions have ended.
func (l *Link) carry(client net.Conn) {
	defer client.Close()
	_ = client.(*net.TCPConn).SetReadBuffer(clientBuffer) // it only bounds what a cut loses
	server, err := net.Dial("tcp", l.server)
	if err != nil {
		return
	}
	defer server.Close()
	l.mu.Lock()
	up := l.listener != nil
	l.conns[client], l.conns[server] = true, true
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.conns, client)
		delete(l.conns, server)
	}()
	if !up {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { l.pass(server, client, nil) })
	both.Go(func() { l.pass(client, server, &l.bytes) })
	both.Wait()
}

// piece is a part of a stream and the time at which it arrives.
type piece struct {
	data []byte
	due  time.Time
}

// pass carries one direction. With a counter the direction is limited and counted.
func (l *Link) pass(to, from net.Conn, counter *atomic.Int64) {
	pieces := make(chan piece, 256) // under way
	var writing sync.WaitGroup
	writing.Go(func() {
		for p := range pieces {
			if wait := time.Until(p.due); wait > 0 {
				time.Sleep(wait)
			}
			if counter != nil {
				if l.limiter.WaitN(l.ctx, len(p.data)) != nil {
					from.Close()
				}
				counter.Add(int64(len(p.data)))
			}
			l.awaitSound()
			if _, err := to.Write(p.data); err != nil {
				from.Close() // ends the loop below, and what it still sends is lost
			}
		}
		if closer, ok := to.(interface{ CloseWrite() error }); ok {
			_ = closer.CloseWrite()
		}
	})
	for {
		buf := make([]byte, burst)
		n, err := from.Read(buf)
		var sent, at int64
		if counter == nil { // before the server gets them, so that Sent is never behind it
			sent, at = l.sent.Add(int64(n)), l.cutAt.Load()
		}
		if n > 0 {
			pieces <- piece{buf[:n], time.Now().Add(time.Duration(l.delay.Load()))}
		}
		if at > 0 && sent >= at && l.cutAt.CompareAndSwap(at, 0) {
			from.Close()
			break
		}
		if err != nil {
			break
		}
	}
	close(pieces)
	writing.Wait()
}

// awaitSound waits while the link is silent.
func (l *Link) awaitSound() {
	for {
		l.mu.Lock()
		silent, changed := l.silent, l.changed
		l.mu.Unlock()
		if !silent || errors.Is(l.ctx.Err(), context.Canceled) {
			return
		}
		select {
		case <-changed:
		case <-l.ctx.Done():
		}
	}
}
