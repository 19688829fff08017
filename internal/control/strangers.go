package control

import (
	"container/list"
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
)

// maxStrangers is how many connections may be open at once whose caller has not been identified yet.
const maxStrangers = 256

// connection is what is remembered of one.
type connection struct {
	net.Conn
	identified atomic.Bool                   // no stranger any more
	verified   atomic.Pointer[x509.CertPool] // what its client certificate was verified against last
}

// connectionKey is where net/http keeps it for the connection's requests: there is no other way to tell which they are.
type connectionKey struct{}

// connectionOf gives nil for a request that came another way than by HTTPServer.
func connectionOf(r *http.Request) *connection {
	c, _ := r.Context().Value(connectionKey{}).(*connection)
	return c
}

// strangers are the connections that nobody has been identified on. If there are too many the oldest is closed: a caller who is trusted
// says so at once, so that whoever opens connections to exhaust the port closes his own. Safe for concurrent use.
type strangers struct {
	max int

	mu    sync.Mutex
	order list.List // of *connection, the oldest first
	in    map[net.Conn]*list.Element
}

func newStrangers(n int) *strangers { return &strangers{max: n, in: map[net.Conn]*list.Element{}} }

// come is an http.Server's ConnContext.
func (s *strangers) come(ctx context.Context, conn net.Conn) context.Context {
	c := &connection{Conn: conn}
	s.mu.Lock()
	s.in[conn] = s.order.PushBack(c)
	var oldest net.Conn
	if s.order.Len() > s.max {
		oldest = s.order.Front().Value.(*connection).Conn
		s.drop(oldest)
	}
	s.mu.Unlock()
	if t, ok := oldest.(*tls.Conn); ok {
		oldest = t.NetConn() // no farewell that could take time
	}
	if oldest != nil {
		oldest.Close()
	}
	return context.WithValue(ctx, connectionKey{}, c)
}

// gone is an http.Server's ConnState.
func (s *strangers) gone(conn net.Conn, state http.ConnState) {
	if state == http.StateClosed || state == http.StateHijacked {
		s.known(conn)
	}
}

// known is told of a connection whose caller has been identified.
func (s *strangers) known(conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(conn)
}

func (s *strangers) drop(conn net.Conn) {
	if e := s.in[conn]; e != nil {
		s.order.Remove(e)
		delete(s.in, conn)
	}
}
