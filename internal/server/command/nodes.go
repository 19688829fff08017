package command

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/gateway/router"
	"github.com/packhorse-git/packhorse/internal/server/adminapi"
	"github.com/packhorse-git/packhorse/internal/server/config"
)

// adminClient sends requests to the admin socket of a running gateway or serve.
type adminClient struct{ target }

func (c *adminClient) addFlags(flags *pflag.FlagSet) {
	c.target.addFlags(flags,
		"the state directory, `DIR` (default ~/.local/state/packhorse/gateway, or that of the server on the root)")
}

// socket returns the path of the admin socket. A configuration file with a root may be for serve or for a gateway: if
// there is a socket of a gateway, it is used.
func (c *adminClient) socket() (string, error) {
	if c.root == "" && c.state == "" {
		gateway := config.DefaultState(config.RoleGateway, "", c.env.Getenv)
		if _, err := os.Stat(config.AdminSocket(gateway)); gateway != "" && err == nil {
			cfg := config.DefaultConfig()
			if c.config != "" {
				if err := config.LoadFile(c.config, &cfg, config.Origins{}); err != nil {
					return "", usage(err)
				}
			}
			if cfg.State == "" {
				return filepath.Abs(config.AdminSocket(gateway))
			}
		}
	}
	state, err := c.stateDir(config.RoleGateway)
	return config.AdminSocket(state), err
}

// do sends a request and reads the JSON of the response into v. A refusal of the server is a *refusal.
func (c *adminClient) do(ctx context.Context, method, path string, v any) error {
	socket, err := c.socket()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, adminapi.Timeout)
	defer cancel()
	return askAdmin(ctx, "gateway", socket, method, path, v)
}

// askAdmin sends a request to an admin socket and reads the JSON of the response into v. what is the kind of process
// for messages. A refusal of the process is a *refusal.
func askAdmin(ctx context.Context, what, socket, method, path string, v any) error {
	text, err := ask(ctx, "unix", socket, method, path)
	refused, isRefused := errors.AsType[*refusal](err)
	switch {
	case isRefused:
		return refused
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ECONNREFUSED):
		return fmt.Errorf("no %s answers at %s: start the %[1]s, or name its state directory with --state DIR or --config "+
			"FILE", what, socket)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%s: permission denied: run the command as the user of the %s", socket, what)
	case err != nil:
		return fmt.Errorf("ask the %s at %s: %w", what, socket, err)
	}
	return json.Unmarshal(text, v)
}

// completeName completes the first argument with the names in a list of the admin socket.
func completeName[T any](client *adminClient, path string, name func(T) string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) (names []string, _ cobra.ShellCompDirective) {
		var list []T
		if len(args) == 0 && client.do(cmd.Context(), http.MethodGet, path, &list) == nil {
			for _, element := range list {
				names = append(names, name(element))
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

func nodesCommand(env Env) *cobra.Command {
	client := &adminClient{target{env: env}}
	cmd := &cobra.Command{
		Use:   "nodes",
		Short: "Show the state of a gateway's storage nodes",
		Long: `Nodes shows the state of each storage node of a running gateway: up, down or draining, the requests in flight, and the
number of answered and failed requests. For nodes of an object store it shows the ID of the store and the number of
repositories that are known to be on the node's disk. It asks the gateway over the admin socket in its state directory.`,
		Example: `  packhorse nodes
  packhorse nodes --json --config /etc/packhorse.toml`,
		Args: noArgs,
	}
	listing(cmd, client, "/nodes", writeNodes)
	return cmd
}

// listing completes a command that prints a list of the admin socket, as a table or, with --json, as JSON.
func listing[T any](cmd *cobra.Command, client *adminClient, path string, table func(io.Writer, []T) error) {
	asJSON := jsonFlag(cmd)
	client.addFlags(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var list []T
		if err := client.do(cmd.Context(), http.MethodGet, path, &list); err != nil {
			return err
		}
		if !*asJSON {
			return table(cmd.OutOrStdout(), list)
		}
		return encodeJSON(cmd.OutOrStdout(), list)
	}
}

func writeNodes(w io.Writer, list []adminapi.NodeStatus) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	hasStore := slices.ContainsFunc(list, func(n adminapi.NodeStatus) bool { return n.Store != "" })
	fmt.Fprint(table, "NODE\tSTATE\tWEIGHT\tRUNNING\tSERVED\tFAILED\t")
	if hasStore {
		fmt.Fprint(table, "STORE\tHELD\t")
	}
	fmt.Fprintln(table, "REPOSITORIES")
	for _, n := range list {
		var prefixes []string
		for _, p := range n.Prefixes {
			prefixes = append(prefixes, cmp.Or(p, "all"))
		}
		fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%d\t%d\t", n.Name, n.State(), n.Weight, n.InFlight, n.Served, n.Failed)
		if hasStore {
			fmt.Fprintf(table, "%s\t%d\t", cmp.Or(n.Store, "-"), n.Held)
		}
		fmt.Fprintln(table, strings.Join(prefixes, " "))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, n := range list {
		if n.Down != "" {
			fmt.Fprintf(w, "%s: %s\n", n.Name, n.Down)
		}
		if n.Refused != "" {
			fmt.Fprintf(w, "%s: pushes are refused: %s: %s\n", n.Name, n.Refused, router.AllowPushes)
		}
	}
	return nil
}

func drainCommand(env Env) *cobra.Command {
	return drainingCommand(env, "drain", "Stop new requests to a storage node or a worker",
		"Stop new requests to a storage node", `Drain node stops new requests to a storage node; requests in flight finish. It lasts until "packhorse undrain node NAME",
or until the gateway stops. "packhorse nodes" shows when the node is drained.`)
}

func undrainCommand(env Env) *cobra.Command {
	return drainingCommand(env, "undrain", "Return a drained node or worker to service",
		"Return a drained storage node to service", `Undrain node returns a storage node to service after "packhorse drain node NAME".`)
}

func drainingCommand(env Env, verb, about, short, long string) *cobra.Command {
	client := &adminClient{target{env: env}}
	cmd := &cobra.Command{
		Use:   verb,
		Short: about,
		Long:  about + ": see \"packhorse " + verb + " node --help\" and \"packhorse " + verb + " worker --help\".",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("%s needs node or worker: \"%s node %s\" for a storage node, \"%s worker %s\" for a worker of "+
					"the application",
					cmd.CommandPath(), cmd.CommandPath(), args[len(args)-1],
					cmd.CommandPath(), args[len(args)-1])
			}
			return nil
		},
	}
	node := &cobra.Command{
		Use:               "node NAME",
		Short:             short,
		Long:              long,
		Example:           "  packhorse " + verb + " node a\n  packhorse nodes",
		Args:              exactArgs(1, "one NAME"),
		ValidArgsFunction: completeName(client, "/nodes", func(n adminapi.NodeStatus) string { return n.Name }),
		RunE: func(cmd *cobra.Command, args []string) error {
			var now adminapi.NodeStatus
			if err := client.do(cmd.Context(), http.MethodPost, "/nodes/"+url.PathEscape(args[0])+"/"+verb, &now); err != nil {
				return err
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s: %s, %d requests running\n", now.Name, now.State(), now.InFlight)
			return err
		},
	}
	client.addFlags(cmd.PersistentFlags())
	return group(cmd, node, drainWorkerCommand(client, verb))
}
