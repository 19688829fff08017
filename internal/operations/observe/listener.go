package observe

import (
	"errors"
	"net"
	"net/http"
	"sync"
	"time"
)

// Limits of the private listener. Health checks have room beyond all other requests.
const (
	opsConnections = 256 // open at the same time
	opsRequests    = 64  // answered at the same time, health not counted
)

// limitListener limits the connections of a listener. If there are too many, it closes the one that has been idle
// longest, so that silent clients cannot keep others out. Use state as http.Server.ConnState.
type limitListener struct {
	net.Listener
	most int

	mu    sync.Mutex
	conns map[net.Conn]*visit
}

// visit is a connection.
type visit struct {
	since time.Time // it has had its state
	works bool      // a request is being answered
}

func newDoor(l net.Listener, most int) *limitListener {
	return &limitListener{Listener: l, most: most, conns: make(map[net.Conn]*visit)}
}

// Accept implements net.Listener.
func (d *limitListener) Accept() (net.Conn, error) {
	for {
		c, err := d.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if d.enter(c) {
			return c, nil
		}
		c.Close()
	}
}

// enter admits a connection, and may close an idle one for it. It returns false if all connections are busy.
func (d *limitListener) enter(c net.Conn) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.conns) >= d.most {
		var oldest net.Conn
		for other, v := range d.conns {
			if !v.works && (oldest == nil || v.since.Before(d.conns[oldest].since)) {
				oldest = other
			}
		}
		if oldest == nil {
			return false
		}
		delete(d.conns, oldest)
		oldest.Close()
	}
	d.conns[c] = &visit{since: time.Now()}
	return true
}

func (d *limitListener) state(c net.Conn, s http.ConnState) {
	d.mu.Lock()
	defer d.mu.Unlock()
	v := d.conns[c]
	switch {
	case v == nil: // it had to go
	case s == http.StateActive:
		v.works = true
	case s == http.StateIdle:
		v.works, v.since = false, time.Now()
	case s == http.StateClosed || s == http.StateHijacked:
		delete(d.conns, c)
	}
}

// isHealthCheck reports whether a request is a health check.
func isHealthCheck(r *http.Request) bool { return r.URL.Path == "/healthz" || r.URL.Path == "/readyz" }

// bounded limits the number of concurrent requests, except for health checks.
func bounded(h http.Handler, most int) http.Handler {
	room := make(chan struct{}, most)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isHealthCheck(r) {
			select {
			case room <- struct{}{}:
				defer func() { <-room }()
			default:
				w.Header().Set("Retry-After", "1")
				w.Header().Set("Connection", "close")
				answer(w, http.StatusServiceUnavailable, errOpsFull.Error())
				return
			}
		}
		h.ServeHTTP(w, r)
	})
}

var errOpsFull = errors.New("the private listener answers as many requests as it may; try again")

// noPages refuses requests from web pages of other sites, including GET, because a profile costs CPU time even if the
// page cannot read it.
func noPages(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asUnsafe := *r
		asUnsafe.Method = http.MethodPost
		if new(http.CrossOriginProtection).Check(&asUnsafe) != nil {
			answer(w, http.StatusForbidden, "this is not for web pages to ask for: type the address into the browser")
			return
		}
		h.ServeHTTP(w, r)
	})
}
