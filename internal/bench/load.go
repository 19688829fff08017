package bench

import (
	"bufio"
	"bytes"
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

	"github.com/packhorse-git/packhorse/internal/git"
)

// loadJob is what `packhorse-bench neighbour` tells its child process, on standard input and not as arguments, because the
// requests hold credentials.
type loadJob struct {
	URL      string // without user and password
	Auth     string
	Insecure bool
	Clients  int
	Timeout  time.Duration
	// BytesPerS is the pace of all clients together; zero: none.
	BytesPerS float64
	// Rate is of requests a second in all, due at fixed times; zero: each client asks as soon as it can.
	Rate float64

	// A warm load replays one request.
	Request    []byte
	Size, Tail int64 // the verified answer's layout

	// A cold load makes its own.
	Format string
	Tips   []string
	Seed   uint64
	Full   bool // whole histories
	// A load that ends by itself begins no request after Duration, or makes so many in all. Refusals are no errors in it.
	Duration time.Duration
	Count    int
}

// loadResult is the child's answer: a line of JSON.
type loadResult struct {
	Bytes     int64
	Elapsed   time.Duration
	Requests  int
	Refused   int
	Errors    int
	First     []string // of the errors
	Exhausted bool     // a cold load had no more shapes
}

func newLoadJob(t *target) *loadJob {
	return &loadJob{URL: t.String(), Auth: t.auth, Insecure: t.tls != nil && t.tls.InsecureSkipVerify}
}

// cold has the job make clones that no cache has, of a repository with these refs.
func (j *loadJob) cold(refs *refList) error {
	j.Format, j.Tips, j.Seed = refs.format.String(), coldTips(refs.refs), uint64(time.Now().UnixNano())
	if len(j.Tips) == 0 {
		return errors.New("the repository has no branches, tags or pull requests to clone")
	}
	return nil
}

// loadReady is the child's first line: every client receives.
const loadReady = "flowing"

// loadCommand is the child of `packhorse-bench neighbour`. It reads a job from standard input and works until that is closed, which also
// happens when its parent dies.
func loadCommand(env Env) *cobra.Command {
	return &cobra.Command{
		Use:    "load",
		Short:  "The clones of \"packhorse-bench neighbour\"",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			yielding()
			var job loadJob
			in, err := readJob(cmd, &job)
			if err != nil {
				return err
			}
			stop := make(chan struct{})
			go func() { // ends with the process at the latest: nothing stops a read from standard input
				defer close(stop)
				io.Copy(io.Discard, in) //nolint:errcheck // any end is the end
			}()
			result, err := job.run(cmd.Context(), stop, func() { fmt.Fprintln(env.Stdout, loadReady) })
			if err != nil {
				return err
			}
			return json.NewEncoder(env.Stdout).Encode(result)
		},
	}
}

// readJob reads the line of JSON that startLoad has written. in is the rest of standard input: nothing, until it is closed.
func readJob(cmd *cobra.Command, job any) (in io.Reader, err error) {
	r := bufio.NewReader(cmd.InOrStdin())
	line, err := r.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, job)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the job: %w", err)
	}
	return r, nil
}

// run is the child's work.
func (j *loadJob) run(ctx context.Context, stop <-chan struct{}, flowing func()) (*loadResult, error) {
	t, err := parseTarget(j.URL, j.Insecure)
	if err != nil {
		return nil, err
	}
	t.auth = j.Auth
	r := &replay{target: t, clients: j.Clients, timeout: j.Timeout, flowing: flowing, rate: j.Rate, pace: j.BytesPerS / float64(max(j.Clients, 1))}
	var ref *reference
	var cold *shapes
	if len(j.Tips) > 0 {
		format, err := git.ParseObjectFormat(j.Format)
		if err != nil {
			return nil, err
		}
		cold = newShapes(t, format, j.Tips, j.Seed)
		cold.full = j.Full
		r.next = cold.next
	} else {
		ref = &reference{size: j.Size, tail: j.Tail}
		r.next = func() []byte { return j.Request }
	}
	r.check = fetchChecker(t, ref)
	if j.Duration > 0 || j.Count > 0 {
		r.duration, r.refusals, r.flowing = j.Duration, true, nil
	}
	if next, left := r.next, new(atomic.Int64); j.Count > 0 {
		left.Store(int64(j.Count))
		r.next = func() []byte {
			if left.Add(-1) < 0 {
				return nil
			}
			return next()
		}
	}
	out, err := r.run(ctx, stop)
	if err != nil {
		return nil, err
	}
	return &loadResult{Bytes: out.bytes, Elapsed: out.elapsed, Requests: out.requests, Refused: out.refused, Errors: out.failures.count(),
		First: out.failures.first, Exhausted: cold != nil && cold.exhausted}, nil
}

// loadProcess is the running child: a load, or another that works until its standard input is closed.
type loadProcess struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout *bufio.Reader
	stderr bytes.Buffer
	ended  bool
}

func startLoad(ctx context.Context, job any, args []string) (*loadProcess, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &loadProcess{cmd: exec.CommandContext(ctx, self, args...)}
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
	if err := json.NewEncoder(p.stdin).Encode(job); err != nil {
		p.kill()
		return nil, fmt.Errorf("starting the load: %w", err)
	}
	return p, nil
}

// ready waits until every clone receives.
func (p *loadProcess) ready(ctx context.Context) error {
	line, err := p.stdout.ReadString('\n')
	if err == nil && strings.TrimSpace(line) == loadReady {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var result loadResult
	if json.Unmarshal([]byte(line), &result) == nil && len(result.First) > 0 {
		return fmt.Errorf("the clones failed: %s", result.First[0])
	}
	return p.failed(err)
}

// await waits for the result of a load that ends by itself.
func (p *loadProcess) await() (*loadResult, error) {
	line, err := p.stdout.ReadBytes('\n')
	var result loadResult
	if err == nil {
		err = json.Unmarshal(line, &result)
	}
	return &result, err
}

// finish stops the load and takes what it measured.
func (p *loadProcess) finish(result any) error {
	p.stdin.Close()
	line, err := p.stdout.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, result)
	}
	p.ended = true
	if waited := p.cmd.Wait(); err != nil || waited != nil {
		return p.failed(errors.Join(err, waited))
	}
	return nil
}

func (p *loadProcess) failed(err error) error {
	p.kill()
	return fmt.Errorf("the load process failed: %w %s", err, clean(p.stderr.Bytes()))
}

// kill makes sure that the child is gone.
func (p *loadProcess) kill() {
	if p.ended {
		return
	}
	p.ended = true
	p.cmd.Process.Kill()
	p.cmd.Wait() //nolint:errcheck // it was killed
}
