package command

import (
	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/server/config"
	"github.com/packhorse-git/packhorse/internal/server/roles"
)

// signalsHelp is a part of the help of each role.
const signalsHelp = `SIGTERM or SIGINT stops the process: running requests may finish within shutdown.grace. A second
signal stops it at once. SIGHUP reads the configuration again.`

// roleCommand completes the command that runs a role.
func roleCommand(role config.Role, env Env, cmd *cobra.Command) *cobra.Command {
	cmd.Use, cmd.Args = string(role), noArgs
	src := config.AddFlags(cmd.Flags(), role, env.Getenv)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := src.LoadChecked()
		if err != nil {
			return usage(err)
		}
		return roles.Run(cmd.Context(), env.process(), src, cfg)
	}
	return cmd
}

func serveCommand(env Env) *cobra.Command {
	return roleCommand(config.RoleServe, env, &cobra.Command{
		Short: "Serve the repositories below a directory",
		Long: `Serve answers fetches and pushes over smart HTTP, and over SSH with --ssh. It serves every bare repository and every
.git directory below --root, by its path relative to --root, with or without ".git". Repositories need no registration.

Metrics, health checks and profiles are on the private listener (--ops). The control API is on --listen, if it is set.

` + signalsHelp,
		Example: `  packhorse serve --root /srv/git
  git clone http://127.0.0.1:8080/team/app              # from /srv/git/team/app.git

  packhorse serve --root /srv/git --http :8080 --public-read --tls-cert cert.pem --tls-key key.pem
  packhorse serve --config /etc/packhorse.toml --log-level debug`,
	})
}

func storageCommand(env Env) *cobra.Command {
	return roleCommand(config.RoleStorage, env, &cobra.Command{
		Short: "Serve the repositories below a directory to gateways",
		Long: `Storage serves the repositories below --root to gateways on --listen. Git clients connect to a gateway. An address that
other machines can reach needs storage.client_ca (mutual TLS) or storage.secret_file in the configuration.

` + signalsHelp,
		Example: `  packhorse storage --root /srv/git --listen unix:/run/packhorse/node.sock
  packhorse storage --root /srv/git --listen 127.0.0.1:9100 --ops 127.0.0.1:9091
  packhorse storage --config /etc/packhorse.toml        # with [storage] listen and secret_file`,
	})
}

func gatewayCommand(env Env) *cobra.Command {
	return roleCommand(config.RoleGateway, env, &cobra.Command{
		Short: "Answer Git clients, and send their requests to storage nodes",
		Long: `Gateway answers Git clients on --http and sends their requests to storage nodes: those of --node, or of the [[node]]
tables of the configuration. [[route]] tables name the nodes that have the repositories below a path. Without routes
every node has all repositories. A node on another machine needs tls_ca or secret_file in its [[node]] table.

"packhorse drain node NAME" stops new requests to a node.

` + signalsHelp,
		Example: `  packhorse gateway --node a=unix:/run/packhorse/node.sock
  packhorse gateway --node a=127.0.0.1:9100 --node b=127.0.0.1:9101,2 --http 127.0.0.1:8080 --ops 127.0.0.1:9090
  packhorse gateway --config /etc/packhorse.toml        # with [[node]] and [[route]] tables
  packhorse nodes`,
	})
}

func searchCommand(env Env) *cobra.Command {
	cmd := roleCommand(config.RoleSearch, env, &cobra.Command{
		Short: "Index the repositories of storage nodes, and search them for gateways",
		Long: `Search indexes the repositories of storage nodes, and answers the searches of gateways on --listen. The nodes are those
of --node, or of the [[node]] and [[route]] tables of the configuration. The index is below the state directory; a lost
index is rebuilt.

Callers on --listen can search all repositories. An address that other machines can reach therefore needs
search.client_ca (mutual TLS) or search.secret_file in the configuration.

` + signalsHelp,
		Example: `  packhorse search --node a=unix:/run/packhorse/node.sock --listen unix:/run/packhorse/search.sock
  packhorse search --node a=127.0.0.1:9100 --listen 127.0.0.1:9200 --ops 127.0.0.1:9092
  packhorse gateway --node a=127.0.0.1:9100 --search 127.0.0.1:9200
  packhorse search status --wait`,
	})
	cmd.AddCommand(searchStatusCommand(env))
	return cmd
}
