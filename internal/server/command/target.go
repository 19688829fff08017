package command

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/server/config"
	"github.com/packhorse-git/packhorse/internal/server/statedir"
)

// target identifies a server by its flags --root, --state and --config. The first two override the file.
type target struct {
	env                 Env
	root, state, config string

	named bool            // the flags or the file name the state directory
	noter *statedir.Owner // owner of the note about the state directory in the root; nil without a note, or if it is root
}

// addFlags defines --root, --state and --config. The usage text of --state says the default.
func (t *target) addFlags(flags *pflag.FlagSet, stateUsage string) {
	flags.StringVar(&t.root, "root", "", "the server's root `DIR`, which holds the repositories")
	flags.StringVar(&t.state, "state", "", stateUsage)
	flags.StringVar(&t.config, "config", "", "read the server's root and state directory from its configuration `FILE`")
}

// load reads the configuration of the target. A root in the flags has to exist. If neither the flags nor the file name
// a state directory, it is the one in the note of the last server on the root, or ROOT/.packhorse.
func (t *target) load() (config.Config, error) {
	cfg := config.DefaultConfig()
	if t.config != "" {
		if err := config.LoadFile(t.config, &cfg, config.Origins{}); err != nil {
			return cfg, usage(err)
		}
	}
	cfg.Root, cfg.State = cmp.Or(t.root, cfg.Root), cmp.Or(t.state, cfg.State)
	t.named = cfg.State != ""
	if cfg.Root == "" || t.root == "" && cfg.State != "" { // a file for all roles may name a root of another machine
		return cfg, nil
	}
	if err := config.CheckRoot(cfg.Root); err != nil || cfg.State != "" {
		return cfg, usage(err)
	}
	noted, by, err := statedir.ReadNote(cfg.Root)
	if by.Uid != 0 {
		t.noter = &by
	}
	cfg.State = cmp.Or(noted, config.DefaultState(config.RoleServe, cfg.Root, t.env.Getenv))
	return cfg, usage(err)
}

// runningConfig returns the process that uses a state directory, and its configuration file; they are empty if there is
// none. The error is of a file that others may have written, or that this process may not read.
func runningConfig(state string) (running statedir.Server, file string, err error) {
	running, err = statedir.Running(state)
	if err != nil || running.Config == "" {
		return running, "", nil
	}
	file, err = statedir.TrustedFile(running.Config)
	if err == nil {
		err = unix.Access(file, unix.R_OK)
	}
	return running, file, err
}

// server is load for servers with repositories. The text ask completes the error of a missing root with other ways to
// name a server.
func (t *target) server(ask string) (config.Config, error) {
	cfg, err := t.load()
	switch {
	case err != nil:
	case cfg.Root == "" && t.config != "":
		err = usage(fmt.Errorf("%s has no root: add --root DIR%s", t.config, ask))
	case cfg.Root == "":
		err = usage(errors.New("which repositories? name the directory that holds them with --root DIR or --config FILE" +
			ask))
	default:
		err = usage(config.CheckRoot(cfg.Root))
	}
	cfg.Complete(config.RoleServe, t.env.Getenv)
	return cfg, err
}

// stateDir returns the absolute path of the state directory of a server with the role, or of "packhorse serve" if the
// target has a root.
func (t *target) stateDir(role config.Role) (string, error) {
	cfg, err := t.load()
	if err != nil {
		return "", err
	}
	state := cmp.Or(cfg.State, config.DefaultState(role, "", t.env.Getenv))
	if state == "" {
		return "", usage(errors.New("which server? name its state directory with --state DIR, or its repositories with " +
			"--root DIR"))
	}
	return filepath.Abs(state)
}

// opsUsage describes the flag --ops of commands that call privateListener.
const opsUsage = "the process's private listener, `HOST:PORT` (default 127.0.0.1:9090, or that of the server with --root, " +
	"--state or --config)"

// privateListener returns the host and port of the server's private listener. The value of the flag --ops overrides the
// target.
func (t *target) privateListener(flag string) (string, error) {
	ops := flag
	if ops == "" {
		cfg, err := t.load()
		if err != nil {
			return "", err
		}
		ops = cfg.Ops.Address
		if cfg.State != "" {
			running, err := statedir.Running(cfg.State)
			if err != nil && (t.state != "" || t.root != "") {
				return "", err
			}
			if ops = cmp.Or(running.Ops, ops); running.Ops == "" && err == nil {
				ops = ""
			}
		}
	}
	if ops == "" {
		return "", errors.New("the server has no private listener: set ops.address")
	}
	ops, err := opsAddress(ops)
	return ops, usage(err)
}

// opsAddress returns the HOST:PORT of a private listener that a flag names, also as a URL.
func opsAddress(flag string) (string, error) {
	address := strings.TrimSuffix(strings.TrimPrefix(flag, "http://"), "/")
	if _, err := config.SplitAddress(address); err != nil {
		return "", fmt.Errorf("--ops: %w", err)
	}
	return address, nil
}

// stateOwner returns the owner of the state directory, or else of the root. If a note or a link in the
// root names the directory, it returns the owner of the note or the link. Otherwise users who can write to the root
// could make a command of root run as root by naming a directory that belongs to root.
func (t *target) stateOwner(cfg *config.Config) (statedir.Owner, error) {
	if t.noter != nil {
		return *t.noter, nil
	}
	if info, err := os.Lstat(cfg.State); err == nil && (t.named || info.IsDir()) {
		return statedir.OwnerOf(cfg.State)
	}
	return statedir.OwnerOf(cfg.Root)
}
