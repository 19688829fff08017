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

	"github.com/packhorse-git/packhorse/client"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/node/storage"
	"github.com/packhorse-git/packhorse/internal/server/config"
	"github.com/packhorse-git/packhorse/internal/store"
)

// NodeUse is what a command does with a node of its own.
type NodeUse int

// The uses. To read and to import, a node needs no state directory, and works beside a running server. With a store,
// the root of such a node has to be a directory that no other process uses.
const (
	ReadNode   NodeUse = iota // creates no file
	ImportNode                // makes new repositories, which appear below the root at once
	// ChangeNode listens on the admin socket like a server, so that other commands find it. The caller has locked the
	// state directory.
	ChangeNode
	CacheNode // ChangeNode with the pack cache
)

// RunNode runs a node for a command on the repositories of cfg, while do runs.
func RunNode(ctx context.Context, p Process, cfg config.Config, use NodeUse,
	do func(*storage.Node, *client.Client) error) (err error) {
	life := &lifecycle{}
	defer func() { err = errors.Join(err, life.close()) }()
	log, reg := slog.New(slog.DiscardHandler), prometheus.NewRegistry()
	var s *server
	var l net.Listener
	address, o := "http://localhost:1", client.Options{}
	if use == ReadNode || use == ImportNode {
		cfg.Tracing.Endpoint = ""
		d, err := newDeps(config.RoleStorage, cfg, log, reg, p, life)
		if err != nil {
			return err
		}
		node, err := openNode(d, use == ReadNode)
		if err != nil {
			return err
		}
		s = &server{deps: d, node: &nodeParts{node: node}}
		s.addAdmin()
		pairs := newPairs()
		l, o.Dial = pairs, pairs.dial
	} else {
		cfg.Maintenance.Enabled, cfg.Warmup.Enabled = false, false
		cfg.Storage.Listen, cfg.Ops.Address, cfg.Mirror = "", "", nil
		cfg.Cache.Enabled = cfg.Cache.Enabled && use == CacheNode
		if s, err = build(config.RoleStorage, cfg, log, reg, p, life); err != nil {
			return err
		}
		socket := config.AdminSocket(cfg.State)
		if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if l, err = listenUnix(socket, 0o600); err != nil {
			return err
		}
		address = "unix:" + socket
	}
	served := make(chan error, 1)
	go func() { served <- s.admin.serve(l) }()
	c, err := client.New(address, o)
	if err == nil {
		err = do(s.node.node, c)
		c.Close()
	}
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), CloseLimit)
	defer cancel()
	return errors.Join(err, s.admin.shutdown(limit), <-served)
}

// openNode opens a node without fetches and pushes.
func openNode(d *deps, readOnly bool) (*storage.Node, error) {
	cfg := &d.cfg
	runner, err := process.New(process.Options{Git: cfg.Git.Program, Log: d.log,
		Reaper: reaperProgram(cfg, d.process.Program, d.log),
		Classes: map[process.Class]process.Limits{
			places.ClassUpstream: config.UpstreamLimits(), places.ClassManage: config.ManageLimits(),
			repo.ClassRefs: config.RefsLimits(),
		}})
	if err != nil {
		return nil, err
	}
	d.life.push("git processes", func() error {
		limit, cancel := context.WithTimeout(context.Background(), CloseLimit)
		defer cancel()
		return runner.Close(limit)
	})
	o := storage.Options{
		Root: cfg.Root, Hidden: []string{cfg.State, cfg.Cache.Dir}, Policy: cfg.Fetch.Policy(), ReadOnly: readOnly,
		RepositoryHooks: cfg.Push.HookPolicy(), Log: d.log, Runner: runner, Tables: repo.NewTables(runner),
	}
	if cfg.Store.Enabled() {
		opened, err := openStore(cfg, nil, store.Options{Log: d.log})
		if err != nil {
			return nil, err
		}
		d.life.push("store", opened.Close)
		o.Places = opened
	} else if err := checkPlainRoot(cfg.Root); err != nil {
		return nil, err
	}
	node, err := storage.New(nil, o)
	if err != nil {
		return nil, err
	}
	d.life.push("node", node.Close)
	return node, nil
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
