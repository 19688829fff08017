package loadgen

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
)

// Child is a server that was started for a run.
type Child struct {
	Name   string // in errors: "the gateway"
	Pid    int
	cancel context.CancelFunc
	Ended  chan struct{}
	err    error // valid once ended is closed
	log    string

	// Foreign is set for a program that is not ours. Such a program may end by the signal that stops it.
	Foreign bool
}

// childGrace is how long a child may take to end.
const childGrace = 45 * time.Second

// StartChild runs a program. Its output goes to the file log. The caller has to call Stop.
func StartChild(ctx context.Context, name, program string, args []string, log string) (*Child, error) {
	file, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	cmd := exec.CommandContext(run, program, args...)
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = file, file, childGrace
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	// a terminal's Ctrl-C is for the bench, which then ends the child
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	endWithUs(cmd.SysProcAttr)
	c := &Child{Name: name, cancel: cancel, Ended: make(chan struct{}), log: log}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // the child ends when its parent's thread does: this one waits for it
		defer runtime.UnlockOSThread()
		defer close(c.Ended)
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
	c.Pid = cmd.Process.Pid
	return c, nil
}

// Await polls until so is true. It is an error if the child ends before that.
func (c *Child) Await(ctx context.Context, so func() bool) error {
	for !so() {
		select {
		case <-c.Ended:
			return fmt.Errorf("%s did not start%s", c.Name, c.LastWords())
		default:
		}
		if !Sleep(ctx, 20*time.Millisecond) {
			return ctx.Err()
		}
	}
	return nil
}

// Addresses are the contents of the file that a role writes into its state directory.
type Addresses struct{ HTTP, SSH, Listen, Ops string }

// Addresses waits until the child has written its addresses and is ready.
func (c *Child) Addresses(ctx context.Context, state string) (a Addresses, err error) {
	err = c.Await(ctx, func() bool {
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

// isReady reports whether the process with this private listener is ready.
func isReady(ctx context.Context, ops string) bool {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	resp, err := GetOps(ctx, ops+"/readyz")
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// GetOps sends a GET request to a private listener, on a separate connection.
func GetOps(ctx context.Context, url string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{DisableKeepAlives: true}
	return transport.RoundTrip(req)
}

// Stop ends the child. The error of a child that failed contains the end of its log. Stop may be called again.
func (c *Child) Stop() error {
	c.cancel()
	<-c.Ended
	if exit, ok := errors.AsType[*exec.ExitError](c.err); ok && !c.Foreign {
		return fmt.Errorf("%s ended with %w%s", c.Name, exit, c.LastWords())
	}
	return nil
}

// ExitStatus describes the end of a child that has ended.
func (c *Child) ExitStatus() string {
	if c.err == nil {
		return "exit status 0"
	}
	return c.err.Error()
}

// lastLog is the number of bytes of a child's log in an error.
const lastLog = 1000

// LastWords returns the end of the child's log, as the end of an error message.
func (c *Child) LastWords() string {
	b, err := os.ReadFile(c.log)
	if err != nil || len(b) == 0 {
		return ""
	}
	return "; the end of its log: " + Clean(b[max(0, len(b)-lastLog):])
}
