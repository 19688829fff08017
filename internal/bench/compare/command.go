package compare

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	"github.com/packhorse-git/packhorse/internal/server/cli"
)

// comparison is the command line of `packhorse-bench compare`.
type comparison struct {
	options      Options
	a, b, routes []string
	by, unit     string
	since, until string
	json         bool
}

// units are the values of --unit.
var units = map[string]time.Duration{"auto": 0, "s": time.Second, "ms": time.Millisecond, "us": time.Microsecond,
	"ns": time.Nanosecond}

// Command returns `packhorse-bench compare`.
func Command() *cobra.Command {
	c := &comparison{}
	cmd := &cobra.Command{
		Use:   "compare A B | compare LOG --split FIELD",
		Short: "Compare the latencies of two access logs, route by route",
		Long: `Compare reads two access logs, or one whose lines name one of two pools. For each route it has the number of requests,
p50, p95 and p99 of both sides, and a confidence interval of each change. Refused, failed and cancelled requests are
counted, and excluded from the latencies.

Logs are JSON of Packhorse, GitLab Workhorse or nginx, Common Log Format with a duration at the end, or Gitea's. They may
be compressed with gzip or zstd. A log is a file, a quoted pattern for a rotated set, or - for standard input.
docs/how-to/compare.md has the keys.`,
		Example: `  packhorse-bench compare old.log new.log
  packhorse-bench compare access.log --split pool
  packhorse-bench compare --a host1.log --a host2.log --b host3.log --b host4.log --by operation
  zcat yesterday.gz | packhorse-bench compare - today.log --route '/users/*/avatar' --json`,
		Args: func(_ *cobra.Command, args []string) error { return c.arguments(args) },
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := c.parse(); err != nil {
				return cli.Usage(err)
			}
			return c.run(cmd)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&c.by, "by", "path", "routes by `path|operation`; only Packhorse's log has operations")
	flags.BoolVar(&c.json, "json", false, "print JSON")
	flags.StringVar(&c.options.Split, "split", "", "compare requests of one log by its `FIELD`, such as pool")
	flags.StringArrayVar(&c.a, "a", nil, "a `FILE` of side A; may be repeated")
	flags.StringArrayVar(&c.b, "b", nil, "a `FILE` of side B; may be repeated")
	flags.StringVar(&c.options.Duration, "duration", "", "the `FIELD` of the duration (default: that of the format)")
	flags.StringVar(&c.unit, "unit", "auto", "the unit of durations: `auto|s|ms|us|ns`")
	flags.StringArrayVar(&c.routes, "route", nil,
		"fold paths that match a `PATTERN` like /users/*/avatar or /assets/**; may be repeated")
	flags.IntVar(&c.options.Rows, "rows", 30, "show `N` routes, and the others as one")
	flags.StringVar(&c.since, "since", "",
		"only requests from this `TIME` on: 2026-11-22T04:00:00Z, or 2h for two hours ago")
	flags.StringVar(&c.until, "until", "", "only requests before this `TIME`")
	flags.BoolVar(&c.options.Failures, "failures", false, "include refused, failed and cancelled requests")
	return cmd
}

// arguments sets the logs.
func (c *comparison) arguments(args []string) error {
	a, b, split := c.a, c.b, c.options.Split != ""
	if len(args) > 0 && len(a)+len(b) > 0 {
		return errors.New("use --a and --b, or arguments, but not both")
	}
	switch {
	case len(args) == 2 && !split:
		a, b = args[:1], args[1:]
	case len(args) == 1 && split:
		a = args
	case len(args) > 0 || len(a) == 0 || (len(b) == 0) != split:
		return errors.New("compare needs two logs, A and B, or one with --split FIELD, whose lines name a pool. " +
			"Quote the pattern of a set of files, or use --a FILE --a FILE --b FILE")
	}
	inputs := 0
	for _, name := range slices.Concat(a, b) {
		if name == Stdin {
			inputs++
		}
	}
	if inputs > 1 {
		return errors.New("only one log can be standard input")
	}
	c.options.A, c.options.B = a, b
	return nil
}

// parse parses the flags that are texts.
func (c *comparison) parse() (err error) {
	o := &c.options
	if c.by != "path" && c.by != "operation" {
		return fmt.Errorf("--by %q: use path or operation", c.by)
	}
	o.ByOperation = c.by == "operation"
	unit, ok := units[c.unit]
	if !ok {
		return fmt.Errorf("--unit %q: want s, ms, us, ns or auto", c.unit)
	}
	o.Unit = unit
	for _, text := range c.routes {
		p, err := ParsePattern(text)
		if err != nil {
			return fmt.Errorf("--route: %w", err)
		}
		o.Patterns = append(o.Patterns, p)
	}
	if o.Since, err = parseWhen(c.since); err != nil {
		return fmt.Errorf("--since: %w", err)
	}
	if o.Until, err = parseWhen(c.until); err != nil {
		return fmt.Errorf("--until: %w", err)
	}
	switch {
	case o.Rows < 1 || o.Rows > maxRoutes:
		return fmt.Errorf("--rows %d: from 1 to %d", o.Rows, maxRoutes)
	case !o.Since.IsZero() && !o.Until.IsZero() && !o.Since.Before(o.Until):
		return errors.New("--since must be before --until")
	}
	return nil
}

// parseWhen parses a time, or a duration before now. An empty text is the zero time.
func parseWhen(text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04:05", time.DateTime, "2006-01-02T15:04",
		"2006-01-02 15:04", time.DateOnly} {
		if t, err := time.ParseInLocation(layout, text, time.Local); err == nil {
			return t, nil
		}
	}
	if d, err := time.ParseDuration(text); err == nil && d > 0 {
		return time.Now().Add(-d), nil
	}
	return time.Time{}, fmt.Errorf("%q: want a time like 2026-11-22T04:00:00Z or 2026-11-22, or a duration like 2h", text)
}

// run compares the logs and writes the report.
func (c *comparison) run(cmd *cobra.Command) error {
	ctx := cmd.Context()
	c.options.Stdin = cmd.InOrStdin()
	var r *Report
	ended := make(chan error, 1)
	go func() {
		var err error
		r, err = Run(ctx, c.options)
		ended <- err
	}()
	select {
	case err := <-ended:
		if err != nil && ctx.Err() == nil {
			return err
		}
	case <-ctx.Done(): // a read from a pipe may block forever
	}
	if ctx.Err() != nil {
		return errors.New("interrupted before the end of the logs: nothing was compared")
	}
	if c.json {
		return loadgen.WriteJSON(cmd.OutOrStdout(), r)
	}
	return r.WriteText(cmd.OutOrStdout())
}
