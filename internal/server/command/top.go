package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/operations/observe"
	"github.com/packhorse-git/packhorse/internal/operations/top"
)

const (
	topTimeout  = 10 * time.Second // of one request
	minInterval = 200 * time.Millisecond
)

// topAsker asks a running process for its requests.
type topAsker struct {
	target
	ops string
}

func topCommand(env Env) *cobra.Command {
	asker := &topAsker{target: target{env: env}}
	var asJSON, once bool
	interval, sort := time.Second, string(top.ByAge)
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show the requests and Git processes of a running server",
		Long: `Top shows the work of a server, every second: requests in flight with their stage and caller, and running Git
processes. It also shows lanes, slots, the cache, and the most expensive repositories and callers of the last minutes.

It reads them from the private listener (--ops). If standard output is not a terminal, it prints one frame as text.`,
		Example: `  packhorse top
  packhorse top --ops 127.0.0.1:9091 --sort cpu
  packhorse top --state /var/lib/packhorse --once
  packhorse top --json | jq '.requests.list[] | select(.stage == "packing")'`,
		Args:        noArgs,
		Annotations: map[string]string{"most": "at most 200 requests and Git commands are listed"},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !slices.Contains(top.Sorts, top.Sort(sort)) {
				return usage(fmt.Errorf("--sort is one of %s", strings.Trim(fmt.Sprint(top.Sorts), "[]")))
			}
			if interval < minInterval {
				return usage(fmt.Errorf("--interval has to be at least %v", minInterval))
			}
			return asker.show(cmd.Context(), env, asJSON, once, interval, top.Sort(sort))
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&asker.ops, "ops", "", opsUsage)
	asker.addFlags(flags, "use the server with the state directory `DIR`")
	flags.BoolVar(&asJSON, "json", false, "print one response as JSON")
	flags.BoolVar(&once, "once", false, "print one frame as text")
	flags.DurationVar(&interval, "interval", interval, "`DURATION` between two frames")
	flags.StringVar(&sort, "sort", sort, "order of requests: `ORDER` is age, bytes, cpu, repository, caller or stage")
	return cmd
}

// show prints one response as JSON or text, or shows frames on a terminal until the user ends it.
func (a *topAsker) show(ctx context.Context, env Env, asJSON, once bool, interval time.Duration, by top.Sort) error {
	address, err := a.privateListener(a.ops)
	if err != nil {
		return err
	}
	text, err := a.ask(ctx, address)
	if err != nil {
		return err
	}
	if asJSON {
		_, err := env.Stdout.Write(text)
		return err
	}
	first, err := decodeTop(text)
	if err != nil {
		return err
	}
	in, isIn := env.Stdin.(*os.File)
	out, isOut := env.Stdout.(*os.File)
	if once || !isIn || !isOut || !observe.IsTerminal(in) || !observe.IsTerminal(out) || env.Getenv("TERM") == "dumb" {
		_, err := fmt.Fprintln(env.Stdout, top.Frame(first, nil, top.View{Width: 120, Sort: by, From: address}))
		return err
	}
	return top.Show(ctx, first, top.ScreenOptions{
		In: in, Out: out, From: address, Sort: by, Interval: interval,
		Source: func(ctx context.Context) (*top.State, error) {
			text, err := a.ask(ctx, address)
			if err != nil {
				return nil, err
			}
			return decodeTop(text)
		},
	})
}

func decodeTop(text []byte) (*top.State, error) {
	var s top.State
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, fmt.Errorf("this version of packhorse does not understand the response of the server: %w", err)
	}
	return &s, nil
}

func (a *topAsker) ask(ctx context.Context, address string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, topTimeout)
	defer cancel()
	text, err := ask(ctx, address, top.Path)
	refused, isRefused := errors.AsType[*refusal](err)
	switch {
	case isRefused && refused.status == http.StatusNotFound:
		return nil, fmt.Errorf("%s is not the private listener of packhorse, or of an older version", address)
	case isRefused:
		return nil, fmt.Errorf("ask %s: %w", address, err)
	case err != nil:
		return nil, fmt.Errorf("%w; is the server running? Name its private listener with --ops HOST:PORT or its state "+
			"directory with --state DIR", err)
	}
	return text, nil
}
