package command

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/gateway/router"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1"
	"github.com/packhorse-git/packhorse/internal/server/adminapi"
)

func nodesCommand(env Env) *cobra.Command {
	return listing(&cobra.Command{
		Use:   "nodes",
		Short: "Show the state of a gateway's storage nodes",
		Long: `Nodes shows the state of each storage node of a running gateway: up, down or draining, the requests in flight, and the
number of answered and failed requests. For nodes of an object store it shows the ID of the store and the number of
repositories that are known to be on the node's disk. It asks the gateway over the admin socket in its state directory.`,
		Example: `  packhorse nodes
  packhorse nodes --json --config /etc/packhorse.toml`,
	}, gatewayClient(env), internalv1.AdminWork_ADMIN_WORK_NODES, writeNodes)
}

func writeNodes(w io.Writer, list []adminapi.NodeStatus) error {
	table := newTable(w, "")
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

func drainCommand(env Env) *cobra.Command { return drainingCommand(env, "drain") }

func undrainCommand(env Env) *cobra.Command { return drainingCommand(env, "undrain") }

func drainingCommand(env Env, verb string) *cobra.Command {
	c, work := gatewayClient(env), internalv1.AdminWork_ADMIN_WORK_DRAIN_NODE
	about, short := "Stop new requests to a storage node or a worker", "Stop new requests to a storage node"
	long := `Drain node stops new requests to a storage node; requests in flight finish. It lasts until "packhorse undrain node NAME",
or until the gateway stops. "packhorse nodes" shows when the node is drained.`
	if verb == "undrain" {
		work = internalv1.AdminWork_ADMIN_WORK_UNDRAIN_NODE
		about, short = "Return a drained node or worker to service", "Return a drained storage node to service"
		long = ""
	}
	cmd := &cobra.Command{
		Use:   verb,
		Short: about,
		Long:  about + ": see \"packhorse " + verb + " node --help\" and \"packhorse " + verb + " worker --help\".",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("%s needs node or worker: \"%[1]s node %s\" for a storage node, \"%[1]s worker %[2]s\" for a "+
					"worker of the application", cmd.CommandPath(), args[len(args)-1])
			}
			return nil
		},
	}
	node := &cobra.Command{
		Use:     "node NAME",
		Short:   short,
		Long:    long,
		Example: "  packhorse " + verb + " node a\n  packhorse nodes",
		Args:    exactArgs(1, "one NAME"),
		ValidArgsFunction: completeName(c, internalv1.AdminWork_ADMIN_WORK_NODES,
			func(n adminapi.NodeStatus) string { return n.Name }),
		RunE: func(cmd *cobra.Command, args []string) error {
			var now adminapi.NodeStatus
			if err := c.short(cmd.Context(), work, args[0], &now); err != nil {
				return err
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s: %s, %d requests running\n", now.Name, now.State(), now.InFlight)
			return err
		},
	}
	c.addFlags(cmd, stateUsage)
	return group(cmd, node, drainWorkerCommand(c, verb))
}
