package roles

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/packhorse-git/packhorse/internal/observe"
)

// opsLinger is how long an answer of the private listener may still take once everything else has ended.
const opsLinger = time.Second

// runServe starts the parts bottom up, waits for ctx to end or a part to fail, and stops them top down: readiness turns red,
// after shutdown.delay the listener closes, running requests get shutdown.grace, then the node closes, and the private listener
// last, so that the whole end can be watched.
func runServe(ctx context.Context, cfg Config, env Env) (err error) {
	log, err := observe.NewLogger(env.Stderr, cfg.Log.Level, cfg.Log.Format)
	if err != nil {
		return usage(err)
	}
	state, err := openState(cfg.State)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, state.close()) }()

	public, err := listen(cfg.HTTP.Address, "--http")
	if err != nil {
		return err
	}
	defer public.Close()
	var private net.Listener
	if cfg.Ops.Address != "" {
		if private, err = listen(cfg.Ops.Address, "--ops"); err != nil {
			return err
		}
		defer private.Close()
		if host, _ := splitAddress(private.Addr().String()); !isLoopback(host) {
			log.Warn("the private listener can be reached by other machines", "address", private.Addr().String())
		}
	}

	reg := observe.NewRegistry(versionOf(env).Version)
	srv, err := newServe(cfg, log, reg, versionOf(env).Version)
	if err != nil {
		return err
	}

	var draining atomic.Bool
	ops := observe.NewOps(observe.OpsOptions{Log: log, Registry: reg, Ready: func() error {
		if draining.Load() {
			return errors.New("draining: the process is about to end")
		}
		return srv.ready()
	}})
	var opsDone errgroup.Group // outlives the public listener
	if private != nil {
		opsDone.Go(func() error { return ops.Serve(private) })
	}

	start := startOf(cfg, public, private)
	if err := state.write(start); err != nil {
		log.Warn("cannot write the addresses to the state directory", "error", err)
	}
	start.announce(env.Stderr, log, cfg)

	run, stop := context.WithCancel(ctx)
	var serving errgroup.Group
	serving.Go(func() error {
		defer stop()
		return srv.serve(public)
	})
	<-run.Done()
	draining.Store(true)
	err = drain(ctx, cfg, log, srv)
	err = errors.Join(err, serving.Wait(), srv.close())
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), opsLinger)
	defer cancel()
	err = errors.Join(err, ops.Close(closing), opsDone.Wait())
	if err == nil {
		log.Info("stopped")
	}
	return err
}

// drain ends the public listener. That requests had to be cut off is worth a warning, not a failure: the limit is there to
// be used.
func drain(ctx context.Context, cfg Config, log *slog.Logger, srv *server) error {
	free := context.WithoutCancel(ctx)
	if ctx.Err() != nil { // asked to stop, and not because the listener failed
		log.Info("draining", "delay", cfg.Shutdown.Delay.String(), "grace", cfg.Shutdown.Grace.String())
		if d := cfg.Shutdown.Delay.Duration; d > 0 {
			time.Sleep(d)
		}
	}
	limit, cancel := context.WithTimeout(free, cfg.Shutdown.Grace.Duration)
	defer cancel()
	err := srv.shutdown(limit)
	if errors.Is(err, context.DeadlineExceeded) {
		log.Warn("requests still ran after shutdown.grace and were cut off", "grace", cfg.Shutdown.Grace.String())
		return nil
	}
	return err
}

func listen(address, flag string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("%w; stop what uses the address, or give another one with %s", err, flag)
	}
	return l, nil
}

// mkdirState makes the state directory for this user only: its cache holds the content of repositories.
func mkdirState(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the state directory: %w; name a directory that can be written with --state", err)
	}
	return nil
}
