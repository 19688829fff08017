package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/client"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/operations/watchdog"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1"
	"github.com/packhorse-git/packhorse/internal/server/config"
	"github.com/packhorse-git/packhorse/internal/server/statedir"
)

func debugCommand(env Env) *cobra.Command {
	return group(&cobra.Command{Use: "debug", Short: "Diagnose a running server",
		Example: "  packhorse debug dump --root /srv/git"}, debugDump(env))
}

func debugDump(env Env) *cobra.Command {
	t := &target{env: env}
	cmd := &cobra.Command{
		Use: "dump", Short: "Make a server dump its stacks, profiles and processes",
		Long: `Dump makes a running server write a dump to STATE/dumps: the stacks of its goroutines, profiles, and its process tree. The
server keeps running. It takes a few seconds, and prints the directory.

The server is asked over the socket in its state directory. If it does not answer, the command prints what the system
knows about the process. The signal SIGQUIT makes a server write a dump, too.`,
		Example: `  packhorse debug dump --root /srv/git
  packhorse debug dump --state ~/.local/state/packhorse/gateway`,
		Args:        noArgs,
		Annotations: map[string]string{"ops": "name the server with --state, --root or --config"},
	}
	t.addFlags(cmd.Flags(), "the server's state directory, `DIR` (default of the server on the root)")
	patience := cmd.Flags().Duration("patience", time.Minute, "how long to wait for an answer (`DURATION`)")
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		dump, err := t.dump(cmd, *patience)
		if err != nil {
			return err
		}
		return printResult(cmd, *asJSON, dump, func(w io.Writer) error {
			for _, note := range dump.Notes {
				fmt.Fprintln(cmd.ErrOrStderr(), note)
			}
			_, err = fmt.Fprintln(w, dump.Dir)
			return err
		})
	}
	return cmd
}

// dump has the server write a dump. If it does not answer, dump prints what the system knows about the process.
func (t *target) dump(cmd *cobra.Command, patience time.Duration) (dump watchdog.Dump, err error) {
	if t.state+t.root+t.config == "" {
		return dump, usage(errors.New("which server? name its state directory with --state DIR, or its repositories with " +
			"--root DIR"))
	}
	state, err := t.stateDir(config.RoleGateway)
	if err != nil {
		return dump, err
	}
	server, err := statedir.Running(state)
	if err != nil {
		return dump, err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), patience)
	defer cancel()
	err = withServer("server", config.AdminSocket(state), func(c *client.Client) error {
		return runAdmin(ctx, c, &internalv1.RunRequest{Work: internalv1.AdminWork_ADMIN_WORK_DUMP}, nil, nil, &dump)
	})
	if code := connect.CodeOf(err); err == nil || code == connect.CodeNotFound || code == connect.CodeInternal {
		return dump, answerOf(err)
	}
	return dump, errors.Join(fmt.Errorf("no answer: %w; \"kill -QUIT %d\" makes the server write a dump, and \"kill "+
		"-ABRT %[2]d\" ends it and prints its stacks to its standard error", err, server.PID),
		watchdog.WriteProcesses(cmd.OutOrStdout(), server.PID),
		watchdog.WriteCommands(cmd.OutOrStdout(), server.PID, auth.Redact))
}
