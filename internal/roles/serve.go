package roles

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/admit"
	"github.com/packhorse-git/packhorse/internal/bulk"
	"github.com/packhorse-git/packhorse/internal/config"
	"github.com/packhorse-git/packhorse/internal/connlimit"
	"github.com/packhorse-git/packhorse/internal/credfile"
	"github.com/packhorse-git/packhorse/internal/gateway"
	"github.com/packhorse-git/packhorse/internal/gateway/githttp"
	"github.com/packhorse-git/packhorse/internal/git/cgroup"
	"github.com/packhorse-git/packhorse/internal/git/graph"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/git/reaper"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/httpguard"
	"github.com/packhorse-git/packhorse/internal/inflight"
	"github.com/packhorse-git/packhorse/internal/lookup"
	"github.com/packhorse-git/packhorse/internal/observe/proctree"
	"github.com/packhorse-git/packhorse/internal/observe/sli"
	"github.com/packhorse-git/packhorse/internal/observe/tracing"
	"github.com/packhorse-git/packhorse/internal/packcache"
	"github.com/packhorse-git/packhorse/internal/packsource"
	"github.com/packhorse-git/packhorse/internal/receivepack"
	"github.com/packhorse-git/packhorse/internal/repo"
	"github.com/packhorse-git/packhorse/internal/resolve"
	"github.com/packhorse-git/packhorse/internal/router"
	"github.com/packhorse-git/packhorse/internal/storage"
	"github.com/packhorse-git/packhorse/internal/uploadpack"
	"github.com/packhorse-git/packhorse/internal/web/api"
	"github.com/packhorse-git/packhorse/internal/webhook"
)

// CloseLimit is how long git processes get to end once nobody reads from them, closePatience how long until they are killed.
const (
	CloseLimit    = 5 * time.Second
	closePatience = CloseLimit / 2
)

// newServe wires the embedded node and its gateway, bottom up.
func newServe(cfg config.Config, log *slog.Logger, reg prometheus.Registerer, version, program string) (*server, error) {
	lanes, err := newLanes(config.RoleServe, cfg, log, reg, version)
	if err != nil {
		return nil, err
	}
	s, err := newNodeServer(cfg, log, reg, lanes, version, program)
	if err != nil {
		return nil, err
	}
	if cfg.Search.Enabled {
		source := searchNode{s.node, lanes.Cold}
		s.addSearch(cfg, log, reg, lanes, program, source)
		o := api.APIOptions{Version: version, Repositories: source}
		if s.search != nil {
			s.node.OnChange(s.search.Touch)
			o.Searcher, o.Status = s.search, s.search.Status
		}
		if s.pages, err = newPages(reg, o); err != nil {
			return nil, errors.Join(err, s.close())
		}
	}
	routes := router.New()
	if err := routes.Set([]router.Route{{Replicas: []*router.Replica{{Name: localNode, Node: s.node, Revisions: storage.Resolver{Node: s.node}, Files: s.node}}}}); err != nil {
		return nil, errors.Join(err, s.close())
	}
	if err := s.addGateway(cfg, log, reg, lanes, routes, nil); err != nil {
		return nil, errors.Join(err, s.close())
	}
	s.addLocal(cfg, log, lanes)
	return s, nil
}

// closeBelow closes the cache, which ends its fills and with them their git processes, and then the runner. A process that does
// not end so is killed by the runner once patience is over; the limit holds for all together.
func closeBelow(closeCache func() error, closeRunner func(context.Context) error, patience, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cache := make(chan error, 1)
	go func() { cache <- closeCache() }()
	patient := time.NewTimer(patience)
	defer patient.Stop()
	select {
	case err := <-cache:
		return errors.Join(err, closeRunner(ctx))
	case <-patient.C:
	}
	err := closeRunner(ctx)
	select {
	case cached := <-cache:
		return errors.Join(cached, err)
	case <-ctx.Done():
		return errors.Join(fmt.Errorf("waiting for the pack cache to close: %w", ctx.Err()), err)
	}
}

// packSources is what packs come from, from the top down.
type packSources struct {
	source   packsource.Source // the cache, or git if the cache is turned off; not embedded, which would hide its further methods
	cache    *packcache.Cache  // nil: turned off
	verifier *pack.Verifier    // nil: turned off
	runner   *process.Runner
}

// newSource stacks what packs come from: cache over git.
func newSource(cfg config.Config, log *slog.Logger, reg prometheus.Registerer, lanes lanes, program string) (*packSources, error) {
	processes, packs, groups := process.NewMetrics(), packcache.NewMetrics(), cgroup.NewMetrics()
	register(reg, processes, packs, groups)
	cgroups := openCgroups(&cfg.Cgroup, log, groups)
	runner, err := process.New(process.Options{
		Git: cfg.Git.Program, Metrics: processes, Log: log, Reaper: reaperProgram(&cfg, program, log), Account: lanes.account(proctree.Git), Classes: cfg.GitClasses(),
		Cgroups: cgroups, Groups: commandGroups,
	})
	if err != nil {
		return nil, errors.Join(err, cgroups.Close())
	}
	lanes.metrics.Queue("cold", runner.Queue(packsource.ClassPack))
	lanes.metrics.Queue("push", runner.Queue(receivepack.ClassReceive))
	lanes.metrics.Queue("maintenance", runner.Queue(storage.ClassMaintain))
	lanes.metrics.Queue("grep", runner.Queue(storage.ClassGrep))
	s := &packSources{runner: runner}
	if cfg.Fetch.VerifyPacks {
		metrics := pack.NewVerifyMetrics()
		register(reg, metrics)
		s.verifier = pack.NewVerifier(log, metrics)
	}
	if err := s.stack(cfg, log, packs); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// stack puts git over the runner, and the cache, if there is to be one, over git.
func (s *packSources) stack(cfg config.Config, log *slog.Logger, packs *packcache.Metrics) error {
	fromGit, err := packsource.NewGit(s.runner, packsource.GitOptions{
		Scratch: filepath.Join(cfg.State, "scratch"), Threads: cfg.Git.ThreadsPerPack(), Window: cfg.Git.Window,
		ShallowWindow: cfg.Git.ShallowWindow, SnapshotWindow: cfg.Git.SnapshotWindow,
		ShallowCompression: cfg.Git.ShallowCompression, WindowMemory: int64(cfg.Git.WindowMemory), Memory: cfg.MemoryShares().Git, Machine: admit.Memory(),
		Verifier: s.verifier, Damaged: func(r packsource.Repository) {
			if s.cache != nil {
				s.cache.Drop(r.Incarnation, packcache.Damaged)
			}
		},
	})
	if err != nil {
		return err
	}
	s.source = fromGit
	if !cfg.Cache.Enabled {
		return nil
	}
	s.cache, err = packcache.Open(fromGit, packcache.Options{
		Dir: cfg.Cache.Dir, MaxBytes: int64(cfg.Cache.MaxBytes), MaxIdle: cfg.Cache.MaxIdle.Duration,
		Probation: orNever(cfg.Cache.Probation.Duration), MinFree: int64(cfg.Cache.MinFree), Grace: orNever(cfg.Cache.Grace.Duration),
		Metrics: packs, Log: log,
	})
	if err == nil {
		s.source = s.cache
	}
	return err
}

// close ends the cache's fills and their git processes, then the verifications.
func (s *packSources) close() error {
	closeCache := func() error { return nil }
	if s.cache != nil {
		closeCache = s.cache.Close
	}
	err := closeBelow(closeCache, s.runner.Close, closePatience, CloseLimit)
	if s.verifier != nil {
		err = errors.Join(err, s.verifier.Close())
	}
	return err
}

// orNever turns a zero, which says "none" in the configuration, into what says it in packcache.Options.
func orNever(d time.Duration) time.Duration {
	if d == 0 {
		return -1
	}
	return d
}

func newNode(cfg config.Config, log *slog.Logger, reg prometheus.Registerer, packs *packSources, hooks *webhook.Hooks, version string) (*storage.Node, error) {
	runner := packs.runner
	refMetrics, graphMetrics, lookups, metrics := refs.NewMetrics(), graph.NewMetrics(), lookup.NewMetrics(), storage.NewMetrics()
	register(reg, refMetrics, graphMetrics, lookups, metrics)
	epoch, err := storage.NextEpoch(cfg.State)
	if err != nil {
		return nil, err
	}
	sessions := uploadpack.New(packs.source, uploadpack.Options{
		Agent: "packhorse/" + version, Wants: uploadpack.Wants(cfg.Fetch.Wants), Warmup: newWarmup(cfg.Warmup, reg, runner),
		Limits: protocol.Limits{Wants: cfg.Fetch.MaxWants, Haves: cfg.Fetch.MaxHaves, Shallow: cfg.Fetch.MaxShallow, DeepenNot: cfg.Fetch.MaxShallow},
	})
	pushes, err := newPushes(cfg, log, reg, runner, hooks, version)
	if err != nil {
		return nil, err
	}
	return storage.New(sessions, storage.Options{
		Root: cfg.Root, Hidden: []string{cfg.State, cfg.Cache.Dir}, Policy: cfg.Fetch.Policy(), Log: log, Pushes: pushes, SetHead: cfg.Push.SetHead, Packs: packs.cache, Verifier: packs.verifier,
		Epoch: epoch, Runner: runner, Upkeep: cfg.Maintenance.Upkeep(), Metrics: metrics, Tables: repo.NewTables(runner), RefsMetrics: refMetrics, GraphMetrics: graphMetrics,
		Lookups: lookup.Options{Metrics: lookups, Memory: admit.NewBudget("objects", config.AtMost(lookup.DefaultMemory, cfg.MemoryShares().Server/4))},
	})
}

// newWarmup is nil if no packs are to be made before somebody asks.
func newWarmup(cfg config.WarmupConfig, reg prometheus.Registerer, runner *process.Runner) *uploadpack.Warmup {
	if !cfg.Enabled {
		return nil
	}
	slots := runner.Queue(packsource.ClassPack)
	w := &uploadpack.Warmup{
		Window: cfg.Window.Duration, Least: cfg.Least, Packs: cfg.Packs, MaxBytes: int64(cfg.MaxBytes), Metrics: uploadpack.NewWarmupMetrics(),
		Idle:    func() bool { return slots.Queued() == 0 && slots.InUse() < slots.Size() },
		Crowded: func() bool { return slots.Queued() > 0 },
	}
	register(reg, w.Metrics)
	return w
}

// localNode is the name of the node that is in the gateway's own process.
const localNode = "local"

// addGateway gives a server its public listener, and what knows the callers that come by it. Without tiers the router resolves revisions.
func (s *server) addGateway(cfg config.Config, log *slog.Logger, reg prometheus.Registerer, lanes lanes, routes *router.Router, tiers *resolve.Tiers) error {
	s.board, s.shown.Lanes = lanes.board, lanes.metrics
	callers, err := newAuth(cfg, log, reg)
	if err != nil {
		return err
	}
	lanes.leaveRoom(cfg.Lanes.Anonymous, callers.Configured)
	below := s.close
	s.close = func() error { return errors.Join(callers.Close(), below()) }
	takeBelow := s.reload
	s.reload = func(cfg config.Config) error {
		rules, err := cfg.Auth.Rules()
		if err == nil {
			err = callers.CheckRules(rules)
		}
		if err == nil && takeBelow != nil {
			err = takeBelow(cfg)
		}
		if err == nil {
			callers.SetRules(rules)
		}
		return err
	}
	doors, err := newDoors(cfg, log, reg)
	if err != nil {
		return err
	}
	s.notes = doors.notes
	handler := newGateway(cfg, log, reg, lanes, routes, tiers, callers)
	handler.Pages, handler.Proxies = s.pages, doors.proxies
	drainBelow := s.drain
	s.drain = func() {
		handler.Drain()
		if drainBelow != nil {
			drainBelow()
		}
	}
	if err := s.addPages(cfg, reg, routes, handler); err != nil {
		return err
	}
	if err := s.addApp(cfg, log, reg, &lanes, handler); err != nil {
		return err
	}
	if s.public, err = newFront(cfg, log, reg, handler, doors); err != nil {
		return err
	}
	if s.ssh, err = newSSH(cfg, log, reg, handler.Gateway, callers, doors); err != nil {
		return err
	}
	s.addSourceChecks(callers.Sources())
	return nil
}

func newGateway(cfg config.Config, log *slog.Logger, reg prometheus.Registerer, lanes lanes, routes *router.Router, tiers *resolve.Tiers,
	callers gateway.Auth) *githttp.Handler {
	metrics := gateway.NewMetrics()
	register(reg, metrics, routes)
	o := gateway.Gateway{
		Router: routes, Resolver: routes, Auth: callers, Pump: lanes.pump, Lanes: lanes.Lanes, Memory: lanes.memory, Metrics: metrics, Log: log,
		Board: lanes.board, SLI: lanes.sli, Tracer: lanes.tracer, MaxBody: int64(cfg.HTTP.MaxBody), ReadStall: cfg.HTTP.ReadStall.Duration,
		MaxPush: int64(cfg.Push.MaxSize), PushTime: cfg.Push.TimeLimit.Duration,
	}
	if tiers != nil {
		o.Resolver, o.Changed = tiers, tiers.Changed
	}
	return githttp.New(githttp.Options{Gateway: &o})
}

// lanes are what all work in a process shares.
type lanes struct {
	pump *bulk.Pump
	admit.Lanes
	memory  *admit.Budget // of large requests
	metrics *admit.Metrics
	board   *inflight.Board // nil: nobody looks
	sli     *sli.Set
	tree    *proctree.Tree    // nil: it is not measured
	tracing *tracing.Exporter // nil: nothing is traced, and tracer is
	tracer  *inflight.Tracer
}

func newLanes(role config.Role, cfg config.Config, log *slog.Logger, reg prometheus.Registerer, version string) (lanes, error) {
	l := lanes{
		pump: bulk.NewPump(bulk.PumpOptions{}), Lanes: admit.NewLanes(admit.Sizes{Small: cfg.Lanes.Small, Hit: cfg.Lanes.Hit, Cold: cfg.Lanes.Cold, Push: cfg.Lanes.Push, Pages: cfg.Lanes.Pages}),
		// What requests took stays in memory until it is collected, and may be as much again.
		memory: admit.NewBudget("requests", config.AtMost(int64(cfg.Lanes.RequestBytes), cfg.MemoryShares().Server/4)),
		sli:    newSLI(&cfg.SLI),
	}
	if cfg.Ops.Activity {
		l.board = inflight.NewBoard()
		register(reg, l.board)
	}
	l.metrics = admit.NewMetrics(l.Lanes)
	l.Unfair = !cfg.Lanes.Fair
	l.Small.Watch(l.pump)
	register(reg, l.pump, l.memory, l.metrics)
	if l.sli != nil {
		register(reg, l.sli)
	}
	if cfg.Ops.Tree {
		l.tree = proctree.New(proctree.Options{Workers: map[string]string{SearchWorker: searches, reaper.Name: "reaper"}, Log: log})
		register(reg, l.tree)
	}
	var err error
	if l.tracing, l.tracer, err = newTracer(&cfg.Tracing, role, log, version); l.tracing != nil {
		register(reg, l.tracing)
	}
	return l, err
}

// searches is the part of the process tree that indexes and searches.
const searches = "search"

// account counts processes that have ended as a part of the tree; nil if it is not measured.
func (l *lanes) account(part string) func(*os.ProcessState) {
	if l.tree == nil {
		return nil
	}
	return func(state *os.ProcessState) { l.tree.Ended(part, state) }
}

// leaveRoom has anonymous callers leave room for others, as soon as there are any: the first token may be made, and rules written, while the
// server runs.
func (l *lanes) leaveRoom(part float64, known func() bool) {
	if part >= 1 {
		return
	}
	for _, lane := range l.All() {
		lane.Anonymous(part, known)
	}
	l.memory.Anonymous(part, known)
}

// collected is a package's metrics.
type collected interface{ Collectors() []prometheus.Collector }

func register(reg prometheus.Registerer, all ...collected) {
	for _, m := range all {
		reg.MustRegister(m.Collectors()...)
	}
}

// newFront is the HTTP server around a handler. Nothing may stand between it and the handler's own connections but TLS and a guard; what stands below
// them has to be a bulk.Socket.
func newFront(cfg config.Config, log *slog.Logger, reg prometheus.Registerer, handler *githttp.Handler, doors doors) (*port, error) {
	errorLog := newHTTPLog(log)
	register(reg, errorLog)
	h := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: cfg.HTTP.HeaderTimeout.Duration,
		IdleTimeout:       cfg.HTTP.IdleTimeout.Duration,
		MaxHeaderBytes:    int(cfg.HTTP.MaxHeader),
		ErrorLog:          errorLog.logger(),
	}
	guard := httpguard.New(httpguard.Options{Refused: handler.Refused, TLSLimit: cfg.HTTP.HeaderTimeout.Duration, Log: h.ErrorLog})
	register(reg, guard)
	h.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		return connlimit.Context(guard.Context(bulk.Serve(ctx, c), c), c)
	}
	h.ConnState = func(c net.Conn, state http.ConnState) {
		guard.State(c, state)
		doors.http.State(c, state)
	}
	h.RegisterOnShutdown(handler.EndWaits)
	h.Protocols = new(http.Protocols)
	h.Protocols.SetHTTP1(true) // alone: docs/decisions/0007-http1-alone.md
	wrap := func(l net.Listener) net.Listener {
		return handler.Listen(doors.listenHTTP(l, cfg.HTTP), cfg.HTTP.WriteStall.Duration)
	}
	if cfg.HTTP.TLSCert != "" {
		certificate, err := credfile.LoadCertificate(cfg.HTTP.TLSCert, cfg.HTTP.TLSKey, log)
		if err != nil {
			return nil, err
		}
		plain := wrap
		wrap = func(l net.Listener) net.Listener {
			return tls.NewListener(plain(l), &tls.Config{
				GetCertificate: certificate.Get, NextProtos: []string{"http/1.1"}, MinVersion: tls.VersionTLS12,
			})
		}
	}
	return newPort(h, func(l net.Listener) net.Listener { return guard.Listen(wrap(l)) }), nil
}
