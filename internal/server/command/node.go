package command

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/client"
	"github.com/packhorse-git/packhorse/internal/node/storage"
	"github.com/packhorse-git/packhorse/internal/server/config"
	"github.com/packhorse-git/packhorse/internal/server/roles"
	"github.com/packhorse-git/packhorse/internal/server/statedir"
)

// nodeFinder finds the node for a command on repositories.
type nodeFinder struct {
	target
	node      config.NodeConfig // --node; its address is empty without one
	elsewhere bool              // the command has the flag --node
	cache     bool              // the command needs the pack cache
}

// addFlags defines the flags of a target, and with elsewhere those for another machine's node.
func (f *nodeFinder) addFlags(flags *pflag.FlagSet, elsewhere bool) {
	f.elsewhere = elsewhere
	f.target.addFlags(flags, "the server's state directory, `DIR` (default that of the last server on the root)")
	if !elsewhere {
		return
	}
	flags.StringVar(&f.node.Address, "node", "", "use the storage node at `ADDRESS`, HOST:PORT or unix:PATH")
	flags.StringVar(&f.node.SecretFile, "secret-file", "", "`FILE` with the secret of the node")
	flags.StringVar(&f.node.TLSCA, "tls-ca", "",
		"use TLS, and trust certificates signed by the authorities in the PEM `FILE`")
	flags.StringVar(&f.node.TLSCert, "tls-cert", "", "PEM `FILE` with the certificate and chain for the node")
	flags.StringVar(&f.node.TLSKey, "tls-key", "", "PEM `FILE` with the private key of --tls-cert")
	flags.StringVar(&f.node.ServerName, "server-name", "",
		"`NAME` in the node's certificate, if it is not the host of the address")
}

// load returns the configuration of the repositories on this machine.
func (f *nodeFinder) load() (config.Config, error) {
	ask := ""
	if f.elsewhere {
		ask = ", or a node with --node ADDRESS"
	}
	return f.server(ask)
}

// read calls do with a client of the node, for calls that do not change repositories. If no server answers, the command
// reads the repositories itself, without a state directory.
func (f *nodeFinder) read(ctx context.Context, do func(*client.Client) error) error {
	if f.node.Address != "" {
		return f.withElsewhere(do)
	}
	cfg, err := f.load()
	if err != nil {
		return err
	}
	if cfg.Store.Enabled() {
		return f.change(ctx, do) // the local cache belongs to one process, also for reads
	}
	socket := config.AdminSocket(cfg.State)
	if knock(socket) == nil {
		return withClient("unix:"+socket, client.Options{}, do)
	}
	return roles.RunNode(ctx, f.env.process(), cfg, roles.ReadNode, func(_ *storage.Node, c *client.Client) error {
		return do(c)
	})
}

// change is read for calls that change repositories. Only the process that has the state directory may change them, so
// the command takes it if no server has it.
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
		return fmt.Errorf("%w: name a shorter directory with --state, here and for the server", err)
	}
	if err := f.actAsOwner(&cfg); err != nil {
		return err
	}
	for patience := time.Now().Add(commandPatience); ; {
		state, err := statedir.Open(cfg.State)
		taken, ok := errors.AsType[*statedir.TakenError](err)
		switch {
		case err == nil:
			use := roles.ChangeNode
			if f.cache {
				use = roles.CacheNode
			}
			return errors.Join(roles.RunNode(ctx, f.env.process(), cfg, use, func(_ *storage.Node, c *client.Client) error {
				return do(c)
			}), state.Close())
		case !ok:
			return err
		}
		if err = knock(socket); err == nil {
			return withClient("unix:"+socket, client.Options{}, do)
		}
		if time.Now().After(patience) || ctx.Err() != nil {
			or := ""
			if f.elsewhere {
				or = "; or use --node ADDRESS"
			}
			return fmt.Errorf("%w%s: nothing answers at %s (%w)", taken, or, socket, err)
		}
		time.Sleep(commandPause)
	}
}

// actAsOwner switches a command that root started to the owner of the state directory, or else of the
// root. Files that it or Git creates then belong to the user of the server.
func (f *nodeFinder) actAsOwner(cfg *config.Config) error {
	owner, err := f.stateOwner(cfg)
	if err != nil || !owner.IsOther() || f.env.Become == nil {
		return err
	}
	if err := f.env.Become(owner); err != nil {
		return err
	}
	if unix.Access(f.env.Program, unix.X_OK) != nil { // for example below /root: Git runs without a reaper
		f.env.Program = ""
	}
	return nil
}

// Another command, or a server that starts or stops, may have the state directory for a moment without an answer on the
// socket.
const (
	commandPatience = 10 * time.Second
	commandPause    = 20 * time.Millisecond
)

func (f *nodeFinder) withElsewhere(do func(*client.Client) error) error {
	trust, err := f.node.LoadTrust(slog.New(slog.DiscardHandler))
	if err != nil {
		return usage(err)
	}
	return withClient(f.node.Address, roles.ClientOptions(trust, f.node.ServerName), do)
}

func withClient(address string, o client.Options, do func(*client.Client) error) error {
	node, err := client.New(address, o)
	if err != nil {
		return usage(err)
	}
	defer node.Close()
	return do(node)
}

// importing calls do with a node for one import. It works beside a running server.
func (f *nodeFinder) importing(ctx context.Context, do func(*storage.Node) error) (err error) {
	cfg, err := f.load()
	if err != nil {
		return err
	}
	if err := f.actAsOwner(&cfg); err != nil {
		return err
	}
	if _, err := statedir.ReadFormat(cfg.State); err != nil {
		return err
	}
	if cfg.Store.Enabled() { // the root can belong to a running node
		if cfg.Root, err = os.MkdirTemp("", "packhorse-import-"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(cfg.Root)) }()
		cfg.State = config.DefaultState(config.RoleStorage, cfg.Root, f.env.Getenv)
	}
	return roles.RunNode(ctx, f.env.process(), cfg, roles.ImportNode, func(n *storage.Node, _ *client.Client) error {
		return do(n)
	})
}
