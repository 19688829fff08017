package roles

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/client"
	"github.com/packhorse-git/packhorse/internal/config"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/repo"
	"github.com/packhorse-git/packhorse/internal/storage"
)

// nodeFinder finds the node that a repo command asks.
type nodeFinder struct {
	target
	node  config.NodeConfig // --node; its address is empty without one
	cache bool              // the command works on the pack cache
}

func (f *nodeFinder) addFlags(flags *pflag.FlagSet, elsewhere bool) {
	f.target.addFlags(flags, "the server's state directory, `DIR` (default what the last server on the root used)")
	if !elsewhere {
		return
	}
	flags.StringVar(&f.node.Address, "node", "", "ask the storage node at `ADDRESS`, HOST:PORT or unix:PATH")
	flags.StringVar(&f.node.SecretFile, "secret-file", "", "`FILE` with the secret that the node wants")
	flags.StringVar(&f.node.TLSCA, "tls-ca", "", "speak TLS, and trust a node whose certificate those in the PEM `FILE` signed")
	flags.StringVar(&f.node.TLSCert, "tls-cert", "", "certificate and chain to show the node, PEM `FILE`")
	flags.StringVar(&f.node.TLSKey, "tls-key", "", "private key of --tls-cert, PEM `FILE`")
	flags.StringVar(&f.node.ServerName, "server-name", "", "the `NAME` in the node's certificate, where it is not the host of its address")
}

// load is the configuration of the repositories on this machine.
func (f *nodeFinder) load() (config.Config, error) {
	return f.server(", or a node with --node ADDRESS")
}

// read calls do with a client of the node, for calls that change nothing. It creates nothing: where no server answers, the
// command looks at the repositories itself, without a state directory.
func (f *nodeFinder) read(ctx context.Context, do func(*client.Client) error) error {
	if f.node.Address != "" {
		return f.withElsewhere(do)
	}
	cfg, err := f.load()
	if err != nil {
		return err
	}
	socket := config.AdminSocket(cfg.State)
	if conn, err := net.DialTimeout("unix", socket, adminTimeout); err == nil {
		conn.Close()
		return withClient("unix:"+socket, client.Options{}, do)
	}
	return f.withReader(ctx, cfg, do)
}

// change is read for calls that change repositories: only one process at a time does, the one that has the state directory.
func (f *nodeFinder) change(ctx context.Context, do func(*client.Client) error) error {
	if f.node.Address != "" {
		return f.withElsewhere(do)
	}
	cfg, err := f.load()
	if err != nil {
		return err
	}
	socket := config.AdminSocket(cfg.State)
	if err := config.CheckSocketPath(socket); err != nil {
		return fmt.Errorf("%w; name a shorter directory with --state, here and for the server", err)
	}
	if err := f.actAsOwner(&cfg); err != nil {
		return err
	}
	for patience := time.Now().Add(commandPatience); ; {
		state, err := openState(cfg.State)
		taken, ok := errors.AsType[*stateTaken](err)
		switch {
		case err == nil:
			return errors.Join(f.withOwn(ctx, cfg, do), state.close())
		case !ok:
			return err
		}
		conn, err := net.DialTimeout("unix", socket, adminTimeout)
		if err == nil {
			conn.Close()
			return withClient("unix:"+socket, client.Options{}, do)
		}
		if time.Now().After(patience) || ctx.Err() != nil {
			return fmt.Errorf("%w; or use --node ADDRESS: nothing answers at %s (%w)", taken, socket, err)
		}
		time.Sleep(commandPause)
	}
}

// actAsOwner has a command of root's run as the owner of the state directory or, before there is one, of the root: what it
// makes, and what git makes for it, is the server's then.
func (f *nodeFinder) actAsOwner(cfg *config.Config) error {
	owner, err := f.stateOwner(cfg)
	if err != nil || !owner.other() || f.env.Become == nil {
		return err
	}
	if err := f.env.Become(owner); err != nil {
		return err
	}
	if unix.Access(f.env.Program, unix.X_OK) != nil { // as below /root: git runs without a reaper then
		f.env.Program = ""
	}
	return nil
}

// A state directory can be taken for a moment by a process that does not answer yet, or any more: another command, a server at its start.
const (
	commandPatience = 10 * time.Second
	commandPause    = 20 * time.Millisecond
)

func (f *nodeFinder) withElsewhere(do func(*client.Client) error) error {
	trust, err := f.node.LoadTrust(slog.New(slog.DiscardHandler))
	if err != nil {
		return usage(err)
	}
	return withClient(f.node.Address, clientOptions(trust, f.node.ServerName), do)
}

func withClient(address string, o client.Options, do func(*client.Client) error) error {
	node, err := client.New(address, o)
	if err != nil {
		return usage(err)
	}
	defer node.Close()
	return do(node)
}

// withOwn runs a node on the repositories for as long as the command takes. It answers where a server would, so that the command, and another
// one that comes meanwhile, find it.
func (f *nodeFinder) withOwn(ctx context.Context, cfg config.Config, do func(*client.Client) error) (err error) {
	cfg.Maintenance.Enabled, cfg.Warmup.Enabled, cfg.Cgroup.Enabled, cfg.Storage.Listen, cfg.Ops.Address = false, false, false, "", ""
	cfg.Cache.Enabled = cfg.Cache.Enabled && f.cache
	log, reg := slog.New(slog.DiscardHandler), prometheus.NewRegistry()
	s, err := newStorage(cfg, log, reg, versionOf(f.env).Version, f.env.Program)
	if err != nil {
		return err
	}
	socket := config.AdminSocket(cfg.State)
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return errors.Join(err, s.close())
	}
	l, err := listenUnix(socket, 0o600)
	if err != nil {
		return errors.Join(err, s.close())
	}
	served := make(chan error, 1)
	go func() { served <- s.local.serve(l) }()
	err = withClient("unix:"+socket, client.Options{}, do)
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeLimit)
	defer cancel()
	return errors.Join(err, s.local.shutdown(limit), <-served, s.close())
}

// withReader runs a node on the repositories for as long as the command takes. It creates nothing, not even a socket.
func (f *nodeFinder) withReader(ctx context.Context, cfg config.Config, do func(*client.Client) error) error {
	cfg.Ops.Tree, cfg.Ops.Activity, cfg.Tracing.Endpoint = false, false, ""
	log, reg := slog.New(slog.DiscardHandler), prometheus.NewRegistry()
	lanes, err := newLanes(config.RoleStorage, cfg, log, reg, versionOf(f.env).Version)
	if err != nil {
		return err
	}
	node, closeNode, err := f.nodeOf(cfg, log, storage.Options{ReadOnly: true, RepositoryHooks: cfg.Push.HookPolicy()}, map[process.Class]process.Limits{repo.ClassRefs: config.RefsLimits()})
	if err != nil {
		return err
	}
	s := &server{node: node}
	s.addLocal(cfg, log, lanes)
	l := newPairs()
	served := make(chan error, 1)
	go func() { served <- s.local.serve(l) }()
	err = withClient("http://localhost:1", client.Options{Dial: l.dial}, do)
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeLimit)
	defer cancel()
	return errors.Join(err, s.local.shutdown(limit), <-served, closeNode())
}

// importer is a node for one import, beside the server if one runs: what it brings in appears below the root at once, and no lock is needed.
func (f *nodeFinder) importer(log *slog.Logger) (node *storage.Node, closeAll func() error, err error) {
	cfg, err := f.load()
	if err != nil {
		return nil, nil, err
	}
	if err := f.actAsOwner(&cfg); err != nil {
		return nil, nil, err
	}
	return f.nodeOf(cfg, log, storage.Options{}, map[process.Class]process.Limits{
		storage.ClassUpstream: config.UpstreamLimits(), storage.ClassManage: config.ManageLimits(), repo.ClassRefs: config.RefsLimits(),
	})
}

// nodeOf is a node on the repositories that sends and takes no packs.
func (f *nodeFinder) nodeOf(cfg config.Config, log *slog.Logger, o storage.Options, classes map[process.Class]process.Limits) (
	node *storage.Node, closeAll func() error, err error) {
	runner, err := process.New(process.Options{Git: cfg.Git.Program, Log: log, Reaper: reaperProgram(&cfg, f.env.Program), Classes: classes})
	if err != nil {
		return nil, nil, err
	}
	closeRunner := func() error {
		limit, cancel := context.WithTimeout(context.Background(), closeLimit)
		defer cancel()
		return runner.Close(limit)
	}
	o.Root, o.Hidden, o.Policy, o.Log, o.Runner = cfg.Root, []string{cfg.State, cfg.Cache.Dir}, cfg.Fetch.Policy(), log, runner
	o.Tables = repo.NewTables(runner)
	if node, err = storage.New(nil, o); err != nil {
		return nil, nil, errors.Join(err, closeRunner())
	}
	return node, func() error { return errors.Join(closeRunner(), node.Close()) }, nil
}

// pairs is a listener within the process: each connection is a pair of sockets.
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
