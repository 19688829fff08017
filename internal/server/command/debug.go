package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/client"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/operations/watchdog"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1"
	"github.com/packhorse-git/packhorse/internal/schedule/retry"
	"github.com/packhorse-git/packhorse/internal/server/config"
	"github.com/packhorse-git/packhorse/internal/server/statedir"
)

func debugCommand(env Env) *cobra.Command {
	return group(&cobra.Command{Use: "debug", Short: "Diagnose a running server",
		Example: "  packhorse debug dump --root /srv/git"}, debugDump(env))
}

func debugDump(env Env) *cobra.Command {
	d := &dumper{target: target{env: env}}
	var asJSON *bool
	cmd := &cobra.Command{
		Use: "dump", Short: "Make a server dump its stacks, profiles and processes",
		Long: `Dump makes a running server write a dump to STATE/dumps: the stacks of its goroutines, profiles, the last seconds of its
execution trace, and its process tree. The server keeps running. It takes a few seconds, and prints the directory.

The server is asked over the socket in its state directory, or on its private listener with --ops. If there is no answer
on the socket, the process gets the signal SIGUSR1. If that fails too, the system's information about the process is
printed.`,
		Example: `  packhorse debug dump --root /srv/git
  packhorse debug dump --state ~/.local/state/packhorse/gateway
  packhorse debug dump --ops 127.0.0.1:9090`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dump, err := d.dump(cmd)
			if err != nil {
				return err
			}
			if *asJSON {
				return encodeJSON(cmd.OutOrStdout(), dump)
			}
			for _, note := range dump.Notes {
				fmt.Fprintln(cmd.ErrOrStderr(), note)
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), dump.Dir)
			return err
		},
	}
	asJSON = jsonFlag(cmd)
	flags := cmd.Flags()
	d.addFlags(flags, "the server's state directory, `DIR` (default of the server on the root)")
	flags.StringVar(&d.ops, "ops", "", "ask on the private listener at `HOST:PORT`")
	flags.DurationVar(&d.patience, "patience", time.Minute,
		"how long to wait for an answer, and then for the signal's effect (`DURATION`)")
	return cmd
}

// dumper requests a dump: over the admin socket, on the private listener, or with a signal.
type dumper struct {
	target
	ops      string
	patience time.Duration
}

func (d *dumper) dump(cmd *cobra.Command) (watchdog.Dump, error) {
	if d.ops != "" {
		if d.state+d.root+d.config != "" {
			return watchdog.Dump{}, usage(errors.New("--ops cannot be combined with --state, --root or --config: name the " +
				"server " +
				"with one of them"))
		}
		address, err := opsAddress(d.ops)
		if err != nil {
			return watchdog.Dump{}, usage(err)
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), d.patience)
		defer cancel()
		text, err := ask(ctx, address, http.MethodPost, watchdog.DumpPath)
		var dump watchdog.Dump
		if err == nil {
			err = json.Unmarshal(text, &dump)
		}
		if err != nil {
			err = fmt.Errorf("ask for a dump at %s: %w", address, err)
		}
		return dump, err
	}
	if d.state+d.root+d.config == "" {
		return watchdog.Dump{}, usage(errors.New("which server? name its state directory with --state DIR, its " +
			"repositories with --root DIR, or its private listener with --ops HOST:PORT"))
	}
	state, err := d.stateDir(config.RoleGateway)
	if err != nil {
		return watchdog.Dump{}, err
	}
	server, err := statedir.Running(state)
	if err != nil {
		return watchdog.Dump{}, err
	}
	var dump watchdog.Dump
	ctx, cancel := context.WithTimeout(cmd.Context(), d.patience)
	defer cancel()
	err = withServer("server", config.AdminSocket(state), func(c *client.Client) error {
		return runAdmin(ctx, c, &internalv1.RunRequest{Work: internalv1.AdminWork_ADMIN_WORK_DUMP}, nil, nil, &dump)
	})
	switch code := connect.CodeOf(err); {
	case err == nil:
		return dump, nil
	case code == connect.CodeNotFound, code == connect.CodeInternal:
		return dump, answerOf(err)
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "no answer at %s (%v); sending %s to process %d\n", config.AdminSocket(state), err,
		unix.SignalName(statedir.DumpSignal), server.PID)
	began := time.Now()
	if err := signalServer(server, state); err != nil {
		return watchdog.Dump{}, err
	}
	if dump, ok := d.await(cmd.Context(), server, began); ok {
		return dump, nil
	}
	fmt.Fprintf(cmd.ErrOrStderr(),
		"the process has not written a dump within %v; information of the system about the process follows\n",
		d.patience)
	err = errors.Join(watchdog.WriteProcesses(cmd.OutOrStdout(), server.PID),
		watchdog.WriteCommands(cmd.OutOrStdout(), server.PID, auth.Redact))
	return watchdog.Dump{}, errors.Join(fmt.Errorf("process %d is stuck, or cannot write: \"kill -ABRT %d\" ends it "+
		"and prints its stacks to its standard error", server.PID, server.PID), err)
}

// signalServer sends a signal to the process that has a state directory, so that it writes a dump. It first checks that
// the process has the directory open: a process ID in a file may belong to another container or to another process.
func signalServer(s statedir.Server, state string) error {
	if s.Dumps == "" {
		return fmt.Errorf("process %d writes no dumps (watchdog.enabled is false): a signal would end it", s.PID)
	}
	holds, err := holdsFile(s.PID, filepath.Join(state, "serve.json"))
	if err == nil && !holds {
		err = errors.New("the process does not have the state directory open: run the command where the server runs, in " +
			"its container")
	}
	if err == nil {
		err = syscall.Kill(s.PID, statedir.DumpSignal)
	}
	if err != nil {
		return fmt.Errorf("send %s to process %d: %w", unix.SignalName(statedir.DumpSignal), s.PID, err)
	}
	return nil
}

// await waits for a dump that a process began after a time.
func (d *dumper) await(ctx context.Context, s statedir.Server, began time.Time) (watchdog.Dump, bool) {
	ctx, cancel := context.WithTimeout(ctx, d.patience)
	defer cancel()
	for {
		if dump, ok := watchdog.Find(s.Dumps, s.PID, began); ok {
			return dump, true
		}
		if retry.Sleep(ctx, 100*time.Millisecond) != nil {
			return watchdog.Dump{}, false
		}
	}
}

// holdsFile reports whether a process has a file open. It returns true on systems without /proc.
func holdsFile(pid int, file string) (bool, error) {
	want, err := os.Stat(file)
	if err != nil {
		return false, err
	}
	if _, err := os.Stat("/proc/self/fd"); err != nil {
		return true, nil
	}
	fds := fmt.Sprintf("/proc/%d/fd", pid)
	open, err := os.ReadDir(fds)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(open, func(e os.DirEntry) bool {
		to, err := os.Readlink(filepath.Join(fds, e.Name()))
		if err != nil || filepath.Base(to) != filepath.Base(file) { // other open files may be on a disk that hangs
			return false
		}
		info, err := os.Stat(filepath.Join(fds, e.Name()))
		return err == nil && os.SameFile(info, want)
	}), nil
}
