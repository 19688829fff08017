package roles

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/operations/doctor"
	"github.com/packhorse-git/packhorse/internal/operations/observe"
	"github.com/packhorse-git/packhorse/internal/server/cli"
	"github.com/packhorse-git/packhorse/internal/server/config"
	"github.com/packhorse-git/packhorse/internal/server/statedir"
)

// heapFloor is the size of an allocation that is never touched. It costs no memory. It makes the garbage collector wait
// until there is as much garbage more: each collection empties the pools of buffers, too. The heap of a role has 20 to
// 40 MiB. Without a floor a storage node under load gave 3 to 5 % of its CPU time to collections. With a larger one a
// server grows beyond 100 MB under 30 clients (docs/reference/benchmarks.md). A gateway before an application has many
// short requests that leave about 10 KB of garbage each. It has a larger floor, for fewer collections.
const (
	heapFloor    = 16 << 20
	appHeapFloor = 64 << 20
)

// Run runs a role until ctx ends or a part fails. The shutdown has four steps. Readiness turns red. After
// shutdown.delay the listeners close. Running requests get shutdown.grace. Then all parts close in the reverse order of
// their start, the private listener last, so that operators can observe the shutdown.
func Run(ctx context.Context, p Process, src *config.Source, cfg config.Config) (err error) {
	floorSize := heapFloor
	if cfg.App.Enabled() {
		floorSize = appHeapFloor
	}
	floor := make([]byte, floorSize)
	defer runtime.KeepAlive(&floor)
	if share := cfg.Collected(); share > 0 {
		defer debug.SetMemoryLimit(debug.SetMemoryLimit(share + int64(floorSize)))
	}

	// The parts close at the end, in the reverse order of this function.
	parts := &lifecycle{}
	defer func() { err = errors.Join(err, parts.close()) }()

	// Log and environment.
	log, level, err := newLog(p, cfg.Log)
	if err != nil {
		return cli.Usage(err)
	}
	role := src.Role
	if role.OwnsRepositories() {
		if err := checkGit(ctx, cfg.Git.Program, log); err != nil {
			return cli.Usage(err)
		}
	}
	inherited, err := inherit(p.Sockets)
	if err != nil {
		return cli.Usage(err)
	}
	parts.push("inherited sockets", infallible(inherited.close))
	loaded := cfg // reloads compare their configuration with this one
	if cfg, err = inherited.addressed(cfg, role); err != nil {
		return cli.Usage(err)
	}
	handover := role == config.RoleGateway && inherited[httpSocket] != nil

	// State directory and listeners.
	if cfg.CreatesRoot(role) {
		if err := os.MkdirAll(cfg.Root, 0o700); err != nil {
			return fmt.Errorf("create the root: %w", err)
		}
	}
	if noted, _, _ := statedir.ReadNote(cfg.Root); noted != "" && noted == cfg.State {
		if entries, _ := os.ReadDir(cfg.State); len(entries) == 0 {
			log.Warn("the state directory of the last server on this root is empty: its tokens and host keys are lost",
				"dir", cfg.State)
		}
	}
	state, err := statedir.Take(ctx, cfg.State, cfg.Shutdown.Delay.Duration+cfg.Shutdown.Grace.Duration+2*CloseLimit, log)
	if taken, ok := errors.AsType[*statedir.TakenError](err); ok && cfg.Store.Enabled() && taken.Root == cfg.Root {
		return fmt.Errorf("the root %s is in use by %s; stop it, or give this one another root", cfg.Root, taken.Holder())
	}
	if err != nil {
		return err
	}
	parts.push("state directory", state.Close)
	listeners, err := openListeners(role, cfg, inherited)
	if err != nil {
		return err
	}
	parts.push("listeners", infallible(listeners.close))

	// The private listener and the watchdog show the other parts, and close after them.
	reg := observe.NewRegistry(p.Version)
	w := newWatching(reg, log)
	parts.push("readiness", infallible(w.closeReadiness))
	parts.push("private listener", func() error { return w.close(context.WithoutCancel(ctx)) })
	parts.push("watchdog", infallible(w.closeWatchdog))
	if listeners.ssh != nil && cfg.Pages.SSH == "" { // each visitor knows a host of this server
		_, port, _ := net.SplitHostPort(listeners.ssh.Addr().String()) // it is valid
		cfg.Pages.SSH = ":" + port
	}
	srv, err := build(role, cfg, log, reg, p, parts)
	if err != nil {
		return err
	}
	if role.OwnsRepositories() && cfg.Auth.Origin.URL == "" { // otherwise the root is a forge's
		if err := statedir.WriteNote(cfg.Root, cfg.State); err != nil {
			log.Warn("cannot record the state directory below the root: commands need --state", "error", err)
		}
	}
	w.start(srv, listeners)

	started := &startedRole{cfg: cfg, log: log, state: state, watching: w, server: srv, listeners: listeners,
		start: startOf(srv, src.File, listeners), handover: handover}
	if err := state.Write(started.start); err != nil {
		log.Warn("cannot write the addresses to the state directory", "error", err)
	}
	if p.Started == nil {
		announce(started.start, p.Stderr, log, cfg)
	} else if err := p.Started(started.start); err != nil {
		return err
	}
	r := &reloader{source: src, hangups: p.Hangups, running: loaded, level: level, log: log, apply: parts.reload}
	err = errors.Join(started.serve(ctx, r), parts.close())
	if err == nil {
		log.Info("stopped")
	}
	return err
}

// startedRole is a role whose parts have started.
type startedRole struct {
	cfg       config.Config
	log       *slog.Logger
	state     *statedir.Dir
	watching  *watching
	server    *server
	listeners listeners
	start     statedir.Server
	handover  bool // the next gateway starts while this one finishes its requests
}

// serve serves and reloads until ctx ends or a port fails, and then drains. All requests have ended when it returns.
func (s *startedRole) serve(ctx context.Context, r *reloader) error {
	running, stop := context.WithCancel(ctx)
	defer stop()
	ports := s.server.ports(s.listeners)
	serving := new(errgroup.Group)
	for _, one := range ports {
		serving.Go(func() error {
			defer stop() // a failing port ends the process
			return one.serve(one.listener)
		})
	}
	r.untilDone(running)

	s.watching.draining.Store(true)
	s.start.Leaving = true
	if err := s.state.Write(s.start); err != nil {
		s.log.Warn("cannot record in the state directory that this process is stopping", "error", err)
	}
	for _, drain := range s.server.life.drains {
		drain()
	}
	delay, grace := s.cfg.Shutdown.Delay, s.cfg.Shutdown.Grace
	if ctx.Err() != nil { // a regular stop, not a failed port
		s.log.Info("draining", "delay", delay.String(), "grace", grace.String())
		time.Sleep(delay.Duration)
	}
	ended := shutdown(ctx, grace.Duration, ports)
	var err error
	if s.handover {
		// The next gateway needs the state directory and the private address, which only one process can have.
		_ = serving.Wait()
		err = errors.Join(s.watching.close(context.WithoutCancel(ctx)), s.state.Close())
	}
	if failed := <-ended; errors.Is(failed, context.DeadlineExceeded) {
		s.log.Warn("requests were canceled after shutdown.grace", "grace", grace.String())
	} else {
		err = errors.Join(err, failed)
	}
	return errors.Join(err, serving.Wait())
}

// shutdown closes the listeners of ports. It sends the result when all requests have ended or were canceled after
// grace.
func shutdown(ctx context.Context, grace time.Duration, ports []servedPort) <-chan error {
	result := make(chan error, 1)
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	var all errgroup.Group
	for _, one := range ports {
		all.Go(func() error { return one.shutdown(limit) })
	}
	go func() {
		defer cancel()
		result <- all.Wait()
	}()
	return result
}

// checkGit returns an error if the git program is too old. An unknown version is only logged.
func checkGit(ctx context.Context, program string, log *slog.Logger) error {
	v, text, err := process.VersionOf(ctx, program)
	if err != nil {
		log.Warn("cannot determine the version of git", "error", err)
		return nil
	}
	log.Debug("found git", "program", program, "version", text)
	return doctor.TooOld(program, v)
}

// newLog makes the log of a process, with a variable level.
func newLog(p Process, cfg config.LogConfig) (*slog.Logger, *slog.LevelVar, error) {
	level := new(slog.LevelVar)
	if err := setLevel(level, cfg.Level); err != nil {
		return nil, nil, err
	}
	log, err := observe.NewLogger(p.Stderr, level, cfg.Format, observe.Colored(p.Stderr, p.Getenv),
		auth.Redact)
	return log, level, err
}
