package search

import (
	"bufio"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/search/ipc"
)

// Work is the task of a worker: the first argument of packhorse-search.
type Work string

// Kinds of work.
const (
	WorkSearch Work = "search"
	WorkIndex  Work = "index"
)

// child is a process of packhorse-search. It is niced, has its own process group, and is killed with its group.
// Its standard error goes to the log.
type child struct {
	process *os.Process
	stdin   *os.File // the ends of this process
	stdout  *os.File

	logging sync.WaitGroup
	mu      sync.Mutex // signals are sent only to a process that is not reaped
	reaped  bool
	done    chan struct{} // closed when it is reaped and its log was read
	exit    string        // how it ended; valid after done

	saying    sync.Mutex
	lastLines []string // log lines that may explain its end
}

// childSpec describes a process to start.
type childSpec struct {
	program string
	work    Work
	rest    []string // arguments after it
	nice    int
	cpus    int // zero means all
	control *os.File
	account func(*os.ProcessState)
	log     *slog.Logger
}

// startChild starts a process. With control, that is its standard input and it has no output; otherwise both are pipes.
func startChild(s childSpec) (*child, error) {
	c := &child{done: make(chan struct{})}
	var files []*os.File
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	keep := func(f *os.File, err error) (*os.File, error) {
		if err == nil {
			files = append(files, f)
		}
		return f, err
	}
	var stdin, stdout *os.File
	var err error
	if s.control != nil {
		stdin = s.control
		stdout, err = keep(os.OpenFile(os.DevNull, os.O_WRONLY, 0))
	} else {
		if stdin, c.stdin, err = os.Pipe(); err == nil {
			keep(stdin, nil)
			if c.stdout, stdout, err = os.Pipe(); err == nil {
				keep(stdout, nil)
			}
		}
	}
	if err != nil {
		c.closePipes()
		return nil, err
	}
	logs, stderr, err := os.Pipe()
	if err != nil {
		c.closePipes()
		return nil, err
	}
	keep(stderr, nil)
	env := []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/", "LC_ALL=C.UTF-8", "TMPDIR=" + os.TempDir()}
	if race := os.Getenv("GORACE"); race != "" { // the program was built with the race detector
		env = append(env, "GORACE="+race)
	}
	if s.cpus > 0 {
		env = append(env, "GOMAXPROCS="+strconv.Itoa(s.cpus))
	}
	args := append([]string{ipc.Program, string(s.work)}, s.rest...)
	c.process, err = startNiced(s.program, args, &os.ProcAttr{
		Dir: "/", Env: env, Files: []*os.File{stdin, stdout, stderr}, Sys: &syscall.SysProcAttr{Setpgid: true},
	}, s.nice)
	if err != nil {
		logs.Close()
		c.closePipes()
		return nil, fmt.Errorf("cannot start a process for %s: %w", s.work, err)
	}
	c.logging.Go(func() { c.readLog(logs, s.log.With("work", string(s.work))) })
	go c.reap(s.account)
	return c, nil
}

func (c *child) closePipes() {
	for _, f := range []*os.File{c.stdin, c.stdout} {
		if f != nil {
			f.Close()
		}
	}
}

// readLog reads the log of the process: lines of zoekt, and of the runtime when it crashes.
func (c *child) readLog(r *os.File, log *slog.Logger) {
	defer r.Close()
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 4<<10), 64<<10)
	for lines.Scan() {
		text := lines.Text()
		log.Debug("search worker output", "output", text)
		c.saying.Lock()
		if strings.HasPrefix(text, "fatal error:") || strings.HasPrefix(text, "unexpected fault") ||
			strings.HasPrefix(text, "panic:") || len(c.lastLines) == 0 {
			c.lastLines = append(c.lastLines[:min(len(c.lastLines), 3)], text)
		}
		c.saying.Unlock()
	}
	for lines.Err() != nil { // a line that is too long
		if _, err := r.Read(make([]byte, 4<<10)); err != nil {
			break
		}
	}
}

// reason returns how the process ended with its last log lines. The process has ended.
func (c *child) reason() string {
	c.saying.Lock()
	defer c.saying.Unlock()
	if len(c.lastLines) == 0 {
		return c.exit
	}
	return c.exit + ": " + strings.Join(c.lastLines, "; ")
}

func (c *child) reap(account func(*os.ProcessState)) {
	state, err := c.process.Wait()
	if account != nil && err == nil {
		account(state)
	}
	c.mu.Lock()
	c.reaped = true
	c.mu.Unlock()
	// Only ctags may still have the log open. It ends when its input does.
	gone := make(chan struct{})
	go func() {
		c.logging.Wait()
		close(gone)
	}()
	select {
	case <-gone:
	case <-time.After(time.Second):
	}
	switch {
	case err != nil:
		c.exit = err.Error()
	case !state.Success():
		c.exit = state.String()
	default:
		c.exit = "ended"
	}
	close(c.done)
}

// kill kills the process and its group, if it still runs.
func (c *child) kill() { c.signal(unix.SIGKILL) }

func (c *child) signal(s unix.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.reaped {
		unix.Kill(-c.process.Pid, s)
	}
}
