package roles

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/config"
	"github.com/packhorse-git/packhorse/internal/git/reaper"
)

// reaperCommand is what is left to say of the command as which a process that runs git starts this program again: with a pipe to it, package reaper has begun before.
func reaperCommand() *cobra.Command {
	return &cobra.Command{
		Use: reaper.Name + " LOG-FORMAT", Hidden: true, DisableFlagParsing: true, Args: exactArgs(1, "the log's format"),
		Short: "End what the git commands of a killed server leave, for that server",
		RunE: func(*cobra.Command, []string) error {
			return usage(errors.New("a server starts the reaper by itself, with a pipe to it; there is no other use for it"))
		},
	}
}

// reaperProgram is the command that runs the reaper, if there is to be one.
func reaperProgram(c *config.Config, program string) []string {
	if !c.Git.Reaper || program == "" {
		return nil
	}
	format := c.Log.Format
	if format == "terminal" { // its few lines are as text
		format = "text"
	}
	return []string{program, reaper.Name, format}
}
