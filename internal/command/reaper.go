package command

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/git/reaper"
)

// reaperCommand is what is left to say of the command as which a process that runs git starts this program again: with
// a pipe to it, package reaper has begun before.
func reaperCommand() *cobra.Command {
	return &cobra.Command{
		Use: reaper.Name + " LOG-FORMAT", Hidden: true, DisableFlagParsing: true, Args: exactArgs(1, "the log's format"),
		Short: "End what the git commands of a killed server leave, for that server",
		RunE: func(*cobra.Command, []string) error {
			return usage(errors.New("a server starts the reaper by itself, with a pipe to it; there is no other use for it"))
		},
	}
}
