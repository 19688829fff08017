package command

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/roles"
	"github.com/packhorse-git/packhorse/internal/search/worker"
)

func searchWorkerCommand(env Env) *cobra.Command {
	return &cobra.Command{
		Use: roles.SearchWorker, Hidden: true, DisableFlagParsing: true, Args: cobra.ArbitraryArgs,
		Short: "Index and search, for a server",
		RunE: func(_ *cobra.Command, args []string) error {
			in, ok := env.Stdin.(*os.File)
			if !ok {
				return usage(worker.Main(nil, nil, nil))
			}
			return worker.Main(args, in, env.Stdout)
		},
	}
}
