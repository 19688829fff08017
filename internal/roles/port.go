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
)

// port is the server on one listener.
type port struct {
	// serve accepts on l until shutdown; it then returns nil.
	serve func(l net.Listener) error
	// shutdown stops accepting, waits for running requests, and cuts off those that still run when ctx ends.
	shutdown func(ctx context.Context) error
}

// servedPort is a port and its listener.
type servedPort struct {
	*port
	listener net.Listener
}

// newPort is an HTTP server on a listener that is wrapped.
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
	// freshPatience is how long a connection that was accepted has to send its first request once no more are accepted. It
	// is as long as http.Server.Shutdown takes a new connection to be busy.
	freshPatience = 5 * time.Second
	freshPause    = time.Millisecond
)

// entrance is where connections come in. Its end comes before that of the HTTP server, which, from the begin of its
// shutdown on, drops requests on connections that it has accepted.
type entrance struct {
	mu       sync.Mutex
	listener net.Listener
	closed   bool
	serving  sync.WaitGroup // accepts

	fresh   sync.Map     // net.Conn to *freshConn: connections that are open
	waiting atomic.Int64 // those of them whose first request has not begun
}

// freshConn is a connection until its first request has begun.
type freshConn struct{ begun atomic.Bool }

type freshKey struct{}

// watch follows the server's connections.
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

// open says that what comes to l is accepted until the caller says that it is not any more.
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

// close accepts nothing more, and waits until what was accepted has sent its first request, for a while.
func (e *entrance) close(ctx context.Context) {
	e.mu.Lock()
	e.closed = true
	if e.listener != nil {
		e.listener.Close()
	}
	e.mu.Unlock()
	e.serving.Wait() // or its listener would be closed twice, which is an error of the shutdown's
	ctx, cancel := context.WithTimeout(ctx, freshPatience)
	defer cancel()
	for e.waiting.Load() > 0 && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(freshPause):
		}
	}
}
