package loadgen

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
	"time"

	"github.com/spf13/cobra"
)

// LoadProcess is a child process that generates a load, or does other work, until its standard input is closed.
type LoadProcess struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout *bufio.Reader
	stderr bytes.Buffer
	ended  bool
}

// Ready waits until every client receives data.
func (p *LoadProcess) Ready(ctx context.Context) error {
	line, err := p.stdout.ReadString('\n')
	if err == nil && strings.TrimSpace(line) == LoadReady {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var result LoadResult
	if json.Unmarshal([]byte(line), &result) == nil && len(result.First) > 0 {
		return fmt.Errorf("the clones failed: %s", result.First[0])
	}
	return p.failed(err)
}

// Finish stops the load and reads its result.
func (p *LoadProcess) Finish(result any) error {
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

func (p *LoadProcess) failed(err error) error {
	p.Kill()
	return fmt.Errorf("the load process failed: %w %s", err, Clean(p.stderr.Bytes()))
}

// Kill ends the child.
func (p *LoadProcess) Kill() {
	if p.ended {
		return
	}
	p.ended = true
	p.cmd.Process.Kill()
	p.cmd.Wait() //nolint:errcheck // it was killed
}

// StartLoad starts this program with a hidden command, and sends it a job.
func StartLoad(ctx context.Context, job any, command string) (*LoadProcess, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &LoadProcess{cmd: exec.CommandContext(ctx, self, command)}
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
		p.Kill()
		return nil, fmt.Errorf("starting the load: %w", err)
	}
	return p, nil
}

// ReadJob reads the line of JSON that StartLoad has written. The returned reader blocks until standard input is closed.
func ReadJob(cmd *cobra.Command, job any) (in io.Reader, err error) {
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

// LoadReady is the child's first line: every client receives data.
const LoadReady = "flowing"

// LoadResult is the child's result: a line of JSON.
type LoadResult struct {
	Bytes     int64
	Elapsed   time.Duration
	Requests  int
	Errors    int
	First     []string // the first errors
	Exhausted bool     // a cold load had no further shapes
}
