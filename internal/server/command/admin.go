package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/client"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1/internalv1connect"
	"github.com/packhorse-git/packhorse/internal/server/config"
	"github.com/packhorse-git/packhorse/internal/store"
)

// adminTimeout is the time limit of work that takes a server no time.
const adminTimeout = 10 * time.Second

// knock returns an error if no process listens on a socket.
func knock(socket string) error {
	conn, err := net.DialTimeout("unix", socket, adminTimeout)
	if err != nil {
		return err
	}
	return conn.Close()
}

// withServer calls do with a client of the process at an admin socket. what is the kind of process for messages.
func withServer(what, socket string, do func(*client.Client) error) error {
	switch err := knock(socket); {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ECONNREFUSED):
		return fmt.Errorf("no %s answers at %s: start the %[1]s, or name its state directory with --state DIR, --root DIR "+
			"or --config FILE", what, socket)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%s: permission denied: run the command as the user of the %s", socket, what)
	case err != nil:
		return fmt.Errorf("ask the %s at %s: %w", what, socket, err)
	}
	return withClient("unix:"+socket, client.Options{}, do)
}

// runAdmin has a process do work, and reads the result into v. It calls item with each item of the response and show
// with its progress; both may be nil. The error of the process is a *connect.Error.
func runAdmin(ctx context.Context, c *client.Client, request *internalv1.RunRequest, item func(json.RawMessage) error,
	show store.Progress, v any) error {
	httpClient, url := c.HTTP()
	stream, err := internalv1connect.NewAdminServiceClient(httpClient, url).Run(ctx, connect.NewRequest(request))
	if err != nil {
		return err
	}
	defer stream.Close()
	for stream.Receive() {
		m := stream.Msg()
		switch {
		case m.Item != nil && item != nil:
			err = item(m.GetItem())
		case m.Progress != nil && show != nil:
			show(m.GetProgress().GetDone(), m.GetProgress().GetTotal(), m.GetProgress().GetStep())
		case m.Result != nil && v != nil:
			err = json.Unmarshal(m.GetResult(), v)
		}
		if err != nil {
			return err
		}
	}
	return stream.Err()
}

// adminClient has the work of a command done by a running server.
type adminClient struct {
	target
	role config.Role // of the server if the target names none
	what string      // the kind of server for messages
}

func gatewayClient(env Env) *adminClient {
	return &adminClient{target{env: env}, config.RoleGateway, "gateway"}
}

func (c *adminClient) addFlags(cmd *cobra.Command, stateUsage string) {
	c.target.addFlags(cmd.PersistentFlags(), stateUsage)
}

// stateUsage describes the flag --state of commands for gateways.
const stateUsage = "the state directory, `DIR` (default ~/.local/state/packhorse/gateway, or that of the server on the root)"

// socket returns the path of the admin socket. A configuration file with a root may be for serve or for a gateway: if
// there is a socket of a gateway, it is used. Without any flag, mirrors are those of the last "packhorse mirror".
func (c *adminClient) socket() (string, error) {
	switch {
	case c.root != "" || c.state != "":
	case c.role == config.RoleMirror && c.config == "":
		root := config.DefaultRoot(c.env.Getenv)
		if info, err := os.Stat(root); err == nil && info.IsDir() {
			c.root = root
		}
	case c.role == config.RoleGateway:
		gateway := config.DefaultState(config.RoleGateway, "", c.env.Getenv)
		if _, err := os.Stat(config.AdminSocket(gateway)); gateway == "" || err != nil {
			break
		}
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
	state, err := c.stateDir(c.role)
	return config.AdminSocket(state), err
}

// with calls do with a client of the server.
func (c *adminClient) with(do func(*client.Client) error) error {
	socket, err := c.socket()
	if err != nil {
		return err
	}
	return withServer(c.what, socket, do)
}

// run has the server do work, and reads the result into v.
func (c *adminClient) run(ctx context.Context, work internalv1.AdminWork, name string, v any) error {
	return c.with(func(server *client.Client) error {
		return answerOf(runAdmin(ctx, server, &internalv1.RunRequest{Work: work, Name: name}, nil, nil, v))
	})
}

// short is run for work that takes the server no time.
func (c *adminClient) short(ctx context.Context, work internalv1.AdminWork, name string, v any) error {
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	return c.run(ctx, work, name, v)
}

// completeName completes the first argument with the names in a list of the server.
func completeName[T any](c *adminClient, work internalv1.AdminWork, name func(T) string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) (names []string, _ cobra.ShellCompDirective) {
		var list []T
		if len(args) == 0 && c.short(cmd.Context(), work, "", &list) == nil {
			for _, element := range list {
				names = append(names, name(element))
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// listing completes a command that prints a list of the server, as a table or, with --json, as JSON.
func listing[T any](cmd *cobra.Command, c *adminClient, work internalv1.AdminWork,
	table func(io.Writer, []T) error) *cobra.Command {
	cmd.Args = noArgs
	asJSON := jsonFlag(cmd)
	c.addFlags(cmd, stateUsage)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var list []T
		if err := c.short(cmd.Context(), work, "", &list); err != nil {
			return err
		}
		return printResult(cmd, *asJSON, list, func(w io.Writer) error { return table(w, list) })
	}
	return cmd
}
