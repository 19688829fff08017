package gitload

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
)

// loadJob is the job of the child process of `packhorse-bench neighbour`. It comes on standard input, because the
// URL may contain credentials, which must not be visible as arguments.
type loadJob struct {
	URL      string
	Insecure bool
	Clients  int
	Timeout  time.Duration
	MBPerS   float64 // of all clients together; 0: no limit
	Cold     bool
}

// loadResult is the result of the child: a line of JSON.
type loadResult struct {
	Bytes     int64
	Elapsed   time.Duration
	Requests  int
	Errors    int
	First     []string // the first errors
	Exhausted bool     // a cold load had no further shapes
}

// flowing is the child's first line: every client receives data.
const flowing = "flowing"

// loadCommand is the child of `packhorse-bench neighbour`. It works until standard input is closed, which also happens
// when its parent dies.
func loadCommand(env loadgen.Env) *cobra.Command {
	return &cobra.Command{
		Use:    "load",
		Short:  "The clones of \"packhorse-bench neighbour\"",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			loadgen.Yielding()
			var job loadJob
			in := bufio.NewReader(cmd.InOrStdin())
			line, err := in.ReadBytes('\n')
			if err == nil {
				err = json.Unmarshal(line, &job)
			}
			if err != nil {
				return fmt.Errorf("reading the job: %w", err)
			}
			ctx, cancel := context.WithCancel(cmd.Context())
			defer cancel()
			go func() { // ends with the process: reads of standard input cannot be interrupted
				defer cancel()
				io.Copy(io.Discard, in) //nolint:errcheck // any end is the end
			}()
			result, err := job.run(ctx, env)
			if err != nil {
				return err
			}
			return json.NewEncoder(env.Stdout).Encode(result)
		},
	}
}

// run clones until the context ends.
func (j *loadJob) run(ctx context.Context, env loadgen.Env) (*loadResult, error) {
	t, err := loadgen.ParseTarget(j.URL, j.Insecure)
	if err != nil {
		return nil, err
	}
	var load *loadgen.Load
	var cold *shapes
	if j.Cold {
		refs, err := ListRefs(ctx, t, j.Timeout)
		if err == nil {
			cold, err = newShapes(t, refs, uint64(time.Now().UnixNano()))
		}
		if err != nil {
			return nil, fmt.Errorf("--cold: %w", err)
		}
		load = &loadgen.Load{Target: t, Timeout: j.Timeout, Next: cold.next, Check: FetchChecker(nil)}
	} else if load, _, err = PrepareFetch(ctx, t, 0, "", j.Timeout, nil); err != nil {
		return nil, err
	}
	load.Conns, load.Pace = j.Clients, j.MBPerS*1e6/float64(j.Clients)
	var begun atomic.Int64
	check := load.Check
	load.Check = func(b *loadgen.Body) error {
		if begun.Add(1) == int64(j.Clients) {
			fmt.Fprintln(env.Stdout, flowing)
		}
		return check(b)
	}
	out, err := load.Run(ctx)
	if err != nil && !errors.Is(err, context.Canceled) {
		return nil, err
	}
	return &loadResult{Bytes: out.Bytes, Elapsed: out.Elapsed, Requests: len(out.Answers), Errors: out.Failures.Count(),
		First: out.Failures.First, Exhausted: cold != nil && cold.exhausted}, nil
}

// loadProcess is the running child.
type loadProcess struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout *bufio.Reader
	stderr strings.Builder
}

// start starts this program as the child, and waits until every client receives data.
func (j *loadJob) start(ctx context.Context) (*loadProcess, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &loadProcess{cmd: exec.CommandContext(ctx, self, "load")}
	p.cmd.Stderr, p.cmd.WaitDelay = &p.stderr, 5*time.Second
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.stdout = bufio.NewReader(out)
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the load: %w", err)
	}
	err = json.NewEncoder(p.stdin).Encode(j)
	var line string
	if err == nil {
		line, err = p.stdout.ReadString('\n')
	}
	var result loadResult
	switch {
	case err == nil && strings.TrimSpace(line) == flowing:
		return p, nil
	case json.Unmarshal([]byte(line), &result) == nil:
		err = fmt.Errorf("the clones ended before all clients received data: %s", strings.Join(result.First, "; "))
	}
	p.kill()
	return nil, p.failed(err)
}

// finish stops the load and reads its result.
func (p *loadProcess) finish() (*loadResult, error) {
	p.stdin.Close()
	result := &loadResult{}
	err := json.NewDecoder(p.stdout).Decode(result)
	if err = errors.Join(err, p.cmd.Wait()); err != nil {
		return nil, p.failed(err)
	}
	return result, nil
}

func (p *loadProcess) failed(err error) error {
	return fmt.Errorf("the load process failed: %w %s", err, loadgen.Clean([]byte(p.stderr.String())))
}

// kill ends the child, unless it has ended.
func (p *loadProcess) kill() {
	if p.cmd.ProcessState == nil {
		p.cmd.Process.Kill()
		p.cmd.Wait() //nolint:errcheck // it was killed
	}
}
