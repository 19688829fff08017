package roles

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

func configCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Check a configuration file, show what holds",
		Args:  noArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(configCheckCommand(), configShowCommand())
	return cmd
}

func configCheckCommand() *cobra.Command {
	var valuesOnly bool
	cmd := &cobra.Command{
		Use:   "check FILE",
		Short: "Tell whether serve would start with this file",
		Long: `Check reads a configuration file as serve does and reports every mistake with its line. It exits 0 if serve would
start with it and 2 if not. A file without "root" is fine: --root can name it.`,
		Example: `  packhorse config check /etc/packhorse.toml
  packhorse config check --values-only packhorse.toml   # for another machine: look at no directory, certificate or program`,
		Args: exactArgs(1, "one FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			src := source{file: args[0], flags: cmd.Flags()}
			cfg, _, err := src.load()
			if err == nil {
				err = cfg.check()
			}
			if err == nil && !valuesOnly {
				if cfg.Root == "" {
					cfg.Root = "."
				}
				err = cfg.checkDisk()
			}
			if err != nil {
				return usage(err)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s: good\n", args[0])
			return nil
		},
	}
	cmd.Flags().BoolVar(&valuesOnly, "values-only", false, "look at the values only, not at what this machine has")
	return cmd
}

func configShowCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Show every setting and where its value came from",
		Long: `Show prints the settings that serve would use with the same flags: a complete configuration file in which each line
ends with where the value came from: "default", FILE:LINE, or the flag. "auto" stands where serve chooses: git.slots and
git.threads by this machine's CPUs, cache.max_bytes and cache.min_free by the file system when it starts.`,
		Example: `  packhorse config show
  packhorse config show --config /etc/packhorse.toml --http 127.0.0.1:9000
  packhorse config show --root /srv/git > packhorse.toml   # a file to start from`,
		Args: noArgs,
	}
	src := addConfigFlags(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, from, err := src.load()
		if err != nil {
			return usage(err)
		}
		return showConfig(cmd.OutOrStdout(), &cfg, from)
	}
	return cmd
}

func showConfig(w io.Writer, cfg *Config, from origins) error {
	table, auto := "", cfg.automatic()
	var out strings.Builder
	for _, s := range settings(cfg) {
		prefix, name, nested := strings.Cut(s.Key, ".")
		if !nested {
			prefix, name = "", s.Key
		}
		if prefix != table {
			table = prefix
			fmt.Fprintf(&out, "\n[%s]\n", table)
		}
		origin := from[s.Key]
		if choice := auto[s.Key]; choice != "" {
			origin += " (" + choice + ")"
		}
		fmt.Fprintf(&out, "%-40s # %s\n", name+" = "+s.TOML(), origin)
	}
	_, err := io.WriteString(w, out.String())
	return err
}
