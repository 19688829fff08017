package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/transport/httpguard"
)

// healthTimeout is the maximum time of a health check.
const healthTimeout = 5 * time.Second

func healthCommand(env Env) *cobra.Command {
	t := &target{env: env}
	var ops string
	cmd := &cobra.Command{
		Use:   "health",
		Short: "Check that a running server is ready for requests",
		Long: `Health asks the private listener of a server for /readyz, prints the response, and exits with 0 if the server is ready.
It is the health check of containers, which have no other client for HTTP.`,
		Example: `  packhorse health
  packhorse health --ops 127.0.0.1:9091
  packhorse health --state /var/lib/packhorse/state`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			address, err := t.privateListener(ops)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), healthTimeout)
			defer cancel()
			text, err := ask(ctx, address, "/readyz")
			if refused, ok := errors.AsType[*refusal](err); ok {
				return fmt.Errorf("the server at %s is not ready: %w", address, refused)
			}
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		},
	}
	cmd.Flags().StringVar(&ops, "ops", "", opsUsage)
	t.addFlags(cmd.Flags(), "use the server with the state directory `DIR`")
	return cmd
}

// maxAnswer is the maximum size of a server's response in bytes.
const maxAnswer = 64 << 20

// refusal is a response of a server other than 200.
type refusal struct {
	status int
	text   string
}

func (e *refusal) Error() string { return e.text }

// ask gets a page of a private listener, HOST:PORT. The error is a *refusal if the response is not 200.
func ask(ctx context.Context, address, path string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return nil, err
	}
	response, err := httpguard.Client(&http.Transport{DisableKeepAlives: true}).Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err == nil && response.StatusCode != http.StatusOK {
		err = &refusal{response.StatusCode, fmt.Sprintf("%s: %.200s", response.Status, bytes.TrimSpace(text))}
	}
	return text, err
}
