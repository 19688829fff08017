package roles

import (
	"bytes"
	"log"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// acceptWarnings is how often at most a failed accept is worth a line: while file descriptors are out, each attempt
// fails.
const acceptWarnings = time.Second

// httpLog takes what net/http has to say of itself, as lines of text. Almost all is about what clients do wrong, and
// goes to the debug level; that no connection can be accepted is the operator's. Safe for concurrent use.
type httpLog struct {
	log    *slog.Logger
	failed prometheus.Counter
	now    func() time.Time

	mu     sync.Mutex
	warned time.Time
}

func newHTTPLog(log *slog.Logger) *httpLog {
	return &httpLog{log: log, now: time.Now, failed: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "packhorse_accept_errors_total",
		Help: "Attempts to accept a connection that failed, for want of file descriptors most likely.",
	})}
}

// Collectors lists the metrics for registration.
func (h *httpLog) Collectors() []prometheus.Collector { return []prometheus.Collector{h.failed} }

// logger is for http.Server.ErrorLog.
func (h *httpLog) logger() *log.Logger { return log.New(h, "", 0) }

// Write takes one line.
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
