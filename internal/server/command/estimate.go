package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/operations/accesslog"
)

func estimateCommand(env Env) *cobra.Command {
	assume, rows := accesslog.DefaultAssumptions(), 20
	var asJSON *bool
	cmd := &cobra.Command{
		Use:   "estimate LOG...",
		Short: "Estimate what a cache would have saved, from the access logs of a Git host",
		Long: `Estimate reads access logs of the host that serves the repositories now. It reports fetches over HTTP, their bytes and
CPU hours, and the part that a cache or a mirror would have saved. Everything stays on this machine.

It detects the format of each line. It knows the combined format of nginx, Apache, Gitea and Forgejo, and the router log
of Gitea and Forgejo. JSON may be that of GitLab Workhorse, or of nginx with the names of its variables. Files may be
compressed with gzip. "-" is standard input.`,
		Example: `  packhorse estimate /var/log/nginx/access.log*
  packhorse estimate /var/log/gitlab/gitlab-workhorse/current --window 5m
  journalctl --unit gitea --output cat | packhorse estimate - --json | jq .total`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("which log? name its files, or - for standard input")
			}
			return assume.Check()
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			reader := accesslog.NewEstimator(assume)
			for _, name := range args {
				if err := readLog(cmd.Context(), reader, name, env.Stdin); err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
			}
			report := reader.Report(max(rows, 0))
			if report.Total.Fetches == 0 && !*asJSON {
				_, err := fmt.Fprintf(cmd.ErrOrStderr(), "no fetches found in %d lines, of which %d are unreadable: is this the "+
					"access log of a Git host over HTTP?\n", report.Lines, report.Unreadable)
				return err
			}
			return printResult(cmd, *asJSON, report, report.WriteText)
		},
	}
	flags := cmd.Flags()
	flags.DurationVar(&assume.Window, "window", assume.Window,
		"count fetches of a repository within this `DURATION` as one at the origin")
	flags.Float64Var(&assume.CPUPerGB, "cpu-per-gb", assume.CPUPerGB,
		"CPU time of the origin for each GB, in `SECONDS`: measured were 6.7 to 179; 0 means unknown")
	flags.Float64Var(&assume.CPUPerFetch, "cpu-per-fetch", assume.CPUPerFetch,
		"CPU time of the origin for a fetch whose size is not logged, in `SECONDS`")
	flags.IntVar(&rows, "rows", rows, "maximum number `N` of listed repositories")
	asJSON = jsonFlag(cmd)
	return cmd
}

// readLog reads a file, or standard input if the name is "-".
func readLog(ctx context.Context, reader *accesslog.Estimator, name string, stdin io.Reader) error {
	if name == "-" {
		return reader.Read(ctx, stdin)
	}
	file, err := os.Open(name)
	if err != nil {
		return errors.Unwrap(err)
	}
	defer file.Close()
	return reader.Read(ctx, file)
}
