package roles

import (
	"errors"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/auth"
	"github.com/packhorse-git/packhorse/internal/git/reaper"
	"github.com/packhorse-git/packhorse/internal/observe"
)

// reaperName is the command as which a process that runs git starts this program again, to end what git leaves if the process is killed.
const reaperName = "reaper"

func reaperCommand(env Env) *cobra.Command {
	return &cobra.Command{
		Use: reaperName + " LOG-FORMAT", Hidden: true, DisableFlagParsing: true, Args: exactArgs(1, "the log's format"),
		Short: "End what the git commands of a killed server leave, for that server",
		RunE: func(_ *cobra.Command, args []string) error {
			in, ok := env.Stdin.(*os.File)
			if info, err := in.Stat(); !ok || err != nil || info.Mode()&os.ModeNamedPipe == 0 {
				return usage(errors.New("a server starts the reaper by itself, with a pipe to it; there is no other use for it"))
			}
			log, err := observe.NewLogger(env.Stderr, slog.LevelInfo, args[0], auth.Redact)
			if err != nil {
				return usage(err)
			}
			return reaper.Main(in, log)
		},
	}
}

// reaper is the command that runs the reaper, if there is to be one.
func (c *Config) reaper(program string) []string {
	if !c.Git.Reaper || program == "" {
		return nil
	}
	return []string{program, reaperName, c.Log.Format}
}
