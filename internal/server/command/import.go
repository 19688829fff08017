package command

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/server/cli"
	"github.com/packhorse-git/packhorse/internal/server/migrate"
)

func importCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "import",
		Short: "Convert the configuration of gitolite, cgit or gitweb",
		Long: `Import reads the configuration of another Git server and writes groups, rules, SSH keys, and the settings of repositories.
It changes no repository and no server. Each line that has no equivalent is printed with its file and number.

Repositories are plain bare ones on all these servers. Serve their directory, or a copy of it (docs/how-to/move.md).`,
		Example: `  packhorse import gitolite gitolite-admin --output /tmp/import
  packhorse import cgit /etc/cgitrc --dry-run`,
	},
		importFrom("gitolite CONF|DIR", "Convert gitolite's rules, groups, keys, descriptions and owners",
			`CONF is conf/gitolite.conf, and DIR is a clone of gitolite-admin, which also has the keys.

The rules are printed as TOML for the configuration file. With --output, access.toml has them, and keys/USER has the SSH
keys of each user (ssh.authorized_keys).`, migrate.Gitolite),
		importFrom("cgit CGITRC", "Convert cgit's list of repositories, descriptions and owners",
			"CGITRC is the configuration of cgit, mostly /etc/cgitrc.", migrate.Cgit),
		importFrom("gitweb CONF", "Convert gitweb's list of projects, descriptions and owners",
			"CONF is the configuration of gitweb, mostly /etc/gitweb.conf. It is Perl: only plain assignments are read.",
			migrate.Gitweb))
}

// importFrom is the command for one kind of server.
func importFrom(use, short, about string, read func(string) (*migrate.Result, error)) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short,
		Long: about + `

With --output, repositories.sh is a script that copies repositories to $ROOT, if their directories are known, and sets
descriptions and owners. It can be run again.`,
		Args: exactArgs(1, "one path"),
	}
	output := cmd.Flags().String("output", "", "write files to the new directory `DIR`")
	dryRun := cmd.Flags().Bool("dry-run", false, "only print what has no equivalent, and counts")
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		r, err := read(args[0])
		if err != nil {
			return err
		}
		for _, note := range r.Notes {
			fmt.Fprintln(cmd.ErrOrStderr(), cli.Printable(note.String()))
		}
		if *output != "" && !*dryRun {
			if err := r.Write(*output); err != nil {
				return err
			}
		}
		return printResult(cmd, *asJSON, r, func(w io.Writer) error {
			if *output == "" && !*dryRun && len(r.Rules) > 0 {
				_, err := io.WriteString(w, r.Access())
				return err
			}
			_, err := fmt.Fprintf(w, "groups: %d, rules: %d, users with keys: %d, repositories: %d, "+
				"lines without an equivalent: %d\n",
				len(r.Groups), len(r.Rules), len(r.Keys), len(r.Repositories), len(r.Notes))
			return err
		})
	}
	return cmd
}
