// Package reaper ends what a killed server's git commands leave behind. A parent-death signal follows the thread that started a process,
// and misses grandchildren; so a second process of this program, the reaper, holds one end of a pipe whose other end the server alone has. When
// the server is gone, whatever ended it, the reaper kills until nothing is left:
//
//   - whatever is in a cgroup of the server's commands, by cgroup.kill, where there are such cgroups;
//   - whoever carries the server's mark in its environment, a random number that each command is started with. Neither a process group of
//     its own nor a session of its own takes that away from a grandchild;
//   - whoever is in a process group that the server told of, though its environment is empty: of the server's session, and started before
//     the server's end was noticed. Until then the server had not reaped the group's leader, so the number was nobody else's;
//   - whoever descends from one of these.
//
// What left its session, cleared its environment and has lost its parents too is found by the cgroup alone.
//
// The pipe ends late enough: between clone and exec a child holds the server's end of it too, so after it there is none whose environment is not
// its own yet. And it can be trusted with numbers of processes: a process is told by its number and the time it started, and is signalled through a
// descriptor where the kernel has those (pidfd_open(2)), so that no stranger is hit that was given a number meanwhile.
//
// Server and reaper talk in lines, one way: "run MARK SESSION", "cgroup DIRECTORY" for each, then "+PID MILLISECONDS" when a command has started,
// with its grace, and "-PID" before it is reaped.
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
)

// Mark is the name of the variable that marks a server's commands.
const Mark = "PACKHORSE_RUN"

// Name is this program's argument for the reaper.
const Name = "reaper"

// How long after its end a reaper is started again: at once if it ran for long, else after a pause that doubles. A reaper that does not read is ended.
const (
	firstPause = 100 * time.Millisecond
	lastPause  = 30 * time.Second
	longRun    = time.Minute

	closePatience = 10 * time.Second // for the end of a reaper, and of one that is being started
)

// Options of a Keeper.
type Options struct {
	Command []string // what runs the reaper: this program's file, Name and the format of the log, "auto", "json" or "text"; empty: there is none
	Cgroups []string // directories of cgroups in which the commands run, and nobody else
	Metrics Metrics  // may be nil
	Log     *slog.Logger
}

// Metrics is told of the reaper. Its methods are not called at the same time, and must not call the Keeper.
type Metrics interface {
	Up(bool)             // whether it runs; false first
	Failed(cause string) // "start", or "ended"
}

type unwatched struct{}

func (unwatched) Up(bool)       {}
func (unwatched) Failed(string) {}

// Keeper keeps a reaper running and tells it which commands run. The nil Keeper does nothing. It is safe for concurrent use.
type Keeper struct {
	options Options
	mark    string
	spawn   func(command []string, stdin *os.File) (*os.Process, error)
	closing chan struct{} // closed by Close and Abandon
	ended   chan struct{} // closed when no reaper runs any more, and none will

	mu     sync.Mutex
	closed bool
	groups map[int]time.Duration // by leader: their grace
	child  *child                // nil: no reaper runs, and none is being started

	unheard error // why it could not be told something
}

// child is a reaper, and the pipe to it. Keeper.mu guards it.
type child struct {
	pipe    *os.File
	process *os.Process // nil: it is being started
	left    bool        // nothing more is said to it
	kill    bool        // with left: it ends before its pipe does, so that nothing ends by it
}

// leave ends what is said to a reaper. One that is being started has its pipe until it runs, and is then left.
func (c *child) leave(kill bool) {
	if c.left {
		return
	}
	c.left, c.kill = true, kill
	if c.process != nil {
		c.end()
	}
}

// end is the end of leave.
func (c *child) end() {
	if c.kill {
		c.process.Kill()
	}
	c.pipe.Close()
}

// Keep starts a reaper, which may take until after Keep has returned; whatever the Keeper is told meanwhile is not lost. It is nil if there is to be
// none, or the system has no means for one.
func Keep(o Options) *Keeper {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Metrics == nil {
		o.Metrics = unwatched{}
	}
	if len(o.Command) == 0 {
		return nil
	}
	if !supported {
		o.Log.Info("git commands outlive this process if it is killed: only on Linux a second process ends them")
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

// Env is what the environment of a command has to have: "" or NAME=VALUE.
func (k *Keeper) Env() string {
	if k == nil {
		return ""
	}
	return Mark + "=" + k.mark
}

// Add tells of a command, the leader of a process group, that has started. With a grace the reaper asks the group to end (SIGTERM), and kills
// what is left of it after that time.
func (k *Keeper) Add(pid int, grace time.Duration) {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.groups[pid] = grace
	k.say(started(pid, grace))
}

func started(pid int, grace time.Duration) []byte {
	return fmt.Appendf(nil, "+%d %d\n", pid, grace.Milliseconds())
}

// Remove tells that a command and its group have ended; before it is reaped, and its number can be another's.
func (k *Keeper) Remove(pid int) {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.groups, pid)
	k.say(fmt.Appendf(nil, "-%d\n", pid))
}

// say writes to the reaper. It does not wait: a reaper that has left the pipe to fill up reads no more, and is ended, to be replaced by one that is told
// everything anew.
func (k *Keeper) say(line []byte) {
	if k.child == nil || k.child.left {
		return
	}
	if err := write(k.child.pipe, line); err != nil {
		k.unheard = err
		k.child.leave(true)
	}
}

// Close ends the reaper, and only that: all commands have ended. One whose start hangs is ended when it runs.
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

// Abandon has the reaper end now what still runs. It does not wait for that.
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
		k.child.leave(kill)
	}
}

var errClosing = errors.New("the server is shutting down")

// start starts a reaper. It has been told everything before it runs: should the server end now, its own are not forgotten. No lock is held meanwhile: on a
// disk that hangs it takes as long as the disk.
func (k *Keeper) start() error {
	c, theirs, err := k.begin()
	if err != nil {
		return err
	}
	defer theirs.Close()
	process, err := k.spawn(k.options.Command, theirs)
	k.mu.Lock()
	defer k.mu.Unlock()
	if err != nil {
		c.pipe.Close()
		k.child = nil
		return err
	}
	c.process = process
	if c.left {
		c.end()
	}
	k.options.Metrics.Up(true)
	return nil
}

// begin makes the pipe to a reaper, which is told from now on.
func (k *Keeper) begin() (c *child, theirs *os.File, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return nil, nil, errClosing
	}
	theirs, ours, err := makePipe()
	if err != nil {
		return nil, nil, err
	}
	if err := k.hello(ours); err != nil {
		ours.Close()
		theirs.Close()
		return nil, nil, err
	}
	k.child = &child{pipe: ours}
	return k.child, theirs, nil
}

// hello writes what a reaper has to know at its start.
func (k *Keeper) hello(pipe *os.File) error {
	errs := []error{write(pipe, fmt.Appendf(nil, "run %s %d\n", k.mark, session()))}
	for _, dir := range k.options.Cgroups {
		if !strings.Contains(dir, "\n") {
			errs = append(errs, write(pipe, []byte("cgroup "+dir+"\n")))
		}
	}
	for pid, grace := range k.groups {
		errs = append(errs, write(pipe, started(pid, grace)))
	}
	return errors.Join(errs...)
}

// keep waits for the reaper to end, and starts the next.
func (k *Keeper) keep(err error) {
	defer close(k.ended)
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
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
			pause = firstPause
		}
		k.options.Metrics.Failed(cause)
		k.options.Log.Warn("no reaper runs: git commands would outlive this process if it were killed now", "error", err, "again_in", pause.String())
		select {
		case <-k.closing:
			return
		case <-time.After(pause):
		}
		err = k.start()
	}
}

// wait waits for the end of the reaper that runs, which is an error.
func (k *Keeper) wait() error {
	k.mu.Lock()
	c := k.child
	k.mu.Unlock()
	state, err := c.process.Wait()
	k.options.Metrics.Up(false)
	k.mu.Lock()
	defer k.mu.Unlock()
	c.leave(false)
	k.child = nil
	if unheard := k.unheard; unheard != nil {
		k.unheard = nil
		return fmt.Errorf("it could not be told of a command: %w", unheard)
	}
	if err != nil {
		return err
	}
	return fmt.Errorf("it ended: %s", state)
}
