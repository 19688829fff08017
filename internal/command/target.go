package command

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"github.com/packhorse-git/packhorse/internal/config"
	"github.com/packhorse-git/packhorse/internal/statedir"
)

// target is the server that a command is about: --root, --state and --config, as the server itself was given them. The
// flags override the file.
type target struct {
	env                 Env
	root, state, config string

	named bool            // the flags or the file name the state directory
	noter *statedir.Owner // who noted the state directory in the root; nil: nobody, or root
}

// addFlags defines --root, --state and --config. The usage text of --state says the default.
func (t *target) addFlags(flags *pflag.FlagSet, stateUsage string) {
	flags.StringVar(&t.root, "root", "", "the server's root `DIR`, which holds the repositories")
	flags.StringVar(&t.state, "state", "", stateUsage)
	flags.StringVar(&t.config, "config", "", "read the server's root and state directory from its configuration `FILE`")
}

// load reads the target's configuration and creates nothing. A root that is given has to exist. Without a state
// directory in the flags or the file, it is the one that the last server on the root noted there, or ROOT/.packhorse.
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

// server is load for commands about "packhorse serve" or a storage node, which have a root; ask completes the question
// "which repositories?" with the ways to answer it.
func (t *target) server(ask string) (config.Config, error) {
	cfg, err := t.load()
	switch {
	case err != nil:
	case cfg.Root == "":
		err = usage(errors.New("which repositories? name the directory that holds them with --root DIR or --config FILE" +
			ask))
	default:
		err = usage(config.CheckRoot(cfg.Root))
	}
	cfg.Complete(config.RoleServe, t.env.Getenv)
	return cfg, err
}

// stateDir is the absolute path of the state directory of a server with the role, or of "packhorse serve" if the target
// has a root.
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

// opsAddress returns the HOST:PORT of a private listener that a flag names, also as a URL.
func opsAddress(flag string) (string, error) {
	address := strings.TrimSuffix(strings.TrimPrefix(flag, "http://"), "/")
	if _, err := config.SplitAddress(address); err != nil {
		return "", fmt.Errorf("--ops: %w", err)
	}
	return address, nil
}

// stateOwner is the owner of the state directory or, before there is one, of the root. Where a note or a link in the
// root says which directory it is, that is who wrote it: whoever may write to the root does not have root's commands
// run as root by naming a directory of root's.
func (t *target) stateOwner(cfg *config.Config) (statedir.Owner, error) {
	if t.noter != nil {
		return *t.noter, nil
	}
	if info, err := os.Lstat(cfg.State); err == nil && (t.named || info.IsDir()) {
		return statedir.OwnerOf(cfg.State)
	}
	return statedir.OwnerOf(cfg.Root)
}
