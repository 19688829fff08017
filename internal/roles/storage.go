package roles

import (
	"crypto/tls"
	"errors"
	"log/slog"
	"net"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/adminapi"
	"github.com/packhorse-git/packhorse/internal/admit"
	"github.com/packhorse-git/packhorse/internal/bulk"
	"github.com/packhorse-git/packhorse/internal/config"
	"github.com/packhorse-git/packhorse/internal/control"
	"github.com/packhorse-git/packhorse/internal/credfile"
	"github.com/packhorse-git/packhorse/internal/packsource"
	"github.com/packhorse-git/packhorse/internal/receivepack"
	"github.com/packhorse-git/packhorse/internal/sidechannel"
	"github.com/packhorse-git/packhorse/internal/top"
)

// newStorage wires a node and its port.
func newStorage(cfg config.Config, log *slog.Logger, reg prometheus.Registerer, version, program string) (*server, error) {
	lanes, err := newLanes(config.RoleStorage, cfg, log, reg, version)
	if err != nil {
		return nil, err
	}
	lanes.leaveRoom(cfg.Lanes.Anonymous, sticky(cfg.Auth.KnowsCallers)) // by rules and hook, if it has the same file as its gateways
	s, err := newNodeServer(cfg, log, reg, lanes, version, program)
	if err == nil {
		s.addLocal(cfg, log, lanes)
	}
	return s, err
}

// newNodeServer wires a node bottom up, and its port if it has one.
func newNodeServer(cfg config.Config, log *slog.Logger, reg prometheus.Registerer, lanes lanes, version, program string) (*server, error) {
	packs, err := newSource(cfg, log, reg, lanes, program)
	if err != nil {
		return nil, err
	}
	runner, cache, closeSource := packs.runner, packs.cache, packs.close
	if cfg.Lanes.Adaptive {
		pressure := admit.NewPressure(runner.Contention, runner.Queue(packsource.ClassPack), runner.Queue(receivepack.ClassReceive))
		register(reg, pressure)
		below := closeSource
		closeSource = func() error {
			pressure.Close()
			return below()
		}
	}
	hooks, err := newWebhooks(cfg, log, reg, version)
	if err != nil {
		return nil, errors.Join(err, closeSource())
	}
	node, err := newNode(cfg, log, reg, packs, hooks, version)
	if err != nil {
		return nil, errors.Join(err, closeSource())
	}
	s := &server{node: node, git: runner, board: lanes.board, tracing: lanes.tracing, close: func() error {
		node.StopBackground()
		return errors.Join(closeSource(), node.Close())
	}}
	if err := s.addNodeChecks(cfg); err != nil {
		return nil, errors.Join(err, s.close())
	}
	s.shown = top.Sources{Runner: runner, Lanes: lanes.metrics}
	if cache != nil {
		s.shown.Cache = cache.Stats
	}
	completePushes(node, log)
	if hooks != nil {
		below := s.close
		s.close = func() error { return errors.Join(below(), hooks.Close()) }
		if err := startWebhooks(hooks, node); err != nil {
			return nil, errors.Join(err, s.close())
		}
	}
	if cfg.Storage.Listen != "" {
		if err := s.addControl(cfg, log, reg, lanes); err != nil {
			return nil, errors.Join(err, s.close())
		}
	}
	return s, nil
}

// addControl gives a node its port.
func (s *server) addControl(cfg config.Config, log *slog.Logger, reg prometheus.Registerer, lanes lanes) error {
	trust, err := cfg.Storage.LoadTrust(log)
	if err != nil {
		return err
	}
	metrics, channelMetrics := control.NewMetrics(), sidechannel.NewMetrics()
	register(reg, metrics, channelMetrics)
	channels := sidechannel.NewServer(sidechannel.Options{
		Pump: lanes.pump, Max: cfg.Storage.Channels, Idle: cfg.Storage.ChannelIdle.Duration, Stall: cfg.Storage.Stall.Duration,
		Metrics: channelMetrics, Log: log,
	})
	below := s.close
	s.close = func() error { return errors.Join(channels.Close(), below()) }
	handler := control.New(control.Options{
		Node: s.node, Channels: channels, Pump: lanes.pump, Lanes: lanes.Lanes, Memory: lanes.memory, Trust: controlTrust(trust), Metrics: metrics, Log: log,
		Board: lanes.board, SLI: lanes.sli, Tracer: lanes.tracer, Lookups: cfg.Lanes.Search, MaxRequest: int64(cfg.HTTP.MaxBody), Stall: cfg.Storage.Stall.Duration,
	})
	lanes.memory.Anonymous(cfg.Lanes.Anonymous, handler.CallersKnown)
	lanes.metrics.Queue("search", handler.Slots())
	s.drain = handler.Drain
	s.control = newPort(handler.HTTPServer(), func(l net.Listener) net.Listener {
		l = bulk.Listen(l, lanes.pump, cfg.Storage.Stall.Duration)
		if trust.Certificate != nil {
			l = tls.NewListener(l, trust.ServerTLS())
		}
		return l
	})
	return nil
}

// addLocal gives a node, and an index, the control API on the admin socket: who may connect may administer.
func (s *server) addLocal(cfg config.Config, log *slog.Logger, lanes lanes) {
	o := control.Options{
		Node: s.node, Pump: lanes.pump, Lanes: lanes.Lanes, Memory: lanes.memory, Metrics: control.NewMetrics(), Log: log,
		Board: lanes.board, Lookups: cfg.Lanes.Search, MaxRequest: int64(cfg.HTTP.MaxBody), Stall: cfg.Storage.Stall.Duration,
	}
	if s.search != nil {
		o.Index, o.Ready = s.search, s.searching
	}
	local := control.New(o).HTTPServer()
	local.Handler = s.dumps.within(adminapi.Workers(s.app, s.appDrain, local.Handler))
	s.local = newPort(local, func(l net.Listener) net.Listener { return bulk.Listen(l, lanes.pump, cfg.Storage.Stall.Duration) })
}

// controlTrust is whom a port of the control API trusts.
func controlTrust(t credfile.Trust) control.Trust {
	c := control.Trust{Certificates: t.Authorities != nil}
	if t.Secret != nil {
		c.Secret = t.Secret.Get
	}
	if t.Authorities != nil {
		c.Authorities = t.Authorities.Pool
	}
	return c
}
