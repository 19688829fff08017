package command

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/git/reaper"
)

// reaperCommand explains a command that users do not run. A server starts this program with it and a pipe, and package
// reaper then takes over before the command line is parsed.
func reaperCommand() *cobra.Command {
	return &cobra.Command{
		Use: reaper.Name + " LOG-FORMAT", Hidden: true, DisableFlagParsing: true, Args: exactArgs(1, "the log's format"),
		Short: "End the Git commands of a killed server",
		RunE: func(*cobra.Command, []string) error {
			return usage(errors.New("only a server starts the reaper, with a pipe"))
		},
	}
}
