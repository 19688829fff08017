package command

import (
	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/config"
)

func serveCommand(env Env) *cobra.Command {
	return roleCommand(config.RoleServe, env, &cobra.Command{
		Short: "Serve the repositories below a directory",
		Long: `Serve answers fetches over smart HTTP (protocol v0, v1 and v2) for every bare repository and .git directory below --root, by its
path relative to it, with or without ".git". Repositories appear and go as the directory changes; nothing is
registered. With --ssh they are served over SSH as well. Metrics, health and profiles are on the private listener
(--ops), the control API on --listen, if there is one.

SIGTERM or SIGINT ends it: readiness turns red, running fetches may end within shutdown.grace, a second
signal ends it at once. SIGHUP reads the configuration again.`,
		Example: `  packhorse serve --root /srv/git
  git clone http://127.0.0.1:8080/team/app              # from /srv/git/team/app.git

  packhorse serve --root /srv/git --http :8080 --public-read --tls-cert cert.pem --tls-key key.pem
  packhorse serve --config /etc/packhorse.toml --log-level debug`,
	})
}
