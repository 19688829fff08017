package roles

import (
	"crypto/tls"
	"net"
	"net/http"
	"path/filepath"
	"time"

	"github.com/packhorse-git/packhorse/internal/adminapi"
	"github.com/packhorse-git/packhorse/internal/admit"
	"github.com/packhorse-git/packhorse/internal/bulk"
	"github.com/packhorse-git/packhorse/internal/config"
	"github.com/packhorse-git/packhorse/internal/control"
	"github.com/packhorse-git/packhorse/internal/credfile"
	"github.com/packhorse-git/packhorse/internal/git/graph"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/lookup"
	"github.com/packhorse-git/packhorse/internal/packsource"
	"github.com/packhorse-git/packhorse/internal/receivepack"
	"github.com/packhorse-git/packhorse/internal/repo"
	"github.com/packhorse-git/packhorse/internal/sidechannel"
	"github.com/packhorse-git/packhorse/internal/storage"
	"github.com/packhorse-git/packhorse/internal/uploadpack"
	"github.com/packhorse-git/packhorse/internal/webhook"
)

// CloseLimit bounds the close of git processes once nobody reads from them. After closePatience they are killed.
const (
	CloseLimit    = 5 * time.Second
	closePatience = CloseLimit / 2
)

// addNode adds a storage node, and its port for gateways if it has one.
func (s *server) addNode() error {
	hooks, err := s.newWebhooks()
	if err != nil {
		return err
	}
	s.closers.push("repositories", func() error { // after the git processes that read from them
		if s.node == nil {
			return nil
		}
		return s.node.Close()
	})
	if s.packs, err = s.newPackSources(); err != nil {
		return err
	}
	runner := s.packs.runner
	if s.cfg.Lanes.Adaptive {
		pressure := admit.NewPressure(runner.Contention, runner.Queue(packsource.ClassPack),
			runner.Queue(receivepack.ClassReceive))
		s.register(pressure)
		s.closers.push("measurement of CPU pressure", infallible(pressure.Close))
	}
	if s.node, err = s.newNode(hooks); err != nil {
		return err
	}
	s.closers.push("background work of the node", infallible(s.node.StopBackground))
	if err := s.addNodeChecks(); err != nil {
		return err
	}
	completePushes(s.node, s.log)
	if hooks != nil {
		if err := startWebhooks(hooks, s.node); err != nil {
			return err
		}
	}
	if s.cfg.Storage.Listen == "" {
		return nil
	}
	return s.addNodePort()
}

// newNode makes the node over the pack sources.
func (s *server) newNode(hooks *webhook.Hooks) (*storage.Node, error) {
	cfg, runner := s.cfg, s.packs.runner
	refMetrics, graphMetrics, lookups, metrics := refs.NewMetrics(), graph.NewMetrics(), lookup.NewMetrics(), storage.NewMetrics()
	s.register(refMetrics, graphMetrics, lookups, metrics)
	epoch, err := storage.NextEpoch(cfg.State)
	if err != nil {
		return nil, err
	}
	sessions := uploadpack.New(s.packs.source, uploadpack.Options{
		Agent: "packhorse/" + s.process.Version, Wants: uploadpack.Wants(cfg.Fetch.Wants), Warmup: s.newWarmup(),
		Limits: protocol.Limits{Wants: cfg.Fetch.MaxWants, Haves: cfg.Fetch.MaxHaves, Shallow: cfg.Fetch.MaxShallow,
			DeepenNot: cfg.Fetch.MaxShallow},
	})
	pushes, err := s.newPushes(hooks)
	if err != nil {
		return nil, err
	}
	return storage.New(sessions, storage.Options{
		Root: cfg.Root, Hidden: []string{cfg.State, cfg.Cache.Dir}, Policy: cfg.Fetch.Policy(), Log: s.log, Epoch: epoch,
		Pushes: pushes, SetHead: cfg.Push.SetHead, Packs: s.packs.cache, Verifier: s.packs.verifier,
		Runner: runner, Upkeep: cfg.Maintenance.Upkeep(), Tables: repo.NewTables(runner),
		Metrics: metrics, RefsMetrics: refMetrics, GraphMetrics: graphMetrics,
		Lookups: lookup.Options{
			Metrics: lookups, Memory: admit.NewBudget("objects",
				config.AtMost(lookup.DefaultMemory, cfg.MemoryShares().Server/4)),
		},
	})
}

// newWarmup returns nil if no packs are made in advance.
func (s *server) newWarmup() *uploadpack.Warmup {
	cfg := s.cfg.Warmup
	if !cfg.Enabled {
		return nil
	}
	slots := s.packs.runner.Queue(packsource.ClassPack)
	w := &uploadpack.Warmup{
		Window: cfg.Window.Duration, MinRequests: cfg.Least, Packs: cfg.Packs, MaxBytes: int64(cfg.MaxBytes),
		Metrics: uploadpack.NewWarmupMetrics(),
		Idle:    func() bool { return slots.Queued() == 0 && slots.InUse() < slots.Size() },
		Crowded: func() bool { return slots.Queued() > 0 },
	}
	s.register(w.Metrics)
	return w
}

// newPushes returns nil if pushes are refused.
func (s *server) newPushes(hooks *webhook.Hooks) (*receivepack.Server, error) {
	push := s.cfg.Push
	if !push.Enabled {
		return nil, nil
	}
	metrics := receivepack.NewMetrics()
	s.register(metrics)
	o := receivepack.Options{
		Runner: s.packs.runner, Agent: "packhorse/" + s.process.Version, SessionID: s.cfg.Fetch.SessionID, Fsck: push.Fsck,
		MaxSize: int64(push.MaxSize), MaxMemory: int64(push.MaxMemory), MaxCommands: push.MaxCommands,
		MaxOptions: push.MaxOptions,
		Hooks:      push.HooksDir, HookTime: push.HookTimeLimit.Duration, HooksConfig: push.HooksGitConfig,
		RepositoryHooks: push.HookPolicy(),
		Scripts:         filepath.Join(s.cfg.State, "hooks"), Journal: filepath.Join(s.cfg.State, "pushes"), Metrics: metrics,
		Log: s.log,
	}
	if hooks != nil && hooks.Decides() {
		o.Decider = hooks
	}
	if hooks != nil && hooks.Delivers() {
		o.Recorder = hooks
	}
	return receivepack.New(o)
}

// addNodePort adds the port for gateways: the control API, and side channels for packs.
func (s *server) addNodePort() error {
	cfg, lanes := s.cfg.Storage, &s.lanes
	trust, err := cfg.LoadTrust(s.log)
	if err != nil {
		return err
	}
	metrics, channelMetrics := control.NewMetrics(), sidechannel.NewMetrics()
	s.register(metrics, channelMetrics)
	channels := sidechannel.NewServer(sidechannel.Options{
		Pump: lanes.pump, Max: cfg.Channels, Idle: cfg.ChannelIdle.Duration, Stall: cfg.Stall.Duration,
		Metrics: channelMetrics, Log: s.log,
	})
	s.closers.push("side channels", channels.Close)
	o := s.controlOptions(metrics)
	o.Node, o.Channels, o.Lookups, o.MaxRequest = s.node, channels, s.cfg.Lanes.Search, int64(s.cfg.HTTP.MaxBody)
	handler := s.addControl(o, trust)
	lanes.memory.Anonymous(s.cfg.Lanes.Anonymous, handler.CallersKnown)
	lanes.metrics.Queue("search", handler.Slots())
	return nil
}

// controlOptions are those that the control API has on a port for gateways in every role.
func (s *server) controlOptions(metrics *control.Metrics) control.Options {
	return control.Options{
		Pump: s.lanes.pump, Lanes: s.lanes.Lanes, Memory: s.lanes.memory, Metrics: metrics, Log: s.log,
		Board: s.lanes.board, SLI: s.lanes.sli, Tracer: s.lanes.tracer, Stall: s.cfg.Storage.Stall.Duration,
	}
}

// addControl adds a port for gateways that serves the control API.
func (s *server) addControl(o control.Options, trust credfile.Trust) *control.Server {
	o.Trust.Certificates = trust.Authorities != nil
	if trust.Secret != nil {
		o.Trust.Secret = trust.Secret.Get
	}
	if trust.Authorities != nil {
		o.Trust.Authorities = trust.Authorities.Pool
	}
	handler := control.New(o)
	s.drains = append(s.drains, handler.Drain)
	s.control = newPort(handler.HTTPServer(), func(l net.Listener) net.Listener {
		l = bulk.Listen(l, s.lanes.pump, o.Stall)
		if trust.Certificate != nil {
			l = tls.NewListener(l, trust.ServerTLS())
		}
		return l
	})
	return handler
}

// addLocal serves the control API and the admin API on the admin socket of a process with a node or an index.
func (s *server) addLocal() {
	o := control.Options{
		Node: s.node, Pump: s.lanes.pump, Lanes: s.lanes.Lanes, Memory: s.lanes.memory, Metrics: control.NewMetrics(),
		Log:   s.log,
		Board: s.lanes.board, Lookups: s.cfg.Lanes.Search, MaxRequest: int64(s.cfg.HTTP.MaxBody),
		Stall: s.cfg.Storage.Stall.Duration,
	}
	if s.search != nil {
		o.Index, o.Ready = s.search, s.checkSearch
	}
	local := control.New(o).HTTPServer()
	local.Handler = s.adminHandler(local.Handler)
	s.local = newPort(local, func(l net.Listener) net.Listener { return bulk.Listen(l, s.lanes.pump, o.Stall) })
}

// adminHandler adds dumps and the application's workers to next, which may be nil.
func (s *server) adminHandler(next http.Handler) http.Handler {
	return s.dumps.within(adminapi.Workers(s.app, s.cfg.App.Drain.Duration, next))
}
