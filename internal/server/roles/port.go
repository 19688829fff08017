package roles

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/packhorse-git/packhorse/internal/schedule/retry"
)

// port is the server on one listener.
type port struct {
	// serve accepts connections from l until shutdown, and then returns nil.
	serve func(l net.Listener) error
	// shutdown stops accepting and waits for running requests. When ctx ends, it cancels the remaining ones.
	shutdown func(ctx context.Context) error
}

// servedPort is a port and its listener.
type servedPort struct {
	*port
	listener net.Listener
}

// newPort makes the port of an HTTP server. wrap wraps its listener.
func newPort(h *http.Server, wrap func(net.Listener) net.Listener) *port {
	e := &entrance{}
	e.watch(h)
	return &port{
		serve: func(l net.Listener) error {
			defer e.open(l)()
			if err := h.Serve(wrap(l)); !errors.Is(err, http.ErrServerClosed) && !e.isClosed() {
				return fmt.Errorf("serve HTTP: %w", err)
			}
			return nil
		},
		shutdown: func(ctx context.Context) error {
			e.close(ctx)
			if err := h.Shutdown(ctx); err != nil {
				return errors.Join(err, h.Close())
			}
			return nil
		},
	}
}

const (
	// freshPatience is the maximum wait for the first requests of accepted connections at a shutdown. It is the time for
	// which http.Server.Shutdown regards a new connection as busy.
	freshPatience = 5 * time.Second
	freshPause    = time.Millisecond
)

// entrance tracks new connections of an HTTP server. It closes before the server, because a server that shuts down
// drops requests on connections that it has accepted.
type entrance struct {
	mu       sync.Mutex
	listener net.Listener
	closed   bool
	serving  sync.WaitGroup // accepts

	fresh   sync.Map     // open connections: net.Conn to *freshConn
	waiting atomic.Int64 // open connections without a first request
}

// freshConn is the state of a connection.
type freshConn struct{ begun atomic.Bool }

type freshKey struct{}

// watch tracks the connections of the server.
func (e *entrance) watch(h *http.Server) {
	connContext, connState, handler := h.ConnContext, h.ConnState, h.Handler
	h.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		f := &freshConn{}
		e.fresh.Store(c, f)
		e.waiting.Add(1)
		if connContext != nil {
			ctx = connContext(ctx, c)
		}
		return context.WithValue(ctx, freshKey{}, f)
	}
	h.ConnState = func(c net.Conn, state http.ConnState) {
		if state == http.StateClosed || state == http.StateHijacked {
			if f, ok := e.fresh.LoadAndDelete(c); ok {
				e.begin(f.(*freshConn))
			}
		}
		if connState != nil {
			connState(c, state)
		}
	}
	h.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if f, ok := r.Context().Value(freshKey{}).(*freshConn); ok && !f.begun.Load() {
			e.begin(f)
		}
		handler.ServeHTTP(w, r)
	})
}

func (e *entrance) begin(f *freshConn) {
	if !f.begun.Swap(true) {
		e.waiting.Add(-1)
	}
}

// open records that connections from l are accepted until the caller calls done.
func (e *entrance) open(l net.Listener) (done func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.listener = l; e.closed {
		l.Close()
	}
	e.serving.Add(1)
	return e.serving.Done
}

func (e *entrance) isClosed() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.closed
}

// close stops accepting and waits, for a limited time, for the first requests of accepted connections.
func (e *entrance) close(ctx context.Context) {
	e.mu.Lock()
	e.closed = true
	if e.listener != nil {
		e.listener.Close()
	}
	e.mu.Unlock()
	e.serving.Wait() // otherwise Shutdown could close the listener a second time and return the error
	ctx, cancel := context.WithTimeout(ctx, freshPatience)
	defer cancel()
	for e.waiting.Load() > 0 && retry.Sleep(ctx, freshPause) == nil {
	}
}
