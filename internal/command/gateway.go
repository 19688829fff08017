package command

import (
	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/config"
)

func gatewayCommand(env Env) *cobra.Command {
	return roleCommand(config.RoleGateway, env, &cobra.Command{
		Short: "Answer clients for storage nodes elsewhere",
		Long: `Gateway answers git clients on --http and asks the storage nodes that --node or [[node]] tables name; it owns no repository. A [[route]]
table says which nodes have the repositories below a path; without any, every node has all of them, and the least busy one that is
up is asked. A node on another machine needs tls_ca or secret_file in its [[node]] table.

SIGHUP reads the configuration again: nodes and routes come and go without a failed request. "packhorse drain node NAME" keeps new
requests from a node. SIGTERM or SIGINT ends the gateway: readiness turns red, running fetches may end within shutdown.grace, a second
signal ends it at once.`,
		Example: `  packhorse gateway --node a=unix:/run/packhorse/node.sock
  packhorse gateway --node a=127.0.0.1:9100 --node b=127.0.0.1:9101,2 --http 127.0.0.1:8080 --ops 127.0.0.1:9090
  packhorse gateway --config /etc/packhorse.toml        # with [[node]] and [[route]] tables
  packhorse nodes`,
	})
}
