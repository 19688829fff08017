package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
)

// lingerLimit is the maximum time for which the pipes of an ended process are read and written. Only a process that
// left its group can keep them open longer.
const lingerLimit = time.Second

// Usage is the resources that a command used.
type Usage struct {
	Wall, User, System time.Duration
	Queue              time.Duration // waited for a slot
	MaxRSS             int64         // bytes, of the largest process; see rssSampler
	In, Out            int64         // bytes of standard input and standard output
	Exit               string        // "ok", "exit 128", "signal: killed"; "" while it runs
}

// Process is a command that was started.
type Process struct {
	command  Command
	request  *inflight.Request // of the command; may be nil
	span     *inflight.Span    // of the request's trace; may be nil
	waited   time.Duration
	began    time.Time
	process  *os.Process
	exit     exitWatch
	stdin    *os.File // nil if the command has none
	stdout   *Output
	stderr   *os.File
	unwatch  func()
	tellSlow *time.Timer    // nil: never
	copying  sync.WaitGroup // goroutines that copy stdin and stderr
	silent   chan struct{}  // closed when no process has standard error open any more
	tail     tail           // end of standard error
	in       atomic.Int64   // bytes written to stdin
	slow     atomic.Bool    // the command was logged as slow
	rss      rssSampler

	mu     sync.Mutex // also guards the process ID, so that no signal is sent after the process was reaped
	reaped bool
	cause  error // why we killed it
	graced *time.Timer

	done  chan struct{} // closed when the fields above are final
	state *os.ProcessState
	usage Usage
	late  sync.Once // guards usage.Out once done is closed
	err   error
}

// pipes makes the pipes and returns the child's ends, for descriptors 0, 1 and 2. After an error it returns the ends
// made so far.
func (p *Process) pipes() (child []*os.File, err error) {
	child = make([]*os.File, 3)
	if p.command.Stdin == nil {
		child[0], err = os.Open(os.DevNull)
	} else {
		child[0], p.stdin, err = os.Pipe()
	}
	if err != nil {
		return child, err
	}
	if p.stdout, child[1], err = makeOutput(p.command.StdoutBuffer); err != nil {
		return child, err
	}
	if p.stderr, child[2], err = os.Pipe(); err == nil && p.command.StdoutToStderr {
		child[1].Close()
		child[1] = child[2]
	}
	return child, err
}

func closeAll(files []*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}

// watch starts the goroutines and timers of a running process.
func (p *Process) watch(ctx context.Context, limit time.Duration) {
	stops := []func() bool{context.AfterFunc(ctx, func() {
		p.kill(fault.Wrap(fault.KindOf(ctx.Err()), p.command.String()+" was abandoned", ctx.Err()))
	})}
	if limit > 0 {
		stops = append(stops, time.AfterFunc(limit, func() {
			p.kill(fault.New(fault.Deadline, "%s took longer than %v", &p.command, limit))
		}).Stop)
	}
	p.unwatch = func() {
		for _, stop := range stops {
			stop()
		}
	}
	p.rss.start(p.process.Pid)
	p.copying.Go(p.readStderr)
	if p.stdin != nil {
		p.copying.Go(p.writeStdin)
	}
}

func (p *Process) readStderr() {
	defer close(p.silent)
	buf := make([]byte, 4<<10)
	for {
		n, err := p.stderr.Read(buf)
		if n > 0 {
			p.tail.add(buf[:n])
			if p.command.Stderr != nil {
				p.command.Stderr(buf[:n])
			}
		}
		if err != nil {
			return
		}
	}
}

func (p *Process) writeStdin() {
	source := &errReader{r: p.command.Stdin}
	// A failed write is not an error: the command does not read any more.
	io.Copy(countingWriter{p.stdin, &p.in}, source)
	if source.err != nil { // the command must not mistake a part for the whole
		p.kill(fault.Wrap(fault.KindOf(source.err), "reading the input of "+p.command.String(), source.err))
	}
	p.stdin.Close()
}

// countingWriter counts the bytes written. It does not implement io.ReaderFrom, so that bytes count as they arrive.
type countingWriter struct {
	w io.Writer
	n *atomic.Int64
}

func (w countingWriter) Write(b []byte) (int, error) {
	n, err := w.w.Write(b)
	w.n.Add(int64(n))
	return n, err
}

// errReader keeps the error of a Read. A pipe that its reader closed is not an error: the command has ended.
type errReader struct {
	r   io.Reader
	err error
}

func (r *errReader) Read(b []byte) (int, error) {
	n, err := r.r.Read(b)
	if err != nil && err != io.EOF && err != io.ErrClosedPipe {
		r.err = err
	}
	return n, err
}

// Stdout returns the command's standard output. Only one goroutine may read it.
func (p *Process) Stdout() *Output { return p.stdout }

// Pid returns the ID of the process, which is also the ID of its group.
func (p *Process) Pid() int { return p.process.Pid }

// Waited returns the time in the queue before the start.
func (p *Process) Waited() time.Duration { return p.waited }

// Done returns a channel that is closed when the process has ended and its use is known. The pipe may still have
// output.
func (p *Process) Done() <-chan struct{} { return p.done }

// Silent returns a channel that is closed when the command has closed standard error, as at its end. Stdin may still be
// read.
func (p *Process) Silent() <-chan struct{} { return p.silent }

// Kill ends the command and its whole process group. It is safe for concurrent use at any time.
func (p *Process) Kill() {
	p.kill(fault.New(fault.Cancelled, "%s was abandoned", &p.command))
}

func (p *Process) kill(cause error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reaped {
		return
	}
	if p.cause == nil {
		p.cause = cause
	}
	if p.command.Grace > 0 {
		syscall.Kill(-p.process.Pid, syscall.SIGTERM)
		if p.graced == nil {
			p.graced = time.AfterFunc(p.command.Grace, p.killNow)
		}
	} else {
		syscall.Kill(-p.process.Pid, syscall.SIGKILL)
	}
	p.stdout.SetReadDeadline(time.Unix(1, 0)) // a process outside the group must not keep the reader waiting
}

// inGrace reports whether the command got SIGTERM instead of SIGKILL.
func (p *Process) inGrace() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.graced != nil
}

// killNow kills a command whose grace period has ended.
func (p *Process) killNow() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.reaped {
		syscall.Kill(-p.process.Pid, syscall.SIGKILL)
	}
}

// awaitExit reaps the process. Before that it kills the rest of the group, because the group's ID can be reused after
// the leader was reaped. After a SIGTERM the rest of the group has the grace period, even if the leader has ended,
// because a child of git may be about to remove a lock.
func (p *Process) awaitExit() {
	p.exit.await(p.process.Pid)
	p.unwatch()
	p.rss.stop()
	if p.inGrace() {
		patience := time.NewTimer(p.command.Grace)
		defer patience.Stop()
		select {
		case <-p.silent:
		case <-patience.C:
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	syscall.Kill(-p.process.Pid, syscall.SIGKILL)
	p.state, p.err = p.process.Wait()
	p.reaped = true
	if p.graced != nil {
		p.graced.Stop()
	}
}

// finish waits for the copying to end, and sets the usage and the error.
func (p *Process) finish() {
	linger := time.Now().Add(lingerLimit)
	p.stderr.SetReadDeadline(linger)
	if p.stdin != nil {
		p.stdin.SetWriteDeadline(linger)
	}
	p.usage = Usage{Wall: time.Since(p.began), Queue: p.waited, Exit: "unknown"}
	if p.state != nil {
		p.usage.User, p.usage.System = p.state.UserTime(), p.state.SystemTime()
		p.usage.MaxRSS = p.rss.max(p.state)
		p.usage.Exit = exitText(p.state)
	}
	p.copying.Wait()
	p.stderr.Close()
	p.usage.In, p.usage.Out = p.in.Load(), p.stdout.n.Load()
	p.err = p.exitError()
}

// result returns the result of the command for the metrics.
func (p *Process) result() string {
	switch {
	case p.err == nil:
		return "ok"
	case strings.HasPrefix(p.usage.Exit, "exit "):
		if p.tail.mentions("ut of memory") || p.tail.mentions("Cannot allocate memory") {
			return "memory"
		}
		return "failed"
	case p.cause == nil && strings.HasPrefix(p.usage.Exit, "signal: "):
		return "signal"
	}
	return fault.KindOf(p.err).String()
}

func exitText(s *os.ProcessState) string {
	ws, _ := s.Sys().(syscall.WaitStatus)
	switch {
	case s.Success():
		return "ok"
	case ws.Signaled():
		return "signal: " + ws.Signal().String()
	}
	return fmt.Sprintf("exit %d", s.ExitCode())
}

// exitError returns the command's error. It is called after the process has ended and its standard error was read.
func (p *Process) exitError() error {
	if p.err != nil { // of wait4
		return fault.Wrap(fault.Internal, "waiting for "+p.command.String(), p.err)
	}
	if p.state.Success() {
		return nil
	}
	if p.cause != nil {
		return p.cause
	}
	kind, retry := fault.Internal, time.Duration(0)
	if ws, _ := p.state.Sys().(syscall.WaitStatus); ws.Signaled() {
		kind, retry = fault.Unavailable, fault.RetrySoon // killed by the kernel for lack of memory, or by the operator
	}
	text := p.usage.Exit
	if t := p.tail.text(); t != "" {
		text += ": " + t
	}
	return &fault.Error{Kind: kind, Msg: p.command.String() + " failed", RetryAfter: retry, Err: errors.New(text)}
}

// Wait waits for the end of the command and closes Stdout. Before it, read Stdout to its end or call Kill. When it
// returns, Stdin is not read any more. A caller that kills a command must make a pending Read of its Stdin return.
//
// The error is nil only for exit status 0. Its cause has the status and the last lines of standard error, for the log.
// Its kind is fault.Internal for a failure, and fault.Unavailable for a death by a signal of another process. After a
// kill it is the reason: fault.Cancelled, fault.Deadline, fault.Unavailable (the Runner closed), or the kind of Stdin's
// error. Wait may be called repeatedly.
func (p *Process) Wait() (Usage, error) {
	<-p.done
	p.late.Do(func() { // add the bytes read after its end
		p.stdout.Close()
		late := p.stdout.n.Load() - p.usage.Out
		p.usage.Out += late
		p.request.AddUsage(inflight.Usage{Out: late})
	})
	return p.usage, p.err
}
