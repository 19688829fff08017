package command

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/observe"
	"github.com/packhorse-git/packhorse/internal/statedir"
	"github.com/packhorse-git/packhorse/internal/top"
	"github.com/packhorse-git/packhorse/internal/top/tui"
)

// topLimits: how long an answer may take, and be, in bytes.
const (
	topPatience = 10 * time.Second
	maxTop      = 64 << 20
	leastTop    = 200 * time.Millisecond // between two answers
)

// topAsker asks a running process what it does.
type topAsker struct {
	target
	ops    string
	most   int
	client http.Client
}

func topCommand(env Env) *cobra.Command {
	asker := &topAsker{target: target{env: env}, client: http.Client{Timeout: topPatience, Transport: &http.Transport{}}}
	var asJSON, once bool
	interval, sort := time.Second, string(top.ByAge)
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show the requests and Git processes of a running server",
		Long: `Top shows every second what a server does: requests in flight with their stage and caller, running Git processes, lanes,
slots and the cache, and the most expensive repositories and callers of the last minutes. It asks the private listener
(--ops). If standard output is not a terminal, it prints one frame as text.`,
		Example: `  packhorse top
  packhorse top --ops 127.0.0.1:9091 --sort cpu
  packhorse top --state /var/lib/packhorse --once
  packhorse top --json | jq '.requests.list[] | select(.stage == "packing")'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !slices.Contains(top.Sorts, top.Sort(sort)) {
				return usage(fmt.Errorf("--sort is one of %s", strings.Trim(fmt.Sprint(top.Sorts), "[]")))
			}
			if interval < leastTop || asker.most < 0 {
				return usage(fmt.Errorf("--interval is at least %v, and --most not less than 0", leastTop))
			}
			defer asker.client.CloseIdleConnections()
			return asker.show(cmd.Context(), env, asJSON, once, interval, top.Sort(sort))
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&asker.ops, "ops", "",
		"the process's private listener, `HOST:PORT` (default 127.0.0.1:9090, or what --root, --state or --config says)")
	asker.addFlags(flags, "ask the process that has the state directory `DIR`")
	flags.BoolVar(&asJSON, "json", false, "write what the process says, once")
	flags.BoolVar(&once, "once", false, "write one frame as text")
	flags.DurationVar(&interval, "interval", interval, "`TIME` between two frames")
	flags.StringVar(&sort, "sort", sort, "order of requests: `ORDER` is age, bytes, cpu, repository, caller or stage")
	flags.IntVar(&asker.most, "most", 200, "list this many requests and git commands at most, `N`")
	return cmd
}

// show asks once for JSON or text, else until the user has seen enough.
func (a *topAsker) show(ctx context.Context, env Env, asJSON, once bool, interval time.Duration, by top.Sort) error {
	address, err := a.address()
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
	from := strings.TrimPrefix(address, "http://")
	in, isFile := env.Stdin.(*os.File)
	if once || !isFile || !observe.IsTerminal(in) || !observe.IsTerminal(env.Stdout) || env.Getenv("TERM") == "dumb" {
		_, err := fmt.Fprintln(env.Stdout, tui.Frame(first, nil, tui.View{Width: 120, Sort: by, From: from}))
		return err
	}
	return tui.Run(ctx, first, tui.Options{
		In: in, Out: env.Stdout, Environ: env.Environ, From: from, Sort: by, Interval: interval,
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
		return nil, fmt.Errorf("the process's answer is not what this version of packhorse understands: %w", err)
	}
	return &s, nil
}

// address is the URL of the private listener.
func (a *topAsker) address() (string, error) {
	ops := a.ops
	if ops == "" {
		cfg, err := a.load()
		if err != nil {
			return "", err
		}
		ops = cfg.Ops.Address
		if cfg.State != "" {
			running, err := statedir.Running(cfg.State)
			if err != nil && (a.state != "" || a.root != "") {
				return "", err
			}
			if ops = cmp.Or(running.Ops, ops); running.Ops == "" && err == nil {
				ops = ""
			}
		}
	}
	if ops == "" {
		return "", errors.New("the process has no private listener; ops.address turns it on")
	}
	if strings.HasPrefix(ops, "http://") {
		return strings.TrimSuffix(ops, "/"), nil
	}
	if _, _, err := net.SplitHostPort(ops); err != nil {
		return "", usage(fmt.Errorf("--ops is HOST:PORT, as in 127.0.0.1:9090: %w", err))
	}
	return "http://" + ops, nil
}

func (a *topAsker) ask(ctx context.Context, address string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("%s%s?most=%d", address, top.Path, a.most),
		nil)
	if err != nil {
		return nil, usage(err)
	}
	answer, err := a.client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("%w; is the server running? Name its private listener with --ops HOST:PORT or its state "+
			"directory with --state DIR", err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxTop))
	switch {
	case err != nil:
		return nil, fmt.Errorf("ask %s: %w", address, err)
	case answer.StatusCode == http.StatusNotFound:
		return nil, fmt.Errorf("what answers at %s is no private listener of packhorse, or of an older version", address)
	case answer.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("ask %s: %s: %.200s", address, answer.Status, strings.TrimSpace(string(text)))
	}
	return text, nil
}
