package command

import (
	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/config"
)

func storageCommand(env Env) *cobra.Command {
	return roleCommand(config.RoleStorage, env, &cobra.Command{
		Short: "Own the repositories below a directory, for gateways elsewhere",
		Long: `Storage owns the repositories below --root and answers gateways on --listen: the control API, and connections for bulk bytes.
Git clients talk to a gateway. An address that other machines can reach needs storage.client_ca (mutual TLS) or
storage.secret_file in the configuration.

SIGTERM or SIGINT ends it: gateways are told to go elsewhere, running fetches may end within shutdown.grace, a second
signal ends it at once. SIGHUP reads the configuration again.`,
		Example: `  packhorse storage --root /srv/git --listen unix:/run/packhorse/node.sock
  packhorse storage --root /srv/git --listen 127.0.0.1:9100 --ops 127.0.0.1:9091
  packhorse storage --config /etc/packhorse.toml        # with [storage] listen and secret_file`,
	})
}
