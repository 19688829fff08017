// Package world starts the servers of a measurement: processes of packhorse, Go's file server, other programs, and slow
// links in front of them. It also has the table of the measured figures.
package world

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/client"
	"github.com/packhorse-git/packhorse/internal/bench/gitload"
	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// Settings of servers in their configuration file.
const (
	// Public is the address of a server that faces clients. They read without a token.
	Public = "[http]\naddress = \"127.0.0.1:0\"\npublic_read = true\n"
	// NoSearch turns off the search index, which would use CPU time.
	NoSearch = "[search]\nenabled = false\n"
)

// Program is the packhorse program of the servers that a benchmark starts.
type Program struct{ Path string }

// Flags adds the flag --packhorse.
func (p *Program) Flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&p.Path, "packhorse", "",
		"the server `PROGRAM` to start (default: packhorse beside this program, or in the PATH)")
}

// Find finds the program, unless it is given.
func (p *Program) Find() (err error) {
	if p.Path != "" {
		return nil
	}
	if self, err := os.Executable(); err == nil {
		p.Path = filepath.Join(filepath.Dir(self), "packhorse")
		if _, err := os.Stat(p.Path); err == nil {
			return nil
		}
	}
	if p.Path, err = exec.LookPath("packhorse"); err != nil {
		return fmt.Errorf("no packhorse program to start as a server: set --packhorse: %w", err)
	}
	return nil
}

// World is a directory with repositories and the processes of a measurement. Not safe for concurrent use.
type World struct {
	Dir string

	program string
	ends    []func() error
}

// New makes the directory. The caller closes the world.
func New(dir string, p Program) (*World, error) {
	w := &World{Dir: dir, program: p.Path}
	return w, os.MkdirAll(w.Root(), 0o700)
}

// End ends the processes, those that were started last first.
func (w *World) End() error {
	var errs []error
	for i := range w.ends {
		errs = append(errs, w.ends[len(w.ends)-1-i]())
	}
	w.ends = nil
	return errors.Join(errs...)
}

// Close ends the processes, and removes the directory.
func (w *World) Close() error { return errors.Join(w.End(), os.RemoveAll(w.Dir)) }

// Defer calls a function at the end of the world.
func (w *World) Defer(end func()) { w.ends = append(w.ends, func() error { end(); return nil }) }

// Root is the directory of the repositories.
func (w *World) Root() string { return filepath.Join(w.Dir, "repositories") }

// Repository is the path of a repository.
func (w *World) Repository(name string) string { return filepath.Join(w.Root(), name+".git") }

// Link starts a link in front of a server.
func (w *World) Link(server string) (*Link, error) {
	l, err := NewLink(server)
	if err == nil {
		w.Defer(l.Close)
	}
	return l, err
}

// Process is a process that was started for a run.
type Process struct {
	Name                  string // in errors: "the gateway"
	Pid                   int
	URL, SSH, Listen, Ops string // addresses of a process of packhorse
	State                 string // its state directory
	Ended                 chan struct{}
	MayFail               bool // it may end by a signal
	program, log          string
	cancel                context.CancelFunc
	err                   error // valid once Ended is closed
}

// Start starts a process of packhorse in a role, as "serve", and waits until it is ready. Its configuration, its state
// and its log are in a directory of this name.
func (w *World) Start(ctx context.Context, role, name, settings string, args ...string) (*Process, error) {
	dir := filepath.Join(w.Dir, name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	config, state := filepath.Join(dir, "packhorse.toml"), filepath.Join(dir, "state")
	if err := os.WriteFile(config, []byte(settings), 0o600); err != nil {
		return nil, err
	}
	args = append([]string{role, "--config", config, "--state", state, "--ops", "127.0.0.1:0", "--log-level", "warn",
		"--log-format", "json"}, args...)
	p, err := w.start(ctx, "the "+name, w.program, args, filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	p.State = state
	return p, p.Await(ctx, func() bool { return p.isReady(ctx) })
}

// StartMirror starts an empty mirror of a Git host. Its repositories are in the directory NAME/root/origin, and its URL
// is that of the mirrored repositories. The settings are lines of its [[mirror]] table.
func (w *World) StartMirror(ctx context.Context, name, from, settings string) (*Process, error) {
	p, err := w.Start(ctx, "mirror", name, NoSearch+fmt.Sprintf("[[mirror]]\nfrom = %q\nto = \"origin\"\n", from)+settings,
		"--root", filepath.Join(w.Dir, name, "root"), "--http", "127.0.0.1:0")
	if err == nil {
		p.URL += "/origin"
	}
	return p, err
}

// isReady reads the addresses that the process has written into its state directory.
func (p *Process) isReady(ctx context.Context) bool {
	files, _ := filepath.Glob(filepath.Join(p.State, "*.json"))
	for _, file := range files {
		var a struct{ HTTP, SSH, Listen, Ops string }
		if b, err := os.ReadFile(file); err != nil || json.Unmarshal(b, &a) != nil || a.Ops == "" {
			continue
		}
		p.URL, p.SSH, p.Listen, p.Ops = a.HTTP, a.SSH, a.Listen, a.Ops
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		response, err := loadgen.GetOps(ctx, p.Ops+"/readyz")
		if err != nil {
			return false
		}
		response.Body.Close()
		return response.StatusCode == http.StatusOK
	}
	return false
}

var staticURL = regexp.MustCompile(`http://[0-9.:]+/`)

// Static starts Go's file server for one file, in a process of its own.
func (w *World) Static(ctx context.Context, name, file string) (*Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p, err := w.start(ctx, "packhorse-bench limit", self, []string{"limit", file, "--http", "127.0.0.1:0"},
		filepath.Join(w.Dir, "static "+name+".log"))
	if err != nil {
		return nil, err
	}
	return p, p.Await(ctx, func() bool {
		text, _ := os.ReadFile(p.log)
		p.URL = string(staticURL.Find(text))
		return p.URL != ""
	})
}

// Other starts another program, and waits until its address accepts connections.
func (w *World) Other(ctx context.Context, name, program, address string, args ...string) (*Process, error) {
	p, err := w.start(ctx, name, program, args, filepath.Join(w.Dir, filepath.Base(program)+".log"))
	if err != nil {
		return nil, err
	}
	p.MayFail = true
	return p, p.Await(ctx, func() bool {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
}

// FreePort returns a port that was free a moment ago, for programs that cannot choose one.
func FreePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}

// grace is how long a process may take to end.
const grace = 45 * time.Second

// start runs a program. Its output goes to the file log.
func (w *World) start(ctx context.Context, name, program string, args []string, log string) (*Process, error) {
	file, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	cmd := exec.CommandContext(run, program, args...)
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = file, file, grace
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	// a terminal's Ctrl-C is for the bench, which then ends the process
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	endWithUs(cmd.SysProcAttr)
	p := &Process{Name: name, program: program, cancel: cancel, Ended: make(chan struct{}), log: log}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // the process ends when its parent's thread does: this one waits for it
		defer runtime.UnlockOSThread()
		defer close(p.Ended)
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		cancel()
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	p.Pid = cmd.Process.Pid
	w.ends = append(w.ends, p.Stop)
	return p, nil
}

// Await polls until so is true. It is an error if the process ends before that.
func (p *Process) Await(ctx context.Context, so func() bool) error {
	for !so() {
		select {
		case <-p.Ended:
			return fmt.Errorf("%s did not start%s", p.Name, p.LastWords())
		default:
		}
		if !loadgen.Sleep(ctx, 20*time.Millisecond) {
			return ctx.Err()
		}
	}
	return nil
}

// Stop ends the process. The error of one that failed contains the end of its log. Stop may be called again.
func (p *Process) Stop() error {
	p.cancel()
	<-p.Ended
	if exit, ok := errors.AsType[*exec.ExitError](p.err); ok && !p.MayFail {
		p.MayFail = true // one error is enough
		return fmt.Errorf("%s ended with %w%s", p.Name, exit, p.LastWords())
	}
	return nil
}

// LastWords returns the end of the process's log, as the end of an error message.
func (p *Process) LastWords() string {
	const most = 1000
	b, err := os.ReadFile(p.log)
	if err != nil || len(b) == 0 {
		return ""
	}
	return "; the end of its log: " + loadgen.Clean(b[max(0, len(b)-most):])
}

var tokenText = regexp.MustCompile(`phk_[0-9A-Za-z]+`)

// Token makes a token for pushes to a server.
func (p *Process) Token(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, p.program, "token", "create", "bench", "--scope", "write", "--state",
		p.State).Output()
	token := tokenText.FindString(string(out))
	if err != nil || token == "" {
		return "", fmt.Errorf("make a token for pushes: %w", cmp.Or(err, errors.New("no token was printed")))
	}
	return token, nil
}

// PushAccess makes a token and returns the environment with which git pushes to the server.
func (p *Process) PushAccess(ctx context.Context) ([]string, error) {
	token, err := p.Token(ctx)
	return []string{"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=http.extraHeader",
		"GIT_CONFIG_VALUE_0=Authorization: Bearer " + token}, err
}

// Client returns a client of the control API of the process, through its admin socket. The caller closes it.
func (p *Process) Client() (*client.Client, error) {
	return client.New("unix:"+filepath.Join(p.State, "admin.sock"), client.Options{})
}

// Maintain maintains a repository, as a server does after pushes.
func (p *Process) Maintain(ctx context.Context, repository string) error {
	c, err := p.Client()
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Repositories().Maintain(ctx, connect.NewRequest(&packhorsev1.MaintainRequest{Repository: repository}))
	return err
}

// Metrics reads the metrics of the process.
func (p *Process) Metrics(ctx context.Context) (loadgen.Metrics, error) {
	return loadgen.ReadMetrics(ctx, p.Ops)
}

// indexPatience is the timeout of the first search index.
const indexPatience = 10 * time.Minute

// AwaitIndex waits until the server has made its search index, as a server in use has. The first index costs more than
// all later pushes.
func (p *Process) AwaitIndex(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, indexPatience,
		fmt.Errorf("the server made no search index within %v: --no-search turns search off", indexPatience))
	defer cancel()
	for {
		m, err := p.Metrics(ctx)
		repositories := func(state ...string) float64 { return m.Sum("packhorse_search_repositories", state...) }
		failed, waiting := repositories(`state="failed"`), repositories(`state="waiting"`)
		select {
		case <-p.Ended:
			return errors.New("the server ended while it made its search index" + p.LastWords())
		default:
		}
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return err
		case failed > 0: // its retries would disturb the measurement
			return errors.New("the server cannot make its search index: --no-search turns search off" + p.LastWords())
		case !m.Has("packhorse_search_repositories") || repositories() > failed+waiting && waiting == 0:
			return nil
		}
		loadgen.Sleep(ctx, 100*time.Millisecond)
	}
}

// AddHistory makes a repository with a history of commits that each change one of 30 files to random bytes.
func (w *World) AddHistory(ctx context.Context, name string, commits, size int) error {
	return gitload.Synthesize(ctx, w.Repository(name), commits, size)
}

// Add makes a repository from another one or from a bundle, with all its refs.
func (w *World) Add(ctx context.Context, name, from string) error {
	return gitload.Mirror(ctx, from, w.Repository(name))
}

// AddRepositories makes many small repositories with the history of one, whose main is a commit.
func (w *World) AddRepositories(name, commit string, n int) error {
	packs, err := filepath.Glob(filepath.Join(w.Repository(name), "objects/pack/*"))
	if err != nil {
		return err
	}
	for i := range n {
		dir := w.Repository(filepath.Join("team"+strconv.Itoa(i%100), "repository"+strconv.Itoa(i)))
		for _, sub := range []string{"objects/info", "objects/pack", "refs/heads"} {
			if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
				return err
			}
		}
		config := fmt.Sprintf("[core]\n\trepositoryformatversion = 0\n\tbare = true\n[gitweb]\n\towner = user%d\n", i%10)
		files := map[string]string{"config": config, "HEAD": "ref: refs/heads/main\n",
			"refs/heads/main": commit + "\n"}
		for file, text := range files {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
				return err
			}
		}
		for _, file := range packs {
			if err := os.Link(file, filepath.Join(dir, "objects/pack", filepath.Base(file))); err != nil {
				return err
			}
		}
	}
	return nil
}

// RunProgram runs a command of packhorse to its end.
func (w *World) RunProgram(ctx context.Context, args ...string) error {
	out, err := exec.CommandContext(ctx, w.program, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("packhorse %s: %w: %s", args[0], err, loadgen.Clean(bytes.TrimSpace(out)))
	}
	return nil
}

// ChildrenCPU returns the CPU time of child processes that have ended: of git, and of servers.
func ChildrenCPU() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_CHILDREN, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
