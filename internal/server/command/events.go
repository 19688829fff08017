package command

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/client"
	"github.com/packhorse-git/packhorse/internal/gateway/rest"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

func eventsCommand(env Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Print what was pushed, created, renamed, configured and removed",
		Long: `Events prints the events of all repositories, the oldest first. Each line has the time, the repository, the kind, and the
user. Lines of a push name each ref: created, fast-forward, forced or deleted.

A position names a place between two events. With --json each line has the position after it, and --after continues
there. Events are kept for 30 days. If those after a position were removed, the command fails.

It asks the running server of --root over the socket in its state directory, or reads the events itself. With --node it
asks a storage node.`,
		Example: `  packhorse events --root /srv/git
  packhorse events --after now --follow --json --node 127.0.0.1:9100`,
		Args: cobra.NoArgs,
	}
	to := &nodeFinder{target: target{env: env}}
	to.addFlags(cmd.Flags(), true)
	asJSON := jsonFlag(cmd)
	after := cmd.Flags().String("after", "", `begin after this position; "now": after the latest event`)
	follow := cmd.Flags().Bool("follow", false, "wait for further events")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return to.change(cmd.Context(), func(node *client.Client) error {
			print := printEvents(cmd.OutOrStdout(), *asJSON)
			if *follow {
				return answerOf(followEvents(cmd.Context(), node, *after, print))
			}
			for at := *after; ; {
				r, err := node.Events().List(cmd.Context(), connect.NewRequest(&packhorsev1.EventServiceListRequest{After: at,
					Limit: 1000}))
				if err != nil {
					return answerOf(err)
				}
				if err := print(r.Msg.GetEvents()); err != nil || r.Msg.GetNext() == at || at == "now" {
					return err
				}
				at = r.Msg.GetNext()
			}
		})
	}
	return cmd
}

// followEvents prints events until ctx ends or the node ends the stream.
func followEvents(ctx context.Context, node *client.Client, after string,
	print func([]*packhorsev1.Event) error) error {
	request := &packhorsev1.EventServiceWatchRequest{After: after}
	for r, err := range client.Messages(ctx, request, node.Events().Watch) {
		if err == nil {
			err = print(r.GetEvents())
		}
		if ctx.Err() != nil { // interrupted, which is how it ends
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// printEvents returns a function that prints events.
func printEvents(w io.Writer, asJSON bool) func([]*packhorsev1.Event) error {
	return func(events []*packhorsev1.Event) error {
		var lines strings.Builder
		for _, e := range events {
			if asJSON {
				lines.Write(rest.Encode(rest.NewObject(e, false)))
				continue
			}
			begin := fmt.Sprintf("%s %s %s", e.GetTime().AsTime().Format(time.RFC3339), e.GetRepository(), e.GetKind())
			if e.GetFormerRepository() != "" {
				begin += " from " + e.GetFormerRepository()
			}
			if e.GetActor() != "" {
				begin += " by " + e.GetActor()
			}
			for _, r := range e.GetRefs() {
				fmt.Fprintf(&lines, "%s: %s %s %.10s..%.10s\n", begin, r.GetName(), r.GetKind(), r.GetOldOid(), r.GetNewOid())
			}
			if len(e.GetRefs()) == 0 {
				fmt.Fprintln(&lines, begin)
			}
		}
		_, err := io.WriteString(w, lines.String())
		return err
	}
}
