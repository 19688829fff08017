package command

import (
	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/server/config"
)

func gatewayCommand(env Env) *cobra.Command {
	return roleCommand(config.RoleGateway, env, &cobra.Command{
		Short: "Answer Git clients, and send their requests to storage nodes",
		Long: `Gateway answers Git clients on --http and sends their requests to storage nodes: those of --node, or of the [[node]]
tables of the configuration. It has no repositories. [[route]] tables name the nodes that have the repositories below a
path. Without routes every node has all repositories, and the least busy node that is up gets the request. A node on
another machine needs tls_ca or secret_file in its [[node]] table.

SIGHUP reads the configuration again: nodes and routes change without failed requests. "packhorse drain node NAME" stops
new requests to a node. SIGTERM or SIGINT stops the gateway: readiness turns red, and running requests may finish within
shutdown.grace. A second signal stops it at once.`,
		Example: `  packhorse gateway --node a=unix:/run/packhorse/node.sock
  packhorse gateway --node a=127.0.0.1:9100 --node b=127.0.0.1:9101,2 --http 127.0.0.1:8080 --ops 127.0.0.1:9090
  packhorse gateway --config /etc/packhorse.toml        # with [[node]] and [[route]] tables
  packhorse nodes`,
	})
}
