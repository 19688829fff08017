// Package reaper kills the git commands that remain when the server is killed. A parent-death signal would follow the
// thread that started a process, and would miss grandchildren. So a second process of this program, the reaper, reads
// from a pipe whose other end only the server has. When the server ends, for any reason, the reaper kills these
// processes:
//
//   - all processes in cgroups of the server's commands, by cgroup.kill;
//   - all processes whose environment has the server's mark, a random number. Grandchildren inherit it, even in process
//     separate groups and sessions;
//   - all processes in the process group of a command, even without the mark. They must be in the server's session and
//     must have started before the server's end was noticed. Until then the server had not reaped the group's leader,
//     so no other group could have its number;
//   - all descendants of these processes.
//
// A process that left its session, cleared its environment and lost its parents is found only through a cgroup.
//
// Between clone and exec a child also holds the server's end of the pipe. So when the pipe ends, every child has its
// own environment. A process is identified by its number and start time, and is signalled through a file descriptor
// where the kernel supports it (pidfd_open(2)). So no process is killed that has reused a number.
//
// The server sends lines: "run MARK SESSION", then "cgroup DIRECTORY" for each cgroup. When a command has started, it
// sends "+PID MILLISECONDS", with the grace period, and before the command is reaped, "-PID".
package reaper

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/schedule/retry"
)

// Mark is the name of the variable that marks a server's commands.
const Mark = "PACKHORSE_RUN"

// Name is this program's argument for the reaper.
const Name = "reaper"

// restarts has the pauses before a reaper that ended is started again.
var restarts = retry.Policy{First: 100 * time.Millisecond, Max: 30 * time.Second}

// A reaper that ran for long before it ended counts as the first that failed. One that does not read its pipe is
// killed.
const (
	longRun = time.Minute

	closePatience = 10 * time.Second // for the end of a reaper, even one that is still starting
)

// Options of a Keeper.
type Options struct {
	// Command runs the reaper: the program file, Name and the log format ("auto", "json" or "text"). Empty: no reaper.
	Command []string
	Cgroups []string // directories of cgroups that hold only commands
	Metrics Metrics  // may be nil
	Log     *slog.Logger
}

// Metrics receives the state of the reaper. Its methods are not called concurrently and must not call the Keeper.
type Metrics interface {
	Up(bool)             // whether it runs; false first
	Failed(cause string) // "start", or "ended"
}

type noMetrics struct{}

func (noMetrics) Up(bool)       {}
func (noMetrics) Failed(string) {}

// Keeper keeps a reaper running and sends it the running commands. The nil Keeper does nothing. Safe for concurrent
// use.
type Keeper struct {
	options Options
	mark    string
	spawn   func(command []string, stdin *os.File) (*os.Process, error)
	closing chan struct{} // closed by Close and Abandon
	ended   chan struct{} // closed when no reaper runs any more, and none will

	mu     sync.Mutex
	closed bool
	groups map[int]time.Duration // by leader: their grace
	child  *child                // nil: no reaper runs or starts

	sendErr error // why a line could not be sent
}

// child is a reaper, and the pipe to it. Keeper.mu guards it.
type child struct {
	pipe    *os.File
	process *os.Process // nil: it is being started
	stopped bool        // nothing more is sent
	kill    bool        // if stopped: kill the reaper before its pipe ends, so that it kills no commands
}

// stop ends the messages to a reaper. A reaper that is still starting keeps its pipe until it runs.
func (c *child) stop(kill bool) {
	if c.stopped {
		return
	}
	c.stopped, c.kill = true, kill
	if c.process != nil {
		c.end()
	}
}

// end closes the pipe of a stopped reaper.
func (c *child) end() {
	if c.kill {
		c.process.Kill()
	}
	c.pipe.Close()
}

// Keep starts a reaper, perhaps after it has returned. Commands that are added before are not lost. It returns nil if
// there is no reaper to start, or the system does not support one.
func Keep(o Options) *Keeper {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Metrics == nil {
		o.Metrics = noMetrics{}
	}
	if len(o.Command) == 0 {
		return nil
	}
	if !supported {
		o.Log.Info("git commands survive if this process is killed: the reaper needs Linux")
		return nil
	}
	random := make([]byte, 16)
	rand.Read(random) // never fails
	k := &Keeper{
		options: o, mark: hex.EncodeToString(random), spawn: spawn, groups: make(map[int]time.Duration),
		closing: make(chan struct{}), ended: make(chan struct{}),
	}
	o.Metrics.Up(false)
	err := k.start()
	go k.keep(err)
	return k
}

// Env returns the NAME=VALUE that the environment of each command must contain; "" for the nil Keeper.
func (k *Keeper) Env() string {
	if k == nil {
		return ""
	}
	return Mark + "=" + k.mark
}

// Add registers a running command, the leader of a process group. With a grace period the reaper sends the group
// SIGTERM, and SIGKILL when that time has passed.
func (k *Keeper) Add(pid int, grace time.Duration) {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.groups[pid] = grace
	k.send(addLine(pid, grace))
}

func addLine(pid int, grace time.Duration) []byte {
	return fmt.Appendf(nil, "+%d %d\n", pid, grace.Milliseconds())
}

// Remove removes a command whose group has ended. Call it before the command is reaped, after which its number can be
// reused.
func (k *Keeper) Remove(pid int) {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.groups, pid)
	k.send(fmt.Appendf(nil, "-%d\n", pid))
}

// send writes to the reaper without waiting, all or nothing: no line is longer than PIPE_BUF (pipe(7)). If the pipe is
// full, the reaper does not read. It is killed, and the next one gets the complete state.
func (k *Keeper) send(line []byte) {
	if k.child == nil || k.child.stopped {
		return
	}
	if _, err := k.child.pipe.Write(line); err != nil {
		k.sendErr = err
		k.child.stop(true)
	}
}

// Close ends the reaper, which kills no commands: all have ended. A reaper whose start hangs is ended later.
func (k *Keeper) Close() {
	if k == nil {
		return
	}
	k.shut(true)
	patience := time.NewTimer(closePatience)
	defer patience.Stop()
	select {
	case <-k.ended:
	case <-patience.C:
	}
}

// Abandon makes the reaper kill the running commands, without waiting for that.
func (k *Keeper) Abandon() {
	if k == nil {
		return
	}
	k.shut(false)
}

func (k *Keeper) shut(kill bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return
	}
	k.closed = true
	close(k.closing)
	if k.child != nil {
		k.child.stop(kill)
	}
}

var errClosing = errors.New("the server is shutting down")

// start starts a reaper, which finds the complete state in its pipe, even if the server ends now. No lock is held,
// because a start takes as long as the disk needs.
func (k *Keeper) start() error {
	c, readEnd, err := k.begin()
	if err != nil {
		return err
	}
	defer readEnd.Close()
	process, err := k.spawn(k.options.Command, readEnd)
	k.mu.Lock()
	defer k.mu.Unlock()
	if err != nil {
		c.pipe.Close()
		k.child = nil
		return err
	}
	c.process = process
	if c.stopped {
		c.end()
	}
	k.options.Metrics.Up(true)
	return nil
}

// begin makes the pipe to a reaper. From then on the reaper gets all messages.
func (k *Keeper) begin() (c *child, readEnd *os.File, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return nil, nil, errClosing
	}
	readEnd, writeEnd, err := makePipe()
	if err != nil {
		return nil, nil, err
	}
	if err := k.writeState(writeEnd); err != nil {
		writeEnd.Close()
		readEnd.Close()
		return nil, nil, err
	}
	k.child = &child{pipe: writeEnd}
	return k.child, readEnd, nil
}

// writeState writes the complete state for a reaper that starts.
func (k *Keeper) writeState(pipe *os.File) error {
	lines := [][]byte{fmt.Appendf(nil, "run %s %d\n", k.mark, session())}
	for _, dir := range k.options.Cgroups {
		if !strings.Contains(dir, "\n") {
			lines = append(lines, []byte("cgroup "+dir+"\n"))
		}
	}
	for pid, grace := range k.groups {
		lines = append(lines, addLine(pid, grace))
	}
	for _, line := range lines {
		if _, err := pipe.Write(line); err != nil {
			return err
		}
	}
	return nil
}

// keep waits for the reaper to end, and starts the next.
func (k *Keeper) keep(err error) {
	defer close(k.ended)
	for failures := 1; ; failures++ {
		began := time.Now()
		cause := "start"
		if err == nil {
			cause = "ended"
			err = k.wait()
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
		err = k.start()
	}
}

// wait waits for the end of the reaper. It always returns an error.
func (k *Keeper) wait() error {
	k.mu.Lock()
	c := k.child
	k.mu.Unlock()
	state, err := c.process.Wait()
	k.options.Metrics.Up(false)
	k.mu.Lock()
	defer k.mu.Unlock()
	c.stop(false)
	k.child = nil
	if sendErr := k.sendErr; sendErr != nil {
		k.sendErr = nil
		return fmt.Errorf("cannot send a command to the reaper: %w", sendErr)
	}
	if err != nil {
		return err
	}
	return fmt.Errorf("it ended: %s", state)
}
