package control

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// maxUnidentified is the maximum number of open connections without an identified caller.
const maxUnidentified = 256

// connection is the state of a connection.
type connection struct {
	net.Conn
	identified atomic.Bool                   // its caller was identified
	verified   atomic.Pointer[x509.CertPool] // authorities of the last verification
}

// connectionKey is the context key of the connection of a request.
type connectionKey struct{}

// connectionOf returns the connection of a request; nil if HTTPServer did not receive it.
func connectionOf(r *http.Request) *connection {
	c, _ := r.Context().Value(connectionKey{}).(*connection)
	return c
}

// unidentifiedConns are the connections without an identified caller. If there are too many, the oldest one is closed.
// Trusted callers identify themselves at once, so an attack closes its own connections. It is safe for concurrent use.
type unidentifiedConns struct {
	max int

	mu    sync.Mutex
	conns *simplelru.LRU[net.Conn, struct{}] // the oldest first
}

func newUnidentified(n int) *unidentifiedConns {
	conns, _ := simplelru.NewLRU[net.Conn, struct{}](n+1, nil) // fails only for a size below 1
	return &unidentifiedConns{max: n, conns: conns}
}

// connContext is the ConnContext of an http.Server.
func (s *unidentifiedConns) connContext(ctx context.Context, conn net.Conn) context.Context {
	c := &connection{Conn: conn}
	s.mu.Lock()
	s.conns.Add(conn, struct{}{})
	var oldest net.Conn
	if s.conns.Len() > s.max {
		oldest, _, _ = s.conns.RemoveOldest()
	}
	s.mu.Unlock()
	if t, ok := oldest.(*tls.Conn); ok {
		oldest = t.NetConn() // do not wait for the TLS closure alert
	}
	if oldest != nil {
		oldest.Close()
	}
	return context.WithValue(ctx, connectionKey{}, c)
}

// connState is the ConnState of an http.Server.
func (s *unidentifiedConns) connState(conn net.Conn, state http.ConnState) {
	if state == http.StateClosed || state == http.StateHijacked {
		s.remove(conn)
	}
}

// remove removes a connection whose caller was identified, or that was closed.
func (s *unidentifiedConns) remove(conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns.Remove(conn)
}
