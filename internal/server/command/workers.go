package command

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/client"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1"
	"github.com/packhorse-git/packhorse/internal/schedule/retry"
	"github.com/packhorse-git/packhorse/internal/server/adminapi"
)

func workersCommand(env Env) *cobra.Command {
	return listing(&cobra.Command{
		Use:   "workers",
		Short: "Show the state of the application's workers",
		Long: `Workers shows each worker of the application behind a running gateway or serve: its state, its requests in flight, its
slots, and the number of answered and failed requests. A worker is up, starting, not ready, down, draining or drained.
The command asks the server over the admin socket in its state directory.`,
		Example: `  packhorse workers
  packhorse workers --json --config /etc/packhorse.toml
  packhorse workers --root /srv/git                      # of serve`,
	}, gatewayClient(env), internalv1.AdminWork_ADMIN_WORK_WORKERS, writeWorkers)
}

func writeWorkers(w io.Writer, list []adminapi.WorkerStatus) error {
	table := newTable(w, "WORKER\tPOOL\tSTATE\tRUNNING\tSLOTS\tSERVED\tFAILED\tADDRESS")
	for _, s := range list {
		fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%d\t%d\t%d\t%s\n", s.Name, s.Pool, s.State, s.InFlight, s.Slots, s.Served,
			s.Failed, s.Address)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, s := range list {
		if s.Why == "" || s.State == "up" {
			continue
		}
		given := ""
		if s.Given {
			given = " (it gets requests because too many others are out of service)"
		}
		fmt.Fprintf(w, "%s: %s%s\n", s.Name, s.Why, given)
	}
	return nil
}

// pollWorkers is the interval in which --wait reads the state of the worker.
const pollWorkers = 100 * time.Millisecond

// drainWorkerCommand is "drain worker" or "undrain worker".
func drainWorkerCommand(c *adminClient, verb string) *cobra.Command {
	var wait, force bool
	var limit time.Duration
	cmd := &cobra.Command{
		Use:   "worker NAME",
		Short: "Stop new requests to a worker of the application",
		Long: `Drain worker stops new requests to a worker of the application; requests in flight finish. It lasts until "packhorse
undrain worker NAME", or until the gateway stops. It is refused if more than a third of the pool would be out of service.

With --wait the command waits until the drain is allowed, and the worker had no request for a second. Then the worker can
be stopped. The command fails if that takes longer than --timeout.`,
		Example: "  packhorse drain worker w0 --wait && systemctl restart app@w0 && packhorse undrain worker w0 " +
			"--wait",
		Args: exactArgs(1, "one NAME"),
		ValidArgsFunction: completeName(c, internalv1.AdminWork_ADMIN_WORK_WORKERS,
			func(s adminapi.WorkerStatus) string { return s.Name }),
	}
	what := "until the worker can be stopped"
	if verb == "undrain" {
		cmd.Short = "Return a drained worker of the application to service"
		cmd.Long = `Undrain worker returns a drained worker to service. The worker gets requests after its next successful health check.
With --wait the command waits for that.`
		cmd.Example = "  packhorse undrain worker w0 --wait"
		what = "until the worker gets requests"
	}
	cmd.Flags().BoolVar(&wait, "wait", false, "wait "+what)
	cmd.Flags().DurationVar(&limit, "timeout", 0,
		"maximum `DURATION` of the wait from the start of the drain (default app.drain)")
	if verb == "drain" {
		cmd.Flags().BoolVar(&force, "force", false, "drain it even if too many workers are out of service")
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		request := &internalv1.RunRequest{Work: internalv1.AdminWork_ADMIN_WORK_DRAIN_WORKER, Name: args[0], Force: force}
		if verb == "undrain" {
			request.Work = internalv1.AdminWork_ADMIN_WORK_UNDRAIN_WORKER
		}
		now, err := c.whenAllowed(cmd.Context(), cmd.ErrOrStderr(), request, wait)
		if err == nil && wait {
			now, err = c.untilWorker(cmd.Context(), now, verb, limit)
		}
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %s, %d requests running\n", now.Name, now.State, now.InFlight)
		return err
	}
	return cmd
}

// whenAllowed requests a change. With wait, it repeats the request while too many workers are out of service.
func (c *adminClient) whenAllowed(ctx context.Context, log io.Writer, request *internalv1.RunRequest,
	wait bool) (now adminapi.WorkerStatus, err error) {
	for isFirst := true; ; isFirst = false {
		err = c.with(func(server *client.Client) error { return runAdmin(ctx, server, request, nil, nil, &now) })
		if connect.CodeOf(err) != connect.CodeResourceExhausted || !wait {
			return now, answerOf(err)
		}
		if isFirst {
			fmt.Fprintf(log, "waiting: %s\n", answerOf(err))
		}
		if err := retry.Sleep(ctx, pollWorkers); err != nil {
			return now, err
		}
	}
}

// untilWorker waits until a worker is drained, or up again after undrain.
func (c *adminClient) untilWorker(ctx context.Context, now adminapi.WorkerStatus, verb string,
	limit time.Duration) (adminapi.WorkerStatus, error) {
	limit = cmp.Or(limit, time.Duration(now.Drain*float64(time.Second)))
	for end := time.Now().Add(limit); ; {
		if verb == "drain" && now.State == "drained" || verb == "undrain" && now.State == "up" {
			return now, nil
		}
		if time.Now().After(end) {
			if verb == "drain" {
				return now, fmt.Errorf("%s still has %d requests, or had some within the last second, after %v: the drain "+
					"continues; wait longer with --timeout, or end it with \"packhorse undrain worker %s\"", now.Name, now.InFlight,
					limit, now.Name)
			}
			return now, fmt.Errorf("%s is %s after %v: %s", now.Name, now.State, limit, cmp.Or(now.Why, "no reason known"))
		}
		if err := retry.Sleep(ctx, pollWorkers); err != nil {
			return now, err
		}
		var list []adminapi.WorkerStatus
		if err := c.short(ctx, internalv1.AdminWork_ADMIN_WORK_WORKERS, "", &list); err != nil {
			return now, err
		}
		i := slices.IndexFunc(list, func(s adminapi.WorkerStatus) bool { return s.Name == now.Name })
		if i < 0 {
			return now, fmt.Errorf("%s is not a worker of the application any more", now.Name)
		}
		now = list[i]
	}
}
