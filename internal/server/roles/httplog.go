package roles

import (
	"bytes"
	"log"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// acceptWarnings is the minimum time between two warnings about failed accepts. Without free file descriptors, each
// attempt fails.
const acceptWarnings = time.Second

// httpLog is the error log of net/http, which writes lines of text. Almost all of them are about mistakes of clients
// and go to the debug level. Failed accepts are warnings. Safe for concurrent use.
type httpLog struct {
	log    *slog.Logger
	failed prometheus.Counter
	now    func() time.Time

	mu     sync.Mutex
	warned time.Time
}

func newHTTPLog(log *slog.Logger, r prometheus.Registerer) *httpLog {
	return &httpLog{log: log, now: time.Now, failed: promauto.With(r).NewCounter(prometheus.CounterOpts{
		Name: "packhorse_accept_errors_total",
		Help: "Failed attempts to accept a connection, mostly for lack of file descriptors.",
	})}
}

// logger returns the value for http.Server.ErrorLog.
func (h *httpLog) logger() *log.Logger { return log.New(h, "", 0) }

// Write logs one line.
func (h *httpLog) Write(line []byte) (int, error) {
	text := string(bytes.TrimSpace(line))
	if !bytes.HasPrefix(line, []byte("http: Accept error")) {
		h.log.Debug("an HTTP connection failed", "error", text)
		return len(line), nil
	}
	h.failed.Inc()
	h.mu.Lock()
	now := h.now()
	due := now.Sub(h.warned) >= acceptWarnings
	if due {
		h.warned = now
	}
	h.mu.Unlock()
	if due {
		h.log.Warn("cannot accept connections", "error", text)
	}
	return len(line), nil
}
