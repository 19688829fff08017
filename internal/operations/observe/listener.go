package observe

import (
	"errors"
	"net/http"
)

// Limits of the private listener. Health checks have room beyond all other requests. Idle connections close for new
// ones, so that silent clients cannot keep others out.
const (
	opsConnections = 256 // open at the same time
	opsRequests    = 64  // answered at the same time, health not counted
)

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
