package command

import (
	"errors"

	"connectrpc.com/connect"
	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/client"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

func cacheCommand(env Env) *cobra.Command {
	return group(&cobra.Command{Use: "cache", Short: "Remove packs from the pack cache"}, cacheDrop(env))
}

func cacheDrop(env Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "drop REPOSITORY|--all", Short: "Remove a repository's packs from the pack cache",
		Long: `Drop removes the cached packs of a repository, or with --all those of all repositories. The next fetch makes its pack
again, and verifies the packs of the repository again. Running transfers are not affected. Use it after the repair of a
damaged repository.`,
		Example: "  packhorse cache drop team/app --root /srv/git\n  packhorse cache drop --all --config /etc/packhorse.toml",
	}
	all := cmd.Flags().Bool("all", false, "drop the packs of all repositories")
	asJSON := jsonFlag(cmd)
	cmd.Args = func(_ *cobra.Command, args []string) error {
		if len(args) > 1 || *all == (len(args) == 1) {
			return usage(errors.New("name one REPOSITORY, or all of them with --all"))
		}
		return nil
	}
	return onNode(&nodeFinder{target: target{env: env}, cache: true}, cmd, changes,
		func(cmd *cobra.Command, node *client.Client, args []string) error {
			request := &packhorsev1.DropPacksRequest{All: *all}
			if !*all {
				request.Repository = args[0]
			}
			dropped, err := node.Repositories().DropPacks(cmd.Context(), connect.NewRequest(request))
			if err != nil {
				return err
			}
			return printLine(cmd, *asJSON, dropped.Msg, "dropped %d packs, %s", dropped.Msg.GetPacks(),
				humanize.IBytes(uint64(dropped.Msg.GetBytes())))
		})
}
