package roles

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/operations/observe"
	"github.com/packhorse-git/packhorse/internal/operations/top"
	"github.com/packhorse-git/packhorse/internal/server/config"
)

// opsLinger is the maximum time of a response of the private listener after all other parts have ended.
const opsLinger = time.Second

// watching has the private listener and the watchdog. They show the parts of a server, and close after them.
type watching struct {
	reg      *prometheus.Registry
	log      *slog.Logger
	draining atomic.Bool // readiness is red

	// Set by start.
	ready       *observe.Readiness
	ops         *observe.Ops
	serving     errgroup.Group
	endWatchdog func()
}

func newWatching(reg *prometheus.Registry, log *slog.Logger) *watching {
	return &watching{reg: reg, log: log}
}

// start starts the private listener and the watchdog for a server.
func (w *watching) start(s *server, l listeners) {
	w.ready = observe.NewReadiness(w.log, s.life.checks...)
	s.reg.MustRegister(w.ready)
	w.ops = observe.NewOps(observe.OpsOptions{
		Log: w.log, Registry: w.reg, Notes: s.life.allNotes, Ready: w.isReady,
		More: map[string]http.Handler{
			"GET " + top.Path: top.New(s.topSources()),
		},
	})
	if l.private != nil {
		if host, _ := config.SplitAddress(l.private.Addr().String()); !config.IsLoopback(host) {
			w.log.Warn("the private listener can be reached by other machines", "address", l.private.Addr().String())
		}
		w.serving.Go(func() error { return w.ops.Serve(l.private) })
	}
	for _, start := range s.life.starts {
		start(w.reg)
	}
	w.endWatchdog = s.startWatchdog(l, w.reg)
}

func (w *watching) isReady() error {
	if w.draining.Load() {
		return errors.New("draining: the process is about to end")
	}
	return w.ready.Err()
}

func (w *watching) closeWatchdog() {
	if w.endWatchdog != nil {
		w.endWatchdog()
	}
}

func (w *watching) closeReadiness() {
	if w.ready != nil {
		w.ready.Close()
	}
}

// close ends the private listener. A second call does nothing.
func (w *watching) close(ctx context.Context) error {
	if w.ops == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, opsLinger)
	defer cancel()
	err := errors.Join(w.ops.Close(ctx), w.serving.Wait())
	w.ops = nil
	return err
}

// topSources returns the parts that "packhorse top" shows.
func (s *server) topSources() top.Sources {
	shown := top.Sources{
		Role: string(s.role), Version: s.process.Version, Board: s.lanes.board, Lanes: s.lanes.metrics, Redact: auth.Redact,
		Log: s.log, Origins: s.origins.status,
	}
	if s.node != nil {
		shown.Runner = s.node.packs.runner
		if s.node.packs.cache != nil {
			shown.Cache = s.node.packs.cache.Stats
		}
	}
	return shown
}
