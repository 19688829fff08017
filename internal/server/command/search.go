package command

import (
	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/server/config"
)

func searchCommand(env Env) *cobra.Command {
	cmd := roleCommand(config.RoleSearch, env, &cobra.Command{
		Short: "Index the repositories of storage nodes, and search them for gateways",
		Long: `Search indexes the repositories of storage nodes, and answers the searches of gateways on --listen. The nodes are those
of --node, or of the [[node]] and [[route]] tables of the configuration. The index is below the state directory; a lost
index is rebuilt.

The process reads every repository, and callers on --listen can search all of them: gateways check permissions. An
address that other machines can reach therefore needs search.client_ca (mutual TLS) or search.secret_file in the
configuration.

SIGTERM or SIGINT stops the process: running searches may finish within shutdown.grace. A second signal stops it at once.
SIGHUP reads the configuration again: nodes and routes change without failed searches.`,
		Example: `  packhorse search --node a=unix:/run/packhorse/node.sock --listen unix:/run/packhorse/search.sock
  packhorse search --node a=127.0.0.1:9100 --listen 127.0.0.1:9200 --ops 127.0.0.1:9092
  packhorse gateway --node a=127.0.0.1:9100 --search 127.0.0.1:9200
  packhorse search status --wait`,
	})
	cmd.AddCommand(searchStatusCommand(env))
	return cmd
}
