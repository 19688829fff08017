// Package reaper kills the git commands that remain when the server is killed. A parent-death signal would follow the
// thread that started a process, and would miss grandchildren. So a second process of this program, the reaper, waits
// for the end of a pipe whose other end only the server has. When the server ends, for any reason, the reaper kills
// these processes:
//
//   - all processes whose environment has the server's mark, a random number. Grandchildren inherit it, even in
//     separate process groups and sessions;
//   - all processes in the process group of such a process, if that is the leader of the group;
//   - all descendants of these processes.
//
// It does not find a process that left its session, cleared its environment and lost its parents. Git starts none.
//
// Between clone and exec a child also holds the server's end of the pipe. So when the pipe ends, every child has its
// own environment. A process is identified by its number and start time, and is signalled through a file descriptor
// where the kernel supports it (pidfd_open(2)). So no process is killed that has reused a number.
package reaper

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/schedule/retry"
)

// Mark is the name of the variable that marks a server's commands. Its value is a random number and, for a command with
// a grace period, a point and the milliseconds.
const Mark = "PACKHORSE_RUN"

// Name is this program's argument for the reaper. The others are the log format and the mark.
const Name = "reaper"

// restarts has the pauses before a reaper that ended is started again.
var restarts = retry.Policy{First: 100 * time.Millisecond, Max: 30 * time.Second}

const (
	longRun       = time.Minute      // a reaper that ran for so long before it ended counts as the first that failed
	closePatience = 10 * time.Second // for the end of a reaper, even one that is still starting
)

// Options of a Keeper.
type Options struct {
	// Command runs the reaper: the program file, Name and the log format ("auto", "json" or "text"). Empty: no reaper.
	Command []string
	Metrics Metrics
	Log     *slog.Logger

	spawn func(command []string, stdin *os.File) (*os.Process, error) // for tests
}

// Metrics receives the state of the reaper. Its methods are not called concurrently.
type Metrics interface {
	Up(bool)             // whether it runs; false first
	Failed(cause string) // "start", or "ended"
}

type noMetrics struct{}

func (noMetrics) Up(bool)       {}
func (noMetrics) Failed(string) {}

// Keeper keeps a reaper running. The nil Keeper does nothing. Safe for concurrent use.
type Keeper struct {
	options Options
	mark    string

	shut    sync.Once
	spare   bool          // the reaper is to kill nothing; set before closing is closed
	closing chan struct{} // closed by Close and Abandon
	ended   chan struct{} // closed when no reaper runs any more, and none will
}

// child is a reaper, and the pipe to it.
type child struct {
	pipe    *os.File
	process *os.Process
}

// Keep starts a reaper. It returns nil if there is no reaper to start, or the system does not support one.
func Keep(o Options) *Keeper {
	if len(o.Command) == 0 {
		return nil
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Metrics == nil {
		o.Metrics = noMetrics{}
	}
	if o.spawn == nil {
		o.spawn = spawn
	}
	if !supported {
		o.Log.Info("git commands survive if this process is killed: the reaper needs Linux")
		return nil
	}
	random := make([]byte, 16)
	rand.Read(random) // never fails
	k := &Keeper{options: o, mark: hex.EncodeToString(random), closing: make(chan struct{}), ended: make(chan struct{})}
	o.Metrics.Up(false)
	c, err := k.start()
	go k.keep(c, err)
	return k
}

// Env returns the NAME=VALUE that the environment of each command must contain; "" for the nil Keeper. The reaper sends
// a command with a grace period SIGTERM, and SIGKILL when that time has passed.
func (k *Keeper) Env(grace time.Duration) string {
	switch {
	case k == nil:
		return ""
	case grace > 0:
		return fmt.Sprintf("%s=%s.%d", Mark, k.mark, grace.Milliseconds())
	}
	return Mark + "=" + k.mark
}

// Close ends the reaper, which kills no commands: all have ended. A reaper whose start hangs is ended later.
func (k *Keeper) Close() {
	if k == nil {
		return
	}
	k.end(true)
	patience := time.NewTimer(closePatience)
	defer patience.Stop()
	select {
	case <-k.ended:
	case <-patience.C:
	}
}

// Abandon makes the reaper kill the running commands, without waiting for that.
func (k *Keeper) Abandon() {
	if k != nil {
		k.end(false)
	}
}

func (k *Keeper) end(spare bool) {
	k.shut.Do(func() {
		k.spare = spare
		close(k.closing)
	})
}

// start starts a reaper, which takes as long as the disk needs.
func (k *Keeper) start() (*child, error) {
	readEnd, writeEnd, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer readEnd.Close()
	command := append(k.options.Command[:len(k.options.Command):len(k.options.Command)], k.mark)
	process, err := k.options.spawn(command, readEnd)
	if err != nil {
		writeEnd.Close()
		return nil, err
	}
	k.options.Metrics.Up(true)
	return &child{writeEnd, process}, nil
}

// keep waits for the reaper to end, and starts the next.
func (k *Keeper) keep(c *child, err error) {
	defer close(k.ended)
	for failures := 1; ; failures++ {
		began := time.Now()
		cause := "start"
		if err == nil {
			cause = "ended"
			err = k.wait(c)
			k.options.Metrics.Up(false)
		}
		select {
		case <-k.closing:
			return
		default:
		}
		if cause == "ended" && time.Since(began) > longRun {
			failures = 1
		}
		pause := restarts.Pause(failures)
		k.options.Metrics.Failed(cause)
		k.options.Log.Warn("no reaper runs: git commands survive if this process is killed",
			"error", err, "again_in", pause.String())
		select {
		case <-k.closing:
			return
		case <-time.After(pause):
		}
		c, err = k.start()
	}
}

// wait waits for the end of the reaper, and ends it when the Keeper is closed. It always returns an error.
func (k *Keeper) wait(c *child) error {
	ended := make(chan error, 1)
	go func() {
		state, err := c.process.Wait()
		if err == nil {
			err = errors.New("it ended: " + state.String())
		}
		ended <- err
	}()
	defer c.pipe.Close()
	select {
	case err := <-ended:
		return err
	case <-k.closing:
	}
	if k.spare {
		c.process.Kill()
	}
	c.pipe.Close()
	return <-ended
}
