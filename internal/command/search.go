package command

import (
	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/config"
)

func searchCommand(env Env) *cobra.Command {
	cmd := roleCommand(config.RoleSearch, env, &cobra.Command{
		Short: "Index the repositories of storage nodes, and search them for gateways",
		Long: `Search keeps an index of the repositories of the storage nodes that --node names (or [[node]] and [[route]] tables, as for a gateway),
and answers the searches of gateways on --listen. The index is below its state directory and is made anew if it is lost. An address
that other machines can reach needs search.client_ca (mutual TLS) or search.secret_file in the configuration.

It reads every repository: whoever reaches --listen may search them all, and gateways are trusted to say who may see what.

SIGTERM or SIGINT ends it; running searches may end within shutdown.grace, a second signal ends it at once. SIGHUP reads the configuration again:
nodes and routes come and go without a failed search.`,
		Example: `  packhorse search --node a=unix:/run/packhorse/node.sock --listen unix:/run/packhorse/search.sock
  packhorse search --node a=127.0.0.1:9100 --listen 127.0.0.1:9200 --ops 127.0.0.1:9092
  packhorse gateway --node a=127.0.0.1:9100 --search 127.0.0.1:9200
  packhorse search status --wait`,
	})
	cmd.AddCommand(searchStatusCommand(env))
	return cmd
}
