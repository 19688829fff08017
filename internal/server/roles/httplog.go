package roles

import (
	"bytes"
	"log"
	"log/slog"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/packhorse-git/packhorse/internal/transport/clients"
)

// httpLog is the error log of net/http, which writes lines of text. Almost all of them are about mistakes of clients
// and go to the debug level. Failed accepts are warnings: a few, because without free file descriptors each attempt
// fails. Safe for concurrent use.
type httpLog struct {
	log      *slog.Logger
	failed   prometheus.Counter
	warnings *clients.LogLimit
}

func newHTTPLog(log *slog.Logger, r prometheus.Registerer) *httpLog {
	failed := promauto.With(r).NewCounter(prometheus.CounterOpts{
		Name: "packhorse_accept_errors_total",
		Help: "Failed attempts to accept a connection, mostly for lack of file descriptors.",
	})
	return &httpLog{log, failed, clients.NewLogLimit(1, time.Second)}
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
	if due, _ := h.warnings.Take(netip.Prefix{}); due {
		h.log.Warn("cannot accept connections", "error", text)
	}
	return len(line), nil
}
