package observe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/packhorse-git/packhorse/internal/transport/clients"
)

// Ops is the server of the private listener. Profiles reveal much about a process and cost CPU time, so it is never the
// public listener. It has its own mux, so nothing that registers itself on http.DefaultServeMux is reachable.
type Ops struct {
	server *http.Server
	log    *slog.Logger
}

// OpsOptions configure Ops.
type OpsOptions struct {
	Log      *slog.Logger
	Registry *prometheus.Registry
	More     map[string]http.Handler // by path or pattern of http.ServeMux
	Ready    func() error            // nil means ready, otherwise the error has the reason; called concurrently
	Notes    func() []string         // lines for the answer of /readyz, though it is ready; nil: none. Called concurrently
}

const (
	opsReadTimeout  = 10 * time.Second
	opsWriteTimeout = 2 * time.Minute // the longest profile or trace that can be taken
	opsIdleTimeout  = 2 * time.Minute
	metricsTimeout  = 15 * time.Second
	metricsAtOnce   = 4
)

// NewOps returns the private server.
func NewOps(o OpsOptions) *Ops {
	return &Ops{log: o.Log, server: &http.Server{
		Handler:           bounded(opsHandler(o), opsRequests),
		ReadHeaderTimeout: opsReadTimeout,
		ReadTimeout:       opsReadTimeout,
		WriteTimeout:      opsWriteTimeout,
		IdleTimeout:       opsIdleTimeout,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(o.Log.Handler(), slog.LevelDebug),
	}}
}

// Serve answers requests until Close, and then returns nil. On a loopback listener, requests have to name this machine
// as their host.
func (s *Ops) Serve(l net.Listener) error {
	if a, ok := l.Addr().(*net.TCPAddr); ok && a.IP.IsLoopback() {
		s.server.Handler = localOnly(s.server.Handler)
	}
	limiter := clients.NewLimiter(clients.LimiterOptions{Name: "ops", Connections: opsConnections,
		Metrics: clients.NewMetrics(nil), Log: s.log})
	s.server.ConnState = limiter.State
	if err := s.server.Serve(limiter.Listen(l)); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the private listener: %w", err)
	}
	return nil
}

// Close stops accepting at once. Running requests may end until ctx ends.
func (s *Ops) Close(ctx context.Context) error {
	if err := s.server.Shutdown(ctx); err != nil {
		return s.server.Close()
	}
	return nil
}

const opsIndex = `<!doctype html><meta charset="utf-8"><title>packhorse</title>
<h1>packhorse</h1>
<ul>
<li><a href="/metrics">/metrics</a>: Prometheus
<li><a href="/healthz">/healthz</a>: is the process alive
<li><a href="/readyz">/readyz</a>: should it get requests
<li><a href="/debug/top">/debug/top</a>: what runs now
<li><a href="/debug/pprof/">/debug/pprof/</a>: profiles
</ul>
`

func opsHandler(o OpsOptions) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		io.WriteString(w, opsIndex)
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(o.Registry, promhttp.HandlerOpts{
		ErrorLog:            slog.NewLogLogger(o.Log.Handler(), slog.LevelWarn),
		ErrorHandling:       promhttp.ContinueOnError,
		MaxRequestsInFlight: metricsAtOnce,
		Timeout:             metricsTimeout,
		EnableOpenMetrics:   true, // for scrapers that request it: exemplars
	}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := o.Ready(); err != nil {
			answer(w, http.StatusServiceUnavailable, err.Error())
			return
		}
		lines := []string{"ok"}
		if o.Notes != nil {
			lines = append(lines, o.Notes()...)
		}
		answer(w, http.StatusOK, strings.Join(lines, "\n"))
	})
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("POST /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	for pattern, h := range o.More {
		mux.Handle(pattern, h)
	}
	handler := http.NewServeMux()
	handler.Handle("/", mux)
	handler.Handle("/debug/", noPages(mux))
	return handler
}

// WriteMetrics writes the content of /metrics.
func WriteMetrics(w io.Writer, from prometheus.Gatherer) error {
	r, err := http.NewRequest(http.MethodGet, "/metrics", nil)
	if err != nil {
		return err
	}
	promhttp.HandlerFor(from, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError,
		DisableCompression: true}).ServeHTTP(plainWriter{w, http.Header{}}, r)
	return nil
}

// plainWriter is a response that is not sent to a client.
type plainWriter struct {
	io.Writer
	header http.Header
}

func (p plainWriter) Header() http.Header { return p.header }
func (p plainWriter) WriteHeader(int)     {}

// localOnly refuses requests of web pages. A browser always sends Host; HAProxy's health checks by HTTP/1.0 do not.
func localOnly(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Host != "" && !clients.IsLoopback(r.Host) {
			answer(w, http.StatusForbidden,
				"this listener is for the machine itself: use a loopback address or localhost in the URL")
			return
		}
		h.ServeHTTP(w, r)
	})
}

func answer(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	io.WriteString(w, text+"\n")
}
