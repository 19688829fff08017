package command

import (
	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/server/config"
)

func storageCommand(env Env) *cobra.Command {
	return roleCommand(config.RoleStorage, env, &cobra.Command{
		Short: "Serve the repositories below a directory to gateways",
		Long: `Storage serves the repositories below --root to gateways on --listen. Git clients connect to a gateway. An address that
other machines can reach needs storage.client_ca (mutual TLS) or storage.secret_file in the configuration.

SIGTERM or SIGINT stops the node: gateways use other nodes, and running requests may finish within shutdown.grace. A
second signal stops it at once. SIGHUP reads the configuration again.`,
		Example: `  packhorse storage --root /srv/git --listen unix:/run/packhorse/node.sock
  packhorse storage --root /srv/git --listen 127.0.0.1:9100 --ops 127.0.0.1:9091
  packhorse storage --config /etc/packhorse.toml        # with [storage] listen and secret_file`,
	})
}
