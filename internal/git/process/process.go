// Package process runs git commands and hooks. Each class of commands has a number of slots and a time limit. A command
// and all processes that it started are killed when its result is not needed any more.
//
// A command gets an environment made from scratch (see environment), file descriptors 0, 1 and 2, and Command.Files. It
// leads a process group, which is killed when the command ends or its context does, so that no grandchild outlives
// them. Only a process that leaves the group by setsid(2) escapes. A second process kills the rest if this one is
// killed; see git/reaper. No shell is involved.
//
// Ownership: the caller that starts a Process reads Stdout to its end or calls Kill, and then calls Wait. The slot is
// released when the process has ended, even without Wait.
package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/reaper"
	"github.com/packhorse-git/packhorse/internal/schedule/balance"
	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
)

// Class is a kind of work with its own limits, such as "pack".
type Class string

// Limits bound the commands of one class.
type Limits struct {
	Slots int           // maximum number of running commands
	Queue int           // maximum number of commands that wait for a slot
	Wait  time.Duration // maximum time to wait for a slot; 0: as long as its context
	// Anonymous is as in balance.Limits.
	Anonymous float64
	// PerRepository is the maximum number of slots of one repository while others have commands (balance.Limits.Each).
	// 0: all but one; negative: all.
	PerRepository int
	Nice          int // added to the niceness of the server: 0 to 19
	// Memory is the maximum private memory in bytes of each process of a command (RLIMIT_DATA). Further allocations fail
	// in the process. 0 means no limit. Linux only.
	Memory int64
	Slow   time.Duration // wall time after which a command is logged as slow; 0: never
	Time   time.Duration // wall time after which a command is killed; 0 for no limit
}

func (l *Limits) queue() balance.Limits {
	each := l.PerRepository
	if each == 0 {
		each = l.Slots - 1
	}
	return balance.Limits{Queue: l.Queue, Wait: l.Wait, Anonymous: l.Anonymous, Each: max(each, 0)}
}

// Options configure a Runner.
type Options struct {
	Git     string // path or name of the git program, looked up once; "": git
	Classes map[Class]Limits
	TempDir string // the commands' TMPDIR; "": the system's default
	// Reaper is the command that runs the reaper, which kills the commands if this process is killed
	// (reaper.Options.Command). Empty: no reaper.
	Reaper     []string
	Registerer prometheus.Registerer // of metrics; may be nil
	Log        *slog.Logger
	Account    func(*os.ProcessState) // is called with each ended process, and must not block. It may be nil.
}

// Runner starts commands. It is safe for concurrent use.
type Runner struct {
	git     string
	env     map[string]string // of git
	classes map[Class]class
	metrics *metrics
	log     *slog.Logger
	reaper  *reaper.Keeper // nil: none
	account func(*os.ProcessState)
	starts  starts

	programEnv map[string]string // of other programs

	stopping context.Context // ends when Close is called, for commands in a queue
	stop     context.CancelFunc

	starter   *starter
	dirChecks chan struct{} // limits concurrent checks of directories

	mu       sync.Mutex // held only briefly, not while a process is started
	closed   bool
	starting int // starts in progress
	running  map[*Process]struct{}
	ended    chan struct{} // closed once closed is set, nothing starts and running is empty
}

type class struct {
	limits Limits
	slots  *balance.Slots
}

// New looks up the git program and creates the slots of the classes. It also marks all inherited file descriptors
// except 0, 1 and 2 as close-on-exec, so that no child of this process gets them.
func New(o Options) (*Runner, error) {
	if o.Git == "" {
		o.Git = "git"
	}
	path, err := exec.LookPath(o.Git)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return nil, fmt.Errorf("find the git program: %w", err)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	closeOnExec()
	metrics := newMetrics(o.Registerer)
	r := &Runner{
		git: path, env: environment(o.TempDir), programEnv: programEnvironment(o.TempDir), metrics: metrics,
		log: o.Log, account: o.Account,
		classes: make(map[Class]class, len(o.Classes)),
		starter: newStarter(metrics), dirChecks: make(chan struct{}, maxDirChecks),
		running: make(map[*Process]struct{}),
		ended:   make(chan struct{}),
	}
	r.reaper = reaper.Keep(reaper.Options{Command: o.Reaper, Metrics: metrics.reaper, Log: o.Log})
	r.stopping, r.stop = context.WithCancel(context.Background())
	for name, l := range o.Classes {
		r.classes[name] = class{limits: l, slots: balance.NewSlots(l.Slots, l.queue(), balance.Clock{})}
	}
	return r, nil
}

// Command is one run of git.
type Command struct {
	Class      Class
	Subcommand string   // "pack-objects"; a metrics label, so it must not come from a client
	Program    string   // path of the operator's program to run instead of git; Subcommand then names it. "": git
	Args       []string // arguments after "git"; a user's text only after "--end-of-options"
	Env        []string // KEY=VALUE, added to the environment or replacing its values
	// Config is configuration for git, and for git within a Program, that overrides a repository's own: keys and
	// values. For git it is added to the server's own, which keeps repositories from running programs.
	Config [][2]string
	Dir    string    // working directory; "": /
	Stdin  io.Reader // nil: empty. If a Read fails, the command is killed
	// Stderr gets standard error as it arrives, from one goroutine. It must not block or keep the slice.
	Stderr func([]byte)
	// StdoutToStderr gives the command one pipe for both outputs, which keeps their order. Process.Stdout
	// is then empty.
	StdoutToStderr bool
	// StdoutBuffer is the size of the pipe of Stdout, if the system allows it; 0: the system's default.
	StdoutBuffer int
	Files        []*os.File // the command's descriptors from 3 on; the caller closes them
	// Grace is for commands that write into a repository. A kill sends them SIGTERM first, so that git removes its
	// locks and temporary files, and SIGKILL after this time. 0: SIGKILL at once.
	Grace time.Duration
	// Caller is the client that the command works for. Callers share the slots of a class fairly.
	Caller balance.Caller
	// Repository is the path of the repository's directory, without symbolic links. "": not for a repository.
	Repository string
	// Slot is a slot of the command's class, which Start takes over. nil: Start takes one.
	Slot *Slot
}

// String returns the name of the command in messages.
func (c *Command) String() string {
	if c.Program != "" {
		return "the hook " + c.Subcommand
	}
	return "git " + c.Subcommand
}

// Start waits for a slot of the command's class and starts it. When ctx ends, the command is killed. Errors: those of
// balance.Slots.Acquire; fault.Unavailable if the system has no room for another process (*Shortage) or the Runner is
// closed.
func (r *Runner) Start(ctx context.Context, c Command) (*Process, error) {
	cl, ok := r.classes[c.Class]
	if !ok {
		return nil, fault.New(fault.Internal, "no class %q of git commands", c.Class)
	}
	slot := c.Slot
	if slot == nil {
		var err error
		if slot, err = r.Acquire(ctx, &c); err != nil {
			return nil, err
		}
	}
	p, err := r.start(ctx, c, cl.limits, slot.Waited, slot.release)
	if err != nil {
		slot.Release()
		r.metrics.refused(&c, err)
		return nil, err
	}
	slot.release = nil
	return p, nil
}

// Run runs a command and drops its output. Errors are those of Start and of Wait. A nil Runner refuses all commands.
func (r *Runner) Run(ctx context.Context, c Command) error {
	if r == nil {
		return fault.New(fault.Unavailable, "this process runs no commands of git")
	}
	p, err := r.Start(ctx, c)
	if err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, p.Stdout())
	_, err = p.Wait()
	return err
}

// Slots returns the maximum number of running commands of a class; 0 if there is no such class.
func (r *Runner) Slots(c Class) int {
	if slots := r.Queue(c); slots != nil {
		return slots.Size()
	}
	return 0
}

// Limits returns the limits of a class.
func (r *Runner) Limits(c Class) Limits { return r.classes[c].limits }

// Queue returns the slots of a class with their queue; nil if there is no such class.
func (r *Runner) Queue(c Class) *balance.Slots { return r.classes[c].slots }

func errClosed() error {
	return fault.Retry(fault.Unavailable, fault.RetrySoon, "the server is shutting down")
}

func (r *Runner) start(ctx context.Context, c Command, l Limits, waited time.Duration, release func()) (*Process,
	error) {
	p := &Process{
		command: c, request: inflight.From(ctx), waited: waited, done: make(chan struct{}),
		silent: make(chan struct{}),
	}
	if err := r.begin(); err != nil {
		return nil, err
	}
	asked := time.Now()
	trying, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(r.stopping, cancel)()
	err := r.checkDir(trying, p)
	if err == nil {
		err = r.starter.start(trying, func() error { return r.spawn(p) })
	}
	if err != nil {
		r.begun(nil)
		if r.stopping.Err() != nil {
			return nil, errClosed()
		}
		return nil, startError(c, err)
	}
	closed := r.begun(p)
	if l.Nice != 0 {
		if err := setNice(p.process.Pid, niceness()+l.Nice); err != nil {
			r.log.Debug("cannot lower the priority of a git command", "subcommand", c.Subcommand, "error", err)
		}
	}
	if l.Memory > 0 {
		if err := limitMemory(p.process.Pid, l.Memory); err != nil && !errors.Is(err, syscall.ESRCH) {
			r.log.Warn("cannot limit the memory of a git command", "subcommand", c.Subcommand, "error", err)
		}
	}
	r.metrics.started(&c, time.Since(asked))
	p.beginSpan(ctx)
	p.watch(ctx, l.Time)
	if l.Slow > 0 {
		p.tellSlow = time.AfterFunc(l.Slow, func() { r.warnSlow(p, false) })
	}
	if closed {
		p.kill(errClosed())
	}
	go r.reap(p, release)
	return p, nil
}

// begin announces a start, for which Close then waits.
func (r *Runner) begin() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return errClosed()
	}
	r.starting++
	return nil
}

// begun ends a start that begin announced. p is nil if it failed. closed reports whether the Runner was closed during
// the start: then the caller must kill p.
func (r *Runner) begun(p *Process) (closed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.starting--
	if p != nil {
		r.running[p] = struct{}{}
	}
	r.settle()
	return r.closed
}

// settle ends a Close when nothing runs any more. The caller holds r.mu.
func (r *Runner) settle() {
	if r.closed && r.starting == 0 && len(r.running) == 0 {
		close(r.ended)
	}
}

// maxDirChecks is the maximum number of concurrent checks of directories, including those that hang.
const maxDirChecks = 64

// checkDir reads the status of the command's directory, so that a hanging disk blocks a goroutine here. In the child it
// would block a CPU of the Go runtime until the exec. The command keeps its slot, and fails after a time limit; the
// check continues.
func (r *Runner) checkDir(ctx context.Context, p *Process) error {
	dir := p.command.Dir
	if dir == "" {
		return nil
	}
	defer r.starts.begin(p)()
	ctx, cancel := context.WithTimeoutCause(ctx, r.starter.limit, errImpatient)
	defer cancel()
	if err := take(ctx, r.dirChecks); err != nil {
		return err
	}
	looked := make(chan error, 1)
	go func() {
		_, err := os.Stat(dir)
		<-r.dirChecks
		looked <- err
	}()
	select {
	case err := <-looked:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// spawn starts the process. After an error nothing remains.
func (r *Runner) spawn(p *Process) error {
	defer r.starts.begin(p)()
	files, err := p.pipes()
	defer closeAll(files)
	if err == nil {
		program, name := r.git, "git"
		if p.command.Program != "" {
			program, name = p.command.Program, p.command.Program
		}
		env := r.Environment(p.command)
		if mark := r.reaper.Env(p.command.Grace); mark != "" {
			env = append(env, mark)
		}
		p.process, err = os.StartProcess(program, append([]string{name}, p.command.Args...), &os.ProcAttr{
			Dir: cmp.Or(p.command.Dir, "/"), Env: env, Files: slices.Concat(files, p.command.Files),
			Sys: p.exit.attributes(),
		})
	}
	if err != nil {
		closeAll([]*os.File{p.stdin, p.stderr})
		if p.stdout != nil {
			p.stdout.Close()
		}
		p.stdin, p.stdout, p.stderr = nil, nil, nil
		return err
	}
	p.began = time.Now()
	return nil
}

func startError(c Command, err error) error {
	if _, ok := errors.AsType[*fault.Error](err); ok {
		return err
	}
	msg := "cannot start " + c.String()
	if kind := fault.KindOf(err); kind == fault.Cancelled || kind == fault.Deadline {
		return fault.Wrap(kind, msg, err)
	}
	if _, ok := errors.AsType[*Shortage](err); ok || errors.Is(err, errImpatient) || errors.Is(err, syscall.ETXTBSY) {
		return &fault.Error{Kind: fault.Unavailable, Msg: msg, RetryAfter: fault.RetrySoon, Err: err}
	}
	return fault.Wrap(fault.Internal, msg, err)
}

// reap waits for the process to end, kills the rest of its group, and records its use.
func (r *Runner) reap(p *Process, release func()) {
	p.awaitExit()
	if r.account != nil && p.state != nil {
		r.account(p.state)
	}
	r.mu.Lock()
	delete(r.running, p)
	r.settle()
	r.mu.Unlock()
	release()
	p.finish()
	r.metrics.finished(p)
	p.request.AddUsage(p.usage.activity())
	p.endSpan()
	if p.tellSlow != nil {
		p.tellSlow.Stop()
		if l := r.classes[p.command.Class].limits; p.usage.Wall >= l.Slow {
			r.warnSlow(p, true)
		}
	}
	if p.err != nil {
		r.log.LogAttrs(context.Background(), slog.LevelDebug, "git command failed", slog.String("subcommand",
			p.command.Subcommand),
			slog.String("exit", p.usage.Exit), slog.Duration("wall", p.usage.Wall), slog.Any("error", p.err))
	}
	close(p.done)
}

// Close refuses new commands, kills the running ones and waits until they have ended, or until ctx ends. The reaper
// continues with the remaining ones.
func (r *Runner) Close(ctx context.Context) error {
	if err := r.closeCommands(ctx); err != nil {
		r.reaper.Abandon()
		return err
	}
	r.reaper.Close()
	return nil
}

func (r *Runner) closeCommands(ctx context.Context) error {
	r.stop()
	r.mu.Lock()
	if !r.closed {
		r.closed = true
		r.settle()
	}
	running := maps.Clone(r.running)
	r.mu.Unlock()
	for p := range running {
		p.kill(errClosed())
	}
	for p := range running {
		select {
		case <-p.done:
		case <-ctx.Done():
			return fault.Wrap(fault.KindOf(ctx.Err()), "waiting for git commands to end", ctx.Err())
		}
	}
	select {
	case <-r.ended:
		return nil
	case <-ctx.Done():
		return fault.Wrap(fault.KindOf(ctx.Err()), "waiting for git commands to end", ctx.Err())
	}
}
