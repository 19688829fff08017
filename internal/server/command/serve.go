package command

import (
	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/server/config"
)

func serveCommand(env Env) *cobra.Command {
	return roleCommand(config.RoleServe, env, &cobra.Command{
		Short: "Serve the repositories below a directory",
		Long: `Serve answers fetches and pushes over smart HTTP, and over SSH with --ssh. It serves every bare repository and every
.git directory below --root, by its path relative to --root, with or without ".git". Repositories need no registration.

Metrics, health checks and profiles are on the private listener (--ops). The control API is on --listen, if it is set.

SIGTERM or SIGINT stops the server: readiness turns red, and running requests may finish within shutdown.grace. A second
signal stops it at once. SIGHUP reads the configuration again.`,
		Example: `  packhorse serve --root /srv/git
  git clone http://127.0.0.1:8080/team/app              # from /srv/git/team/app.git

  packhorse serve --root /srv/git --http :8080 --public-read --tls-cert cert.pem --tls-key key.pem
  packhorse serve --config /etc/packhorse.toml --log-level debug`,
	})
}
