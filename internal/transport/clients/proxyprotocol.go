package clients

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/pires/go-proxyproto"

	"github.com/packhorse-git/packhorse/internal/transport/bulk"
)

// ProxyProtocol reads the headers of the PROXY protocol, versions 1 and 2, that trusted proxies send at the beginning
// of each connection (https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt). Every connection of a trusted proxy
// has to begin with one. It is never optional, because a client could then send its own through the proxy. Other
// connections are passed on unchanged.
type ProxyProtocol struct {
	Proxies Proxies
	Timeout time.Duration           // for the header, default 5s
	Answer  func(bad string) []byte // returns the answer to a proxy without a good header; nil: none
	Log     *slog.Logger
}

const (
	defaultTimeout = 5 * time.Second
	complainEvery  = 10 * time.Second // interval of log lines about one proxy
	// headerBuffer is the number of bytes that are read at once: the longest header that a sender may take for granted
	// (section 2).
	headerBuffer = 536
)

// IsHeader reports whether what a client sent first begins as a header of the PROXY protocol.
func IsHeader(p []byte) bool {
	return bytes.HasPrefix(p, []byte("PROXY ")) || bytes.HasPrefix(p, proxyproto.SIGV2)
}

// LocalHeader returns the header that a health check from an address has to send first, with the command LOCAL; nil if
// the address is not one of the proxies.
func (p Proxies) LocalHeader(from net.Addr) []byte {
	if !p.Contain(addressOf(from)) {
		return nil
	}
	return append(bytes.Clone(proxyproto.SIGV2), byte(proxyproto.LOCAL), byte(proxyproto.UNSPEC), 0, 0)
}

// errNoHeader is the error of a connection without a header.
var errNoHeader = errors.New("a connection from a trusted proxy has to begin with a header of the PROXY protocol; " +
	"have the proxy send one (send-proxy, " +
	"send-proxy-v2), or turn proxy_protocol off here")

// Listen returns a listener whose connections have the client's address for their RemoteAddr. Accept returns them once
// their header was read.
func (p *ProxyProtocol) Listen(from net.Listener) net.Listener {
	l := &proxyListener{Listener: from, protocol: p, accepted: make(chan accepted), closed: make(chan struct{}),
		warnings: NewLogLimit(1, complainEvery), pending: map[net.Conn]struct{}{}}
	l.running.Go(l.run)
	return l
}

type accepted struct {
	conn net.Conn
	err  error
}

// proxyListener reads each header in a separate goroutine, so that none waits for another.
type proxyListener struct {
	net.Listener
	protocol *ProxyProtocol
	warnings *LogLimit
	accepted chan accepted
	closed   chan struct{}
	running  sync.WaitGroup

	mu      sync.Mutex
	ended   bool
	pending map[net.Conn]struct{} // connections whose header is being read
}

func (l *proxyListener) Accept() (net.Conn, error) {
	select {
	case a := <-l.accepted:
		return a.conn, a.err
	case <-l.closed:
		return nil, &net.OpError{Op: "accept", Net: l.Addr().Network(), Addr: l.Addr(), Err: net.ErrClosed}
	}
}

// Close also closes the connections whose header is being read.
func (l *proxyListener) Close() error {
	l.mu.Lock()
	if l.ended {
		l.mu.Unlock()
		return net.ErrClosed
	}
	l.ended = true
	close(l.closed)
	for c := range l.pending {
		c.Close()
	}
	l.mu.Unlock()
	err := l.Listener.Close()
	l.running.Wait()
	return err
}

// run accepts connections until the listener is closed. After an error it continues when Accept has returned the error.
func (l *proxyListener) run() {
	for {
		c, err := l.Listener.Accept()
		socket, ok := c.(bulk.Socket)
		if err == nil && ok && l.protocol.Proxies.Contain(addressOf(c.RemoteAddr())) {
			if l.begin(c) {
				l.running.Go(func() { l.read(socket) })
			}
			continue
		}
		if !l.deliver(accepted{c, err}) || errors.Is(err, net.ErrClosed) {
			return
		}
	}
}

// deliver gives Accept a connection or an error. It reports false if the listener is closed.
func (l *proxyListener) deliver(a accepted) bool {
	select {
	case l.accepted <- a:
		return true
	case <-l.closed:
		if a.conn != nil {
			a.conn.Close()
		}
		return false
	}
}

// begin notes a connection whose header is about to be read. It reports false, and closes it, if the listener is
// closed.
func (l *proxyListener) begin(c net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		c.Close()
		return false
	}
	l.pending[c] = struct{}{}
	return true
}

// read reads a header and delivers the connection.
func (l *proxyListener) read(c bulk.Socket) {
	conn, err := l.protocol.read(c)
	l.mu.Lock()
	delete(l.pending, c)
	l.mu.Unlock()
	switch {
	case err == nil:
		l.deliver(accepted{conn, nil})
		return
	case err != io.EOF: // at once: a check whether the port answers
		if ok, suppressed := l.warnings.Take(NetworkOf(addressOf(c.RemoteAddr()))); ok {
			l.protocol.Log.Warn("connection refused: no valid PROXY protocol header", "proxy", c.RemoteAddr().String(),
				"error", err.Error(), "suppressed", suppressed)
		}
		if l.protocol.Answer != nil {
			_ = c.SetWriteDeadline(time.Now().Add(time.Second))
			_, _ = c.Write(l.protocol.Answer(err.Error()))
			_ = c.CloseWrite()
		}
	}
	c.Close()
}

// read reads the header of a connection; io.EOF if nothing came.
func (p *ProxyProtocol) read(c bulk.Socket) (net.Conn, error) {
	limit := p.Timeout
	if limit <= 0 {
		limit = defaultTimeout
	}
	if err := c.SetReadDeadline(time.Now().Add(limit)); err != nil {
		return nil, err
	}
	in := bufio.NewReaderSize(c, headerBuffer)
	if _, err := in.Peek(1); err != nil {
		return nil, err
	}
	header, err := proxyproto.Read(in)
	switch {
	case errors.Is(err, proxyproto.ErrNoProxyProtocol):
		return nil, errNoHeader
	case err != nil:
		return nil, err
	}
	if err := c.SetReadDeadline(time.Time{}); err != nil {
		return nil, err
	}
	conn := &proxied{Socket: c, client: c.RemoteAddr()}
	// else it is the proxy's own, as a health check
	if source, _, ok := header.TCPAddrs(); ok && header.Command.IsProxy() {
		conn.client = source
	}
	if n := in.Buffered(); n > 0 {
		conn.ahead, _ = in.Peek(n)
	}
	return conn, nil
}

// proxied is a connection from a proxy. It still is a socket, so that the kernel can copy files to it.
type proxied struct {
	bulk.Socket
	client net.Addr
	ahead  []byte // read together with the header
}

// RemoteAddr is the client's address, according to the proxy.
func (c *proxied) RemoteAddr() net.Addr { return c.client }

// NetConn is the connection below.
func (c *proxied) NetConn() net.Conn { return c.Socket }

// Read reads what the client sent.
func (c *proxied) Read(p []byte) (int, error) {
	if len(c.ahead) == 0 {
		return c.Socket.Read(p)
	}
	n := copy(p, c.ahead)
	if c.ahead = c.ahead[n:]; len(c.ahead) == 0 {
		c.ahead = nil
	}
	return n, nil
}

func addressOf(a net.Addr) netip.Addr {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	return t.AddrPort().Addr().Unmap().WithZone("")
}
