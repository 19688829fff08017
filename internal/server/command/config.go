package command

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/server/config"
)

func configCommand(env Env) *cobra.Command {
	return group(&cobra.Command{Use: "config", Short: "Write, check and show the configuration"},
		configInitCommand(), configCheckCommand(env), configShowCommand(env))
}

func configInitCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "init [FILE]",
		Short: "Write a configuration file to start from",
		Long: `Init writes a configuration file with the keys that most servers set, each with a comment. Without FILE it prints the
file. It does not replace a file that exists.`,
		Example: `  packhorse config init /etc/packhorse.toml
  packhorse config init | less`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 || args[0] == "-" {
				_, err := io.WriteString(cmd.OutOrStdout(), config.Starter)
				return err
			}
			f, err := os.OpenFile(args[0], os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
			if errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("%s exists already: remove it, or name another file", args[0])
			}
			if err != nil {
				return err
			}
			_, err = io.WriteString(f, config.Starter)
			if err = errors.Join(err, f.Close()); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(),
				"wrote %s; set root in it, and check it with: packhorse config check %[1]s\n", args[0])
			return err
		},
	}
}

func configCheckCommand(env Env) *cobra.Command {
	var valuesOnly, connect bool
	var asJSON *bool
	role := config.RoleServe
	cmd := &cobra.Command{
		Use:   "check FILE",
		Short: "Report every mistake in a configuration file",
		Long: `Check reads a configuration file as serve, or the role of --role, does, and reports every mistake with its line: unknown
keys, invalid values, missing files. It exits with 0 if the server would start with the file, and with 2 if not. The key
root may be missing, since --root can set it.

Warnings, such as certificates that expire soon or patterns that match no repository, do not prevent a start. Host names
are looked up; --connect also connects to them.`,
		Example: `  packhorse config check /etc/packhorse.toml
  packhorse config check --role gateway /etc/packhorse.toml
  packhorse config check --json /etc/packhorse.toml
  packhorse config check --values-only packhorse.toml   # for another machine, without files and programs of this one`,
		Args: exactArgs(1, "one FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			src := config.FromFile(role, args[0], env.Getenv)
			cfg, f := src.Inspect(!valuesOnly)
			if !valuesOnly && !f.Fatal() {
				cfg.Warnings(cmd.Context(), role, connect, f)
			}
			f.Sort()
			err := usage(f.Err())
			if *asJSON {
				list := append([]*config.Mistake{}, f.All...)
				if failed := encodeJSON(cmd.OutOrStdout(), struct {
					Good     bool              `json:"good"`
					Findings []*config.Mistake `json:"findings"`
				}{err == nil, list}); failed != nil {
					return failed
				}
				return err
			}
			warnings := 0
			for _, m := range f.All {
				if m.Warning {
					warnings++
					fmt.Fprintf(cmd.ErrOrStderr(), "packhorse: %s\n", m)
				}
			}
			switch {
			case err != nil:
				return err
			case warnings > 0:
				fmt.Fprintf(cmd.OutOrStdout(), "%s: good, with warnings: %d\n", args[0], warnings)
			default:
				fmt.Fprintf(cmd.OutOrStdout(), "%s: good\n", args[0])
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&valuesOnly, "values-only", false, "check the values only, and not this machine")
	cmd.Flags().BoolVar(&connect, "connect", false, "connect to the hosts of webhooks and origins")
	asJSON = jsonFlag(cmd)
	cmd.Flags().Var(&role, "role", "check for `ROLE`: serve, mirror, storage, gateway or search")
	return cmd
}

func configShowCommand(env Env) *cobra.Command {
	role := config.RoleServe
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Show every setting and the origin of its value",
		Long: `Show prints all settings of serve, or of the role of --role, as a configuration file. Each line ends with the origin of
the value: "default", FILE:LINE, or the flag. "auto" marks values that the server chooses at its start: git.slots and
push.slots by the CPUs of the machine, cache.max_bytes by the file system.`,
		Example: `  packhorse config show
  packhorse config show --config /etc/packhorse.toml --http 127.0.0.1:9000
  packhorse config show --role gateway --node a=10.0.0.7:9100
  packhorse config show --root /srv/git > packhorse.toml   # a file with every setting`,
		Args: noArgs,
	}
	src := config.AddFlags(cmd.Flags(), config.RoleAny, env.Getenv)
	cmd.Flags().Var(&role, "role", "show the settings of `ROLE`: serve, mirror, storage, gateway or search")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		src.Role = role
		cfg, from, err := src.Load()
		if err != nil {
			return usage(err)
		}
		return config.ShowConfig(cmd.OutOrStdout(), &cfg, from)
	}
	return cmd
}
