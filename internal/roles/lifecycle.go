package roles

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/packhorse-git/packhorse/internal/adminapi"
	"github.com/packhorse-git/packhorse/internal/app"
	"github.com/packhorse-git/packhorse/internal/auth"
	"github.com/packhorse-git/packhorse/internal/cli"
	"github.com/packhorse-git/packhorse/internal/config"
	"github.com/packhorse-git/packhorse/internal/doctor"
	"github.com/packhorse-git/packhorse/internal/gateway/githttp"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/inflight"
	"github.com/packhorse-git/packhorse/internal/observe"
	"github.com/packhorse-git/packhorse/internal/observe/tracing"
	"github.com/packhorse-git/packhorse/internal/observe/watchdog"
	"github.com/packhorse-git/packhorse/internal/search"
	searchremote "github.com/packhorse-git/packhorse/internal/search/remote"
	"github.com/packhorse-git/packhorse/internal/statedir"
	"github.com/packhorse-git/packhorse/internal/storage"
	"github.com/packhorse-git/packhorse/internal/top"
)

// opsLinger is how long an answer of the private listener may still take once everything else has ended.
const opsLinger = time.Second

// server is a role's parts, wired.
type server struct {
	public   *port          // for clients; nil: none
	ssh      *sshFront      // for clients; nil: none
	control  *port          // for gateways; nil: none
	local    *port          // the control API for this machine's operator, on the admin socket; nil: none
	node     *storage.Node  // nil in a gateway
	search   *search.Engine // nil: nothing is searched here
	pages    githttp.Pages  // of public; nil: none
	app      *app.Proxy     // for what is left over of the requests to public; nil: none
	appDrain time.Duration
	board    *inflight.Board // of requests that run; nil: nobody looks
	shown    top.Sources     // what it does, as far as its parts tell
	git      *process.Runner // nil: none runs here

	tracing  *tracing.Exporter // nil: nothing is traced
	watching *watchdog.Metrics
	private  *observe.OpsMetrics
	dumps    dumps

	elsewhere *searchremote.Index // which the search process has that a gateway asks; nil: none

	// checks are what has to hold for requests to be answered.
	checks []observe.Check
	ready  *observe.Readiness // of checks
	// notes, unless nil, are lines about what an operator should know though requests can be answered.
	notes func() []string
	// drain, unless nil, tells others that no more requests should come; those that do are answered.
	drain func()
	// reload, unless nil, takes the nodes, routes and rules of a configuration that was read again. After an error everything is as it was.
	reload func(config.Config) error
	// admin, unless nil, answers on the admin socket; see local.
	admin http.Handler
	// close ends what requests were served from: git processes, fills, open repositories. Called once, last.
	close func() error
}

// port is what answers on one listener.
type port struct {
	// serve accepts on l until shutdown; it then returns nil.
	serve func(l net.Listener) error
	// shutdown stops accepting, waits for running requests, and cuts off what still runs when ctx ends.
	shutdown func(ctx context.Context) error
}

// build wires a role's parts.
func build(role config.Role, cfg config.Config, log *slog.Logger, reg prometheus.Registerer, version, program string) (s *server, err error) {
	switch role {
	case config.RoleStorage:
		s, err = newStorage(cfg, log, reg, version, program)
	case config.RoleGateway:
		s, err = newRemoteGateway(cfg, log, reg, version)
	case config.RoleSearch:
		s, err = newSearchServer(cfg, log, reg, version, program)
	default:
		s, err = newServe(cfg, log, reg, version, program)
	}
	if err == nil {
		s.watching, s.private, s.ready = watchdog.NewMetrics(), observe.NewOpsMetrics(), observe.NewReadiness(log, s.checks...)
		register(reg, s.watching, s.private, s.ready, newCertificateMetric(&cfg, role))
	}
	if err == nil && s.tracing != nil { // what ends tells of it
		below := s.close
		s.close = func() error { return errors.Join(below(), s.tracing.Close()) }
	}
	return s, err
}

// heapFloor is bytes that are reserved and never touched, so that they cost no memory, only make the garbage collector wait until there is
// as much garbage more: each collection empties the pools of buffers, too. What a role keeps on the heap is 20 to 40 MiB. Without a floor a storage node under load
// gave 3 to 5 % of its CPU time to collections; with a larger one a server grows beyond 100 MB under 30 clients (docs/reference/benchmarks.md).
const heapFloor = 16 << 20

// Run starts a role's parts bottom up, waits for ctx to end or a part to fail, and stops them top down: readiness turns red,
// after shutdown.delay the listeners close, running requests get shutdown.grace, then the node closes, and the private listener
// last, so that the whole end can be watched.
func Run(ctx context.Context, p Process, src *config.Source, cfg config.Config) (err error) {
	floor := make([]byte, heapFloor)
	defer runtime.KeepAlive(&floor)
	if share := cfg.MemoryShares().Server; share > 0 { // the collector works harder near it; who may have how much of it is bounded elsewhere
		defer debug.SetMemoryLimit(debug.SetMemoryLimit(share + heapFloor))
	}
	held := &heldLog{to: p.Stderr}
	defer held.release()
	log, level, err := newLog(p, cfg.Log, held)
	if err != nil {
		return cli.Usage(err)
	}
	if src.Role.OwnsRepositories() {
		if err := checkGit(ctx, cfg.Git.Program, log); err != nil {
			return cli.Usage(err)
		}
	}
	inherited, err := inherit(p.Sockets)
	if err != nil {
		return cli.Usage(err)
	}
	read := cfg // what a configuration that is read again is compared with
	if len(inherited) > 0 {
		if cfg, err = inherited.addressed(cfg, src.Role); err != nil {
			inherited.close()
			return cli.Usage(err)
		}
	}
	early := src.Role == config.RoleGateway && inherited[httpSocket] != nil
	state, err := statedir.Take(ctx, cfg.State, cfg.Shutdown.Delay.Duration+cfg.Shutdown.Grace.Duration+2*CloseLimit, log)
	if err != nil {
		inherited.close()
		return err
	}
	defer func() { err = errors.Join(err, state.Close()) }()
	listeners, err := openListeners(src.Role, cfg, inherited)
	if err != nil {
		return err
	}
	defer listeners.close()
	if src.Role.OwnsRepositories() {
		if err := statedir.WriteNote(cfg.Root, cfg.State); err != nil {
			log.Warn("cannot note the state directory below the root: commands need --state", "error", err)
		}
	}
	reg := observe.NewRegistry(p.Version)
	if observe.LogFormat(cfg.Log.Format, p.Stderr) != "json" {
		held.hold()
	}
	srv, err := build(src.Role, cfg, log, reg, p.Version, p.Program)
	if err != nil {
		return err
	}

	watched := watch(listeners, srv, log, reg, src.Role, p.Version)
	endWatchdog := srv.startWatchdog(p, src.Role, cfg, listeners, log, reg)
	start := startOf(src.Role, cfg, listeners)
	if src.File != "" {
		start.Config, _ = filepath.Abs(src.File)
	}
	if cfg.Watchdog.Enabled && p.Quits != nil {
		start.DumpSignal = int(statedir.DumpSignal)
	}
	if srv.ssh != nil {
		start.HostKeys = srv.ssh.fingerprints
	}
	if err := state.Write(start); err != nil {
		log.Warn("cannot write the addresses to the state directory", "error", err)
	}
	announce(start, p.Stderr, log, cfg)
	held.release()

	running, stop := context.WithCancel(ctx)
	defer stop()
	serving := srv.serve(listeners, stop)
	r := &reloader{source: src, hangups: p.Hangups, running: read, level: level, log: log, take: srv.reload}
	r.untilDone(running)
	watched.draining.Store(true)
	start.Leaving = true
	if err := state.Write(start); err != nil {
		log.Warn("cannot write to the state directory that this process leaves it", "error", err)
	}
	err = drain(ctx, cfg, log, srv, func() error {
		if !early {
			return nil
		}
		// A gateway keeps nothing in its state directory that the next process could not share with the requests that still run. It needs the two
		// addresses that only one process can have.
		_ = serving.Wait() // nothing is accepted any more
		return errors.Join(watched.close(context.WithoutCancel(ctx)), state.Close())
	})
	err = errors.Join(err, serving.Wait(), srv.close())
	endWatchdog()
	err = errors.Join(err, watched.close(context.WithoutCancel(ctx)))
	srv.ready.Close()
	if err == nil {
		log.Info("stopped")
	}
	return err
}

// checkGit refuses a git program that is too old. One that does not tell its version may be new enough.
func checkGit(ctx context.Context, program string, log *slog.Logger) error {
	v, text, err := process.VersionOf(ctx, program)
	if err != nil {
		log.Warn("cannot find out the version of git", "error", err)
		return nil
	}
	log.Debug("found git", "program", program, "version", text)
	return doctor.TooOld(program, v)
}

// newLog makes the log, which is written to w, and what changes its level.
func newLog(p Process, cfg config.LogConfig, w io.Writer) (*slog.Logger, *slog.LevelVar, error) {
	level := new(slog.LevelVar)
	if err := setLevel(level, cfg.Level); err != nil {
		return nil, nil, err
	}
	log, err := observe.NewLogger(w, level, observe.LogFormat(cfg.Format, p.Stderr), observe.Colored(p.Stderr, p.Getenv), auth.Redact)
	return log, level, err
}

// serve answers on the listeners for clients and gateways until they are shut down. When one of them ends, whatever for, it calls ended.
func (s *server) serve(l listeners, ended func()) *errgroup.Group {
	serving := new(errgroup.Group)
	for _, p := range []struct {
		*port
		net.Listener
	}{{s.public, l.public}, {s.ssh.portOrNil(), l.ssh}, {s.control, l.node}, {s.local, l.admin}} {
		if p.port != nil && p.Listener != nil {
			serving.Go(func() error {
				defer ended()
				return p.port.serve(p.Listener)
			})
		}
	}
	return serving
}

// watching is the private listener and the admin socket. They outlive the others.
type watching struct {
	draining atomic.Bool // readiness is red
	ops      *observe.Ops
	admin    *http.Server
	serving  errgroup.Group
	closed   bool
}

func watch(l listeners, srv *server, log *slog.Logger, reg *prometheus.Registry, role config.Role, version string) *watching {
	w := &watching{}
	shown := srv.shown
	shown.Role, shown.Version, shown.Board, shown.Redact, shown.Log = string(role), version, srv.board, auth.Redact, log
	more := map[string]http.Handler{adminapi.DumpPath: srv.dumps.handler(opsAgain), "GET " + top.Path: top.New(shown)}
	w.ops = observe.NewOps(observe.OpsOptions{Log: log, Registry: reg, Metrics: srv.private, More: more, Notes: srv.notes, Ready: func() error {
		if w.draining.Load() {
			return errors.New("draining: the process is about to end")
		}
		return srv.ready.Err()
	}})
	if l.private != nil {
		if host, _ := config.SplitAddress(l.private.Addr().String()); !config.IsLoopback(host) {
			log.Warn("the private listener can be reached by other machines", "address", l.private.Addr().String())
		}
		w.serving.Go(func() error { return w.ops.Serve(l.private) })
	}
	w.admin = adminapi.NewServer(srv.dumps.within(adminapi.Workers(srv.app, srv.appDrain, srv.admin)), log)
	if l.admin != nil && srv.local == nil {
		w.serving.Go(func() error {
			if err := w.admin.Serve(l.admin); !errors.Is(err, http.ErrServerClosed) {
				return fmt.Errorf("serve the admin socket: %w", err)
			}
			return nil
		})
	}
	return w
}

// close ends both. It may be called again, and does nothing then.
func (w *watching) close(ctx context.Context) error {
	if w.closed {
		return nil
	}
	w.closed = true
	ctx, cancel := context.WithTimeout(ctx, opsLinger)
	defer cancel()
	if err := w.admin.Shutdown(ctx); err != nil {
		w.admin.Close()
	}
	return errors.Join(w.ops.Close(ctx), w.serving.Wait())
}

// drain ends the listeners. It calls stopping once they are being closed, while requests still run. That requests had to be cut off is worth a warning, not a failure: the limit is there to be used.
func drain(ctx context.Context, cfg config.Config, log *slog.Logger, srv *server, stopping func() error) error {
	free := context.WithoutCancel(ctx)
	if srv.drain != nil {
		srv.drain()
	}
	if ctx.Err() != nil { // asked to stop, and not because a listener failed
		log.Info("draining", "delay", cfg.Shutdown.Delay.String(), "grace", cfg.Shutdown.Grace.String())
		if d := cfg.Shutdown.Delay.Duration; d > 0 {
			time.Sleep(d)
		}
	}
	limit, cancel := context.WithTimeout(free, cfg.Shutdown.Grace.Duration)
	defer cancel()
	var ports errgroup.Group
	for _, one := range []*port{srv.public, srv.ssh.portOrNil(), srv.control, srv.local} {
		if one != nil {
			ports.Go(func() error { return one.shutdown(limit) })
		}
	}
	failed := stopping()
	err := ports.Wait()
	if errors.Is(err, context.DeadlineExceeded) {
		log.Warn("requests still ran after shutdown.grace and were cut off", "grace", cfg.Shutdown.Grace.String())
		return failed
	}
	return errors.Join(err, failed)
}
