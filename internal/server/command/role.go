package command

import (
	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/server/config"
	"github.com/packhorse-git/packhorse/internal/server/roles"
)

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
