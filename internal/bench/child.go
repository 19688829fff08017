package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

// child is a server that was started for a run.
type child struct {
	name   string // in errors: "the gateway"
	pid    int
	cancel context.CancelFunc
	ended  chan struct{}
	err    error // valid once ended is closed
	log    string

	// foreign says that it is no program of ours: it ends by the signal that it is stopped with.
	foreign bool
}

// childGrace is how long a child may take to end.
const childGrace = 45 * time.Second

// server is the packhorse program that runs the servers which a benchmark starts.
type server struct{ program string }

func (s *server) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&s.program, "packhorse", "", "the server `PROGRAM` to start (default: packhorse beside this program, or else in the PATH)")
}

// find looks for the program, unless it is given.
func (s *server) find() (err error) {
	if s.program != "" {
		return nil
	}
	if self, err := os.Executable(); err == nil {
		s.program = filepath.Join(filepath.Dir(self), "packhorse")
		if _, err := os.Stat(s.program); err == nil {
			return nil
		}
	}
	if s.program, err = exec.LookPath("packhorse"); err != nil {
		return fmt.Errorf("no packhorse program to start as a server: name it with --packhorse: %w", err)
	}
	return nil
}

// startChild runs a program. What it prints goes to the file log. Whoever starts it has to stop it.
func startChild(ctx context.Context, name, program string, args []string, log string) (*child, error) {
	file, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	cmd := exec.CommandContext(run, program, args...)
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = file, file, childGrace
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a terminal's Ctrl-C is for the bench, which then ends the child
	endWithUs(cmd.SysProcAttr)
	c := &child{name: name, cancel: cancel, ended: make(chan struct{}), log: log}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // the child ends when its parent's thread does: this one waits for it
		defer runtime.UnlockOSThread()
		defer close(c.ended)
		err := cmd.Start()
		started <- err
		if err == nil {
			c.err = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		cancel()
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	c.pid = cmd.Process.Pid
	return c, nil
}

// await asks again and again until something is so. A child that ends before that is an error.
func (c *child) await(ctx context.Context, so func() bool) error {
	for !so() {
		select {
		case <-c.ended:
			return fmt.Errorf("%s did not start%s", c.name, c.lastWords())
		default:
		}
		if !sleep(ctx, 20*time.Millisecond) {
			return ctx.Err()
		}
	}
	return nil
}

// addresses are those that a role writes into its state directory.
type addresses struct{ HTTP, SSH, Listen, Ops string }

// addresses waits until the child has written them, and is ready.
func (c *child) addresses(ctx context.Context, state string) (a addresses, err error) {
	err = c.await(ctx, func() bool {
		files, _ := filepath.Glob(filepath.Join(state, "*.json"))
		for _, file := range files {
			b, err := os.ReadFile(file)
			if err == nil && json.Unmarshal(b, &a) == nil && a.Ops != "" {
				return isReady(ctx, a.Ops)
			}
		}
		return false
	})
	return a, err
}

// isReady asks a private listener whether requests should come.
func isReady(ctx context.Context, ops string) bool {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	resp, err := opsGet(ctx, ops+"/readyz")
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// opsGet asks a private listener on a connection that is not kept.
func opsGet(ctx context.Context, url string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{DisableKeepAlives: true}
	return transport.RoundTrip(req)
}

// stop ends the child. What goes wrong with it is an error with the end of its log. It may be called again.
func (c *child) stop() error {
	c.cancel()
	<-c.ended
	if exit, ok := errors.AsType[*exec.ExitError](c.err); ok && !c.foreign {
		return fmt.Errorf("%s ended with %w%s", c.name, exit, c.lastWords())
	}
	return nil
}

// how says how a child that has ended did.
func (c *child) how() string {
	if c.err == nil {
		return "exit status 0"
	}
	return c.err.Error()
}

// lastLog is how much of a child's log an error repeats.
const lastLog = 1000

// lastWords are the end of the child's log, to be put behind an error.
func (c *child) lastWords() string {
	b, err := os.ReadFile(c.log)
	if err != nil || len(b) == 0 {
		return ""
	}
	return "; the end of its log: " + clean(b[max(0, len(b)-lastLog):])
}
