package command

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/packhorse-git/packhorse/client"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

func webhookCommand(env Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "webhook",
		Short: "Add webhooks, and see their deliveries",
		Long: `Webhooks notify other programs of pushes and other events by HTTP. These commands manage those that were added by calls.
They take effect at once, and on other nodes of a store within ten seconds. Webhooks of the configuration are listed,
too.

The commands ask the running server of --root over the socket in its state directory. With --node they ask a storage
node.`,
	}
	cmd.AddCommand(webhookAdd(env), webhookList(env), webhookRemove(env), webhookDeliveries(env), webhookRedeliver(env))
	return cmd
}

// webhookVerb makes a command with a fixed number of arguments that calls do with the node.
func webhookVerb(env Env, cmd *cobra.Command,
	do func(cmd *cobra.Command, node *client.Client, args []string) error) *cobra.Command {
	to := &nodeFinder{target: target{env: env}}
	to.addFlags(cmd.Flags(), true)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return to.change(cmd.Context(), func(node *client.Client) error { return withFlag(cmd, do(cmd, node, args)) })
	}
	return cmd
}

// withFlag returns an error for users: with the name of a flag instead of that of its field.
func withFlag(cmd *cobra.Command, err error) error {
	field := client.FaultOf(err).GetField()
	flag := strings.ReplaceAll(field, "_", "-")
	if field == "secret" {
		flag = "signing-secret"
	}
	err = answerOf(err)
	if problem, ok := strings.CutPrefix(fmt.Sprint(err), field+": "); ok && cmd.Flags().Lookup(flag) != nil {
		return fmt.Errorf("--%s: %s", flag, problem)
	}
	return err
}

func webhookAdd(env Env) *cobra.Command {
	cmd := &cobra.Command{Use: "add NAME --url URL", Short: "Add a webhook", Args: cobra.ExactArgs(1),
		Long: `Add adds a webhook, which gets the events from now on. The secret signs requests: a file with 16 to 1,000 bytes.

With --replace it changes the webhook NAME to the flags that are given. The webhook continues with the next event, and
keeps its secret unless there is another one.`,
		Example: `  packhorse webhook add ci --url https://ci.example/hook --repositories 'team/**' --signing-secret ci.secret --root /srv/git
  packhorse webhook add ci --url https://new.example/hook --repositories 'team/**' --replace --root /srv/git
  packhorse webhook add argo --url https://argo.example/api/webhook --format github --base-url https://git.example`,
	}
	w := &packhorsev1.Webhook{}
	f := cmd.Flags()
	f.StringVar(&w.Url, "url", "", "URL to which requests are sent")
	f.StringArrayVar(&w.Repositories, "repositories", nil, "pattern of repositories; repeatable (default: all)")
	f.StringArrayVar(&w.Events, "events", nil,
		"push, create, rename, configure or delete; repeatable (default: push)")
	f.StringVar(&w.Format, "format", "", `"github": the requests of GitHub`)
	f.StringVar(&w.BaseUrl, "base-url", "", "URL of the server for clients, for --format github")
	f.BoolVar(&w.AllowPrivate, "allow-private", false,
		"the address may be in a private network, if the server allows that")
	r := &packhorsev1.WebhookServiceAddRequest{Webhook: w}
	f.BoolVar(&r.Replace, "replace", false, "change the webhook if it exists")
	secret := f.String("signing-secret", "", "file with the secret that signs requests")
	return webhookVerb(env, cmd, func(cmd *cobra.Command, node *client.Client, args []string) error {
		w.Name = args[0]
		if *secret != "" {
			text, err := os.ReadFile(*secret)
			if err != nil {
				return err
			}
			if r.Secret = strings.TrimSpace(string(text)); r.Secret == "" {
				return errors.New("the file of the secret is empty")
			}
		}
		_, err := node.Webhooks().Add(cmd.Context(), connect.NewRequest(r))
		if err == nil {
			fmt.Fprintf(cmd.OutOrStdout(), "added the webhook %s\n", w.Name)
		} else if !w.AllowPrivate && strings.Contains(err.Error(), "is in a private network") {
			return fmt.Errorf("%w: use --allow-private if that is intended", withFlag(cmd, err))
		}
		return err
	})
}

func webhookList(env Env) *cobra.Command {
	cmd := &cobra.Command{Use: "list", Short: "List webhooks", Args: cobra.NoArgs}
	asJSON := jsonFlag(cmd)
	return webhookVerb(env, cmd, func(cmd *cobra.Command, node *client.Client, _ []string) error {
		r, err := node.Webhooks().List(cmd.Context(), connect.NewRequest(&packhorsev1.WebhookServiceListRequest{}))
		if err != nil {
			return err
		}
		return printResult(cmd, *asJSON, r.Msg, func(out io.Writer) error {
			table := newTable(out, "NAME\tFROM\tURL\tREPOSITORIES\tEVENTS")
			for _, w := range r.Msg.GetWebhooks() {
				from := "added"
				if w.GetConfigured() {
					from = "configured"
				}
				fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", w.GetName(), from, w.GetUrl(), cmp.Or(strings.Join(w.GetRepositories(),
					","), "all"), cmp.Or(strings.Join(w.GetEvents(), ","), "push"))
			}
			return table.Flush()
		})
	})
}

func webhookRemove(env Env) *cobra.Command {
	cmd := &cobra.Command{Use: "remove NAME", Short: "Remove a webhook and drop its pending deliveries",
		Args: cobra.ExactArgs(1)}
	return webhookVerb(env, cmd, func(cmd *cobra.Command, node *client.Client, args []string) error {
		_, err := node.Webhooks().Remove(cmd.Context(),
			connect.NewRequest(&packhorsev1.WebhookServiceRemoveRequest{Name: args[0]}))
		if err == nil {
			fmt.Fprintf(cmd.OutOrStdout(), "removed the webhook %s\n", args[0])
		}
		return err
	})
}

func webhookDeliveries(env Env) *cobra.Command {
	cmd := &cobra.Command{Use: "deliveries NAME", Short: "List the latest deliveries to a webhook, the newest first",
		Args: cobra.ExactArgs(1)}
	asJSON := jsonFlag(cmd)
	return webhookVerb(env, cmd, func(cmd *cobra.Command, node *client.Client, args []string) error {
		r, err := node.Webhooks().Deliveries(cmd.Context(),
			connect.NewRequest(&packhorsev1.WebhookServiceDeliveriesRequest{Name: args[0]}))
		if err != nil {
			return err
		}
		return printDeliveries(cmd, *asJSON, r.Msg, r.Msg.GetDeliveries()...)
	})
}

func webhookRedeliver(env Env) *cobra.Command {
	cmd := &cobra.Command{Use: "redeliver NAME DELIVERY", Short: "Send one of the latest deliveries again, once",
		Args: cobra.ExactArgs(2)}
	asJSON := jsonFlag(cmd)
	return webhookVerb(env, cmd, func(cmd *cobra.Command, node *client.Client, args []string) error {
		r, err := node.Webhooks().Redeliver(cmd.Context(),
			connect.NewRequest(&packhorsev1.WebhookServiceRedeliverRequest{Name: args[0], Id: args[1]}))
		if err != nil {
			return err
		}
		return printDeliveries(cmd, *asJSON, r.Msg, r.Msg.GetDelivery())
	})
}

func printDeliveries(cmd *cobra.Command, asJSON bool, m proto.Message, list ...*packhorsev1.WebhookDelivery) error {
	return printResult(cmd, asJSON, m, func(out io.Writer) error {
		table := newTable(out, "TIME\tID\tEVENT\tREPOSITORY\tRESULT\tSTATUS\tDURATION\tNEXT TRY\tRESPONSE")
		for _, d := range list {
			response, _, _ := strings.Cut(d.GetResponse(), "\n")
			next := "-"
			if at := d.GetNextTry(); at != nil {
				next = at.AsTime().Format(time.RFC3339)
			}
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%d\t%v\t%s\t%s\n", d.GetTime().AsTime().Format(time.RFC3339), d.GetId(),
				d.GetKind(), d.GetRepository(), d.GetResult(), d.GetStatus(),
				d.GetDuration().AsDuration().Round(time.Millisecond), next, response)
		}
		return table.Flush()
	})
}
