package command

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/client"
	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1/internalv1connect"
	"github.com/packhorse-git/packhorse/internal/schedule/retry"
	"github.com/packhorse-git/packhorse/internal/search"
	"github.com/packhorse-git/packhorse/internal/server/config"
)

// statusEvery is the interval at which --wait reads the status.
const statusEvery = 500 * time.Millisecond

func searchStatusCommand(env Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the progress of a search index",
		Long: `Status shows the progress of the index of a running search process, or of serve with --root: indexed repositories,
running jobs and failures. It uses the admin socket in the state directory. With --wait it waits until every repository
that exists now is indexed, and shows the progress on a terminal.`,
		Example: `  packhorse search status
  packhorse search status --root /srv/git --wait
  packhorse search status --config /etc/packhorse.toml --json`,
		Args: noArgs,
	}
	server := &adminClient{target{env: env}, config.RoleSearch, "server"}
	server.addFlags(cmd,
		"the server's state directory, `DIR` (default that of the server on the root, or ~/.local/state/packhorse/search)")
	wait := cmd.Flags().Bool("wait", false, "wait until every repository has an index")
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return server.with(func(c *client.Client) error {
			status, err := searchStatus(cmd.Context(), c, *wait)
			if err == nil && *wait {
				status, err = waitForIndex(cmd.Context(), c, status, cmd.ErrOrStderr())
			}
			if err != nil {
				return err
			}
			return printResult(cmd, *asJSON, status, func(w io.Writer) error { return writeStatus(w, status) })
		})
	}
	return cmd
}

// searchStatus returns the status of the index of a server. With refresh the server lists its repositories first.
func searchStatus(ctx context.Context, c *client.Client, refresh bool) (status search.Status, err error) {
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	httpClient, url := c.HTTP()
	request := &internalv1.StatusRequest{Scope: &internalv1.StatusRequest_All{All: true}, Refresh: refresh}
	answer, err := internalv1connect.NewSearchServiceClient(httpClient, url).Status(ctx, connect.NewRequest(request))
	switch {
	case connect.CodeOf(err) == connect.CodeUnimplemented:
		return status, errors.New("this server has no index: it is a storage node or a gateway, or search.enabled is " +
			"false in its configuration")
	case err != nil:
		return status, answerOf(err)
	}
	return status, json.Unmarshal(answer.Msg.GetJson(), &status)
}

// waitForIndex waits until an index is complete. On a terminal it shows the progress.
func waitForIndex(ctx context.Context, c *client.Client, status search.Status, w io.Writer) (search.Status, error) {
	show, end := terminalProgress(w)
	defer end()
	for !status.Complete {
		show(progressOf(&status))
		if retry.Sleep(ctx, statusEvery) != nil {
			return status, errors.New("interrupted")
		}
		var err error
		if status, err = searchStatus(ctx, c, false); err != nil {
			return status, err
		}
	}
	return status, nil
}

// progressOf describes the progress of an index in one line.
func progressOf(s *search.Status) string {
	line := fmt.Sprintf("%d of %d repositories are indexed", s.Repositories-s.Waiting-s.TooLarge, s.Repositories)
	if s.Failed > 0 {
		line += fmt.Sprintf(", %d failed", s.Failed)
	}
	if len(s.Jobs) > 0 {
		line += fmt.Sprintf("; %s: %d files", fault.Cut(s.Jobs[0].Repository, 40), s.Jobs[0].Files)
	}
	return line
}

// writeStatus writes a status for people.
func writeStatus(w io.Writer, s search.Status) error {
	switch {
	case s.Searching && s.Complete:
		fmt.Fprintln(w, "searches are answered from the index")
	case s.Searching:
		fmt.Fprintln(w, "searches are answered; the first index is in progress: "+progressOf(&s))
	default:
		fmt.Fprintln(w, "searches are refused: "+cmp.Or(s.Error, "the search process is starting"))
	}
	table := newTable(w, "STATE\tREPOSITORIES\tMEANING")
	fmt.Fprintf(table, "fresh\t%d\tthe index is up to date\n", s.Fresh)
	fmt.Fprintf(table, "behind\t%d\tchanged since they were indexed\n", s.Behind)
	fmt.Fprintf(table, "waiting\t%d\tnot indexed yet\n", s.Waiting)
	fmt.Fprintf(table, "too large\t%d\tnot indexed: see index.max_repository_files and max_repository_bytes\n", s.TooLarge)
	fmt.Fprintf(table, "empty\t%d\twithout files to index\n", s.Empty)
	if err := table.Flush(); err != nil {
		return err
	}
	for _, j := range s.Jobs {
		fmt.Fprintf(w, "indexing %s (%s): %d files in %.0f s\n", j.Repository, j.Kind, j.Files, j.Seconds)
	}
	for _, f := range s.Failures {
		fmt.Fprintf(w, "cannot index %s: %s\n", f.Repository, f.Error)
	}
	if more := s.Failed - len(s.Failures); more > 0 {
		fmt.Fprintf(w, "and %d more\n", more)
	}
	return nil
}
