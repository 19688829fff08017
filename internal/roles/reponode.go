package roles

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/packhorse-git/packhorse/client"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/repo"
	"github.com/packhorse-git/packhorse/internal/storage"
)

// nodeFinder finds the node that a repo command asks.
type nodeFinder struct {
	env                 Env
	config, root, state string
	node                NodeConfig // --node; its address is empty without one
}

func (f *nodeFinder) addFlags(flags *pflag.FlagSet, elsewhere bool) {
	flags.StringVar(&f.config, "config", "", "find the root and the state directory in the configuration `FILE`")
	flags.StringVar(&f.root, "root", "", "the repositories are below `DIR`")
	flags.StringVar(&f.state, "state", "", "state directory of the server on them, `DIR` (default ROOT/.packhorse)")
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
func (f *nodeFinder) load() (Config, error) {
	cfg := DefaultConfig()
	if f.config != "" {
		if err := loadFile(f.config, &cfg, origins{}); err != nil {
			return cfg, usage(err)
		}
	}
	cfg.Root, cfg.State = cmp.Or(f.root, cfg.Root), cmp.Or(f.state, cfg.State)
	cfg.complete(roleServe, f.env)
	if cfg.Root == "" {
		return cfg, usage(errors.New("which repositories? name the directory that holds them with --root DIR or --config FILE, or a node with --node ADDRESS"))
	}
	if info, err := os.Stat(cfg.Root); err != nil || !info.IsDir() {
		return cfg, usage(fmt.Errorf("the root %s is no directory", cfg.Root))
	}
	return cfg, nil
}

// with calls do with a client of the node.
func (f *nodeFinder) with(ctx context.Context, do func(*client.Client) error) error {
	if f.node.Address != "" {
		return f.withElsewhere(do)
	}
	cfg, err := f.load()
	if err != nil {
		return err
	}
	socket := adminSocket(cfg.State)
	if err := checkSocketPath(socket); err != nil {
		return fmt.Errorf("%w; name a shorter directory with --state, here and for the server", err)
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

// A state directory can be taken for a moment by a process that does not answer yet, or any more: another command, a server at its start.
const (
	commandPatience = 10 * time.Second
	commandPause    = 20 * time.Millisecond
)

func (f *nodeFinder) withElsewhere(do func(*client.Client) error) error {
	trust, err := f.node.trust(slog.New(slog.DiscardHandler))
	if err != nil {
		return usage(err)
	}
	return withClient(f.node.Address, trust.client(f.node.ServerName), do)
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
func (f *nodeFinder) withOwn(ctx context.Context, cfg Config, do func(*client.Client) error) (err error) {
	cfg.Cache.Enabled, cfg.Maintenance.Enabled, cfg.Warmup.Enabled, cfg.Cgroup.Enabled, cfg.Storage.Listen, cfg.Ops.Address = false, false, false, false, "", ""
	log, reg := slog.New(slog.DiscardHandler), prometheus.NewRegistry()
	s, err := newStorage(cfg, log, reg, versionOf(f.env).Version, f.env.Program)
	if err != nil {
		return err
	}
	socket := adminSocket(cfg.State)
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

// importer is a node for one import, beside the server if one runs: what it brings in appears below the root at once, and no lock is needed.
func (f *nodeFinder) importer(log *slog.Logger) (node *storage.Node, closeAll func() error, err error) {
	cfg, err := f.load()
	if err != nil {
		return nil, nil, err
	}
	runner, err := process.New(process.Options{Git: cfg.Git.Program, Log: log, Reaper: cfg.reaper(f.env.Program), Classes: map[process.Class]process.Limits{
		storage.ClassUpstream: upstreamLimits(), storage.ClassManage: manageLimits(), repo.ClassRefs: refsLimits(),
	}})
	if err != nil {
		return nil, nil, err
	}
	closeRunner := func() error {
		limit, cancel := context.WithTimeout(context.Background(), closeLimit)
		defer cancel()
		return runner.Close(limit)
	}
	node, err = storage.New(nil, storage.Options{
		Root: cfg.Root, Hidden: []string{cfg.State, cfg.Cache.Dir}, Policy: cfg.Fetch.policy(), Log: log, Runner: runner, Tables: repo.NewTables(runner),
	})
	if err != nil {
		return nil, nil, errors.Join(err, closeRunner())
	}
	return node, func() error { return errors.Join(closeRunner(), node.Close()) }, nil
}
