package roles

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node/storage"
	"github.com/packhorse-git/packhorse/internal/server/config"
	"github.com/packhorse-git/packhorse/internal/store"
)

// ServeNode runs a node on the repositories while do runs. Like a server, it listens on the admin socket, so that the
// caller and other commands find it. The caller has locked the state directory.
func ServeNode(ctx context.Context, p Process, cfg config.Config, cache bool, do func() error) (err error) {
	cfg.Maintenance.Enabled, cfg.Warmup.Enabled = false, false
	cfg.Storage.Listen, cfg.Ops.Address, cfg.Mirror = "", "", nil
	cfg.Cache.Enabled = cfg.Cache.Enabled && cache
	log, reg := slog.New(slog.DiscardHandler), prometheus.NewRegistry()
	var parts closers
	defer func() { err = errors.Join(err, parts.close()) }()
	s, err := build(config.RoleStorage, cfg, log, reg, p, &parts)
	if err != nil {
		return err
	}
	socket := config.AdminSocket(cfg.State)
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	l, err := listenUnix(socket, 0o600)
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() { served <- s.local.serve(l) }()
	err = do()
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), CloseLimit)
	defer cancel()
	return errors.Join(err, s.local.shutdown(limit), <-served)
}

// ReadNode runs a read-only node on the repositories while do runs. do connects to it with dial. ReadNode creates no
// file.
func ReadNode(ctx context.Context, p Process, cfg config.Config,
	do func(dial func(context.Context) (net.Conn, error)) error) error {
	cfg.Ops.Tree, cfg.Ops.Activity, cfg.Tracing.Endpoint = false, false, ""
	log, reg := slog.New(slog.DiscardHandler), prometheus.NewRegistry()
	s := &server{role: config.RoleStorage, cfg: cfg, log: log, reg: reg, process: p, closers: new(closers)}
	if err := s.addLanes(); err != nil {
		return err
	}
	node, closeNode, err := OpenNode(p.Program, cfg, log, storage.Options{ReadOnly: true,
		RepositoryHooks: cfg.Push.HookPolicy()}, map[process.Class]process.Limits{repo.ClassRefs: config.RefsLimits()})
	if err != nil {
		return err
	}
	s.node = node
	s.addLocal()
	l := newPairs()
	served := make(chan error, 1)
	go func() { served <- s.local.serve(l) }()
	err = do(l.dial)
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), CloseLimit)
	defer cancel()
	return errors.Join(err, s.local.shutdown(limit), <-served, closeNode())
}

// OpenNode opens a node on the repositories without fetches and pushes. With a store, the root has to be a directory
// that no other process uses.
func OpenNode(program string, cfg config.Config, log *slog.Logger, o storage.Options,
	classes map[process.Class]process.Limits) (node *storage.Node, closeAll func() error, err error) {
	runner, err := process.New(process.Options{Git: cfg.Git.Program, Log: log, Reaper: reaperProgram(&cfg, program, log),
		Classes: classes})
	if err != nil {
		return nil, nil, err
	}
	var parts closers
	parts.push("git processes", func() error {
		limit, cancel := context.WithTimeout(context.Background(), CloseLimit)
		defer cancel()
		return runner.Close(limit)
	})
	if cfg.Store.Enabled() {
		opened, err := openStore(&cfg, nil, store.Options{Log: log})
		if err != nil {
			return nil, nil, errors.Join(err, parts.close())
		}
		parts.push("store", opened.Close)
		o.Places = opened
	} else if err := checkPlainRoot(cfg.Root); err != nil {
		return nil, nil, errors.Join(err, parts.close())
	}
	o.Root, o.Hidden, o.Policy = cfg.Root, []string{cfg.State, cfg.Cache.Dir}, cfg.Fetch.Policy()
	o.Log, o.Runner, o.Tables = log, runner, repo.NewTables(runner)
	if node, err = storage.New(nil, o); err != nil {
		return nil, nil, errors.Join(err, parts.close())
	}
	return node, func() error { return errors.Join(parts.close(), node.Close()) }, nil
}

// pairs is a listener for connections within the process. Each connection is a pair of sockets.
type pairs struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newPairs() *pairs { return &pairs{conns: make(chan net.Conn), closed: make(chan struct{})} }

func (p *pairs) dial(ctx context.Context) (net.Conn, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	var ends [2]net.Conn
	for i, fd := range fds {
		unix.CloseOnExec(fd)
		file := os.NewFile(uintptr(fd), "pair")
		conn, failed := net.FileConn(file)
		file.Close()
		ends[i], err = conn, errors.Join(err, failed)
	}
	if err == nil {
		select {
		case p.conns <- ends[0]:
			return ends[1], nil
		case <-p.closed:
			err = net.ErrClosed
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	for _, end := range ends {
		if end != nil {
			end.Close()
		}
	}
	return nil, err
}

// Accept, Close and Addr make it a net.Listener.
func (p *pairs) Accept() (net.Conn, error) {
	select {
	case conn := <-p.conns:
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pairs) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (p *pairs) Addr() net.Addr { return &net.UnixAddr{Net: "unix"} }
