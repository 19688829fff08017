package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

const (
	startLimit = 30 * time.Second
	stopLimit  = 60 * time.Second
)

// story is what a script has going on.
type story struct {
	dir     string
	running *serverProcess
	stuck   []net.Conn // of clients that read no more
}

type storyKey struct{}

func storyOf(ts *testscript.TestScript) *story { return ts.Value(storyKey{}).(*story) }

// end runs when the script has ended. A server that still runs is a sign that it failed; its log may say why.
func (s *story) end(t testscript.T) {
	for _, conn := range s.stuck {
		conn.Close()
	}
	if s.running != nil {
		children := childrenOf(s.running.cmd.Process.Pid)
		s.running.cmd.Process.Kill()
		s.running.wait()
		for _, pid := range children {
			syscall.Kill(-pid, syscall.SIGKILL) // each has a group of its own
		}
		t.Log("the server's log:\n" + s.running.logged())
	}
}

// server is the running server; without one the script fails.
func (s *story) server(ts *testscript.TestScript) *serverProcess {
	if s.running == nil {
		ts.Fatalf("no server runs; use serve first")
	}
	return s.running
}

// serverProcess is a running `packhorse serve`.
type serverProcess struct {
	cmd       *exec.Cmd
	http, ops string // URLs
	state     string // state directory
	ended     chan struct{}
	err       error // valid once ended is closed

	mu  sync.Mutex
	log bytes.Buffer
}

// startServer starts packhorse and waits for its first word: where it serves, or that it ended.
func startServer(dir string, env, args []string) (*serverProcess, error) {
	p := &serverProcess{ended: make(chan struct{})}
	p.cmd = exec.Command(filepath.Join(binDir, "packhorse"), args...)
	p.cmd.Dir = dir
	p.cmd.Env = env
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	serving := make(chan struct{})
	go func() {
		defer close(p.ended)
		lines := bufio.NewScanner(stderr)
		lines.Buffer(nil, 1<<20) // were it to end at a longer line, the server would wait for its log to be read
		for lines.Scan() {
			p.mu.Lock()
			p.log.Write(append(lines.Bytes(), '\n'))
			p.mu.Unlock()
			var record struct{ Msg, HTTP, Ops string }
			if json.Unmarshal(lines.Bytes(), &record) == nil && record.Msg == "serving" {
				p.http, p.ops = record.HTTP, record.Ops
				close(serving)
			}
		}
		p.err = p.cmd.Wait()
	}()
	select {
	case <-serving:
		return p, nil
	case <-p.ended:
		return nil, fmt.Errorf("packhorse ended at once: %v\n%s", p.err, p.logged())
	case <-time.After(startLimit):
		p.cmd.Process.Kill()
		return nil, fmt.Errorf("packhorse does not serve after %s\n%s", startLimit, p.logged())
	}
}

func (p *serverProcess) logged() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

func (p *serverProcess) wait() error {
	select {
	case <-p.ended:
		return p.err
	case <-time.After(stopLimit):
		p.cmd.Process.Kill()
		return fmt.Errorf("packhorse still runs after %s", stopLimit)
	}
}

// cmdServe starts a server on free ports for $REPOS, unless flags say otherwise, and sets $URL, $OPS and $STATE.
func cmdServe(ts *testscript.TestScript, neg bool, args []string) {
	s := storyOf(ts)
	if s.running != nil {
		ts.Fatalf("a server runs already; use terminate")
	}
	given := func(flag string) bool {
		return slices.ContainsFunc(args, func(a string) bool { return a == flag || strings.HasPrefix(a, flag+"=") })
	}
	all := []string{"serve"}
	for flag, value := range map[string]string{"--root": ts.Getenv("REPOS"), "--http": "127.0.0.1:0", "--ops": "127.0.0.1:0", "--log-format": "json"} {
		if !given(flag) {
			all = append(all, flag, value)
		}
	}
	env := []string{"GORACE=" + ts.Getenv("GORACE")}
	for _, name := range []string{"PATH", "HOME", "TMPDIR"} {
		env = append(env, name+"="+ts.Getenv(name))
	}
	p, err := startServer(ts.MkAbs("."), env, append(all, args...))
	if neg {
		if err == nil {
			s.running = p
			ts.Fatalf("packhorse serves, and should not")
		}
		ts.Logf("%v", err)
		return
	}
	ts.Check(err)
	s.running = p
	p.state = filepath.Join(ts.Getenv("REPOS"), ".packhorse")
	if i := slices.Index(args, "--state"); i >= 0 {
		p.state = ts.MkAbs(args[i+1])
	}
	ts.Setenv("URL", p.http)
	ts.Setenv("OPS", p.ops)
	ts.Setenv("STATE", p.state)
}

// cmdTerminate ends the server with SIGTERM and holds it to a clean end: exit code 0, no error, race or panic in its log, no process and
// no temporary file left. The log is then in serve.log. Options: -int sends SIGINT; -errors accepts errors in the log; -while FILE makes FILE once
// the server is seen to drain, for requests that wait for it.
func cmdTerminate(ts *testscript.TestScript, neg bool, args []string) {
	s := storyOf(ts)
	p := s.server(ts)
	signal, errorsLogged, while := syscall.SIGTERM, false, ""
	for i := 0; i < len(args); i++ {
		switch {
		case args[i] == "-int":
			signal = syscall.SIGINT
		case args[i] == "-errors":
			errorsLogged = true
		case args[i] == "-while" && i+1 < len(args):
			i++
			while = args[i]
		default:
			ts.Fatalf("usage: terminate [-int] [-errors] [-while FILE]")
		}
	}
	children := childrenOf(p.cmd.Process.Pid)
	ts.Check(p.cmd.Process.Signal(signal))
	if while != "" {
		p.checkDraining(ts)
		ts.Check(os.WriteFile(ts.MkAbs(while), nil, 0o644))
	}
	err := p.wait()
	s.running = nil
	log := p.logged()
	ts.Check(os.WriteFile(ts.MkAbs("serve.log"), []byte(log), 0o644))
	if neg != (err != nil) {
		ts.Fatalf("packhorse ended with %v\n%s", err, log)
	}
	if strings.Contains(log, "DATA RACE") || strings.Contains(log, "panic:") || strings.Contains(log, "goroutine ") {
		ts.Fatalf("the log has a race or a panic:\n%s", log)
	}
	if !errorsLogged && strings.Contains(log, `"level":"ERROR"`) {
		ts.Fatalf("the log has errors:\n%s", log)
	}
	for _, pid := range children {
		if syscall.Kill(pid, 0) == nil && !isZombie(pid) {
			ts.Fatalf("process %d outlived the server", pid)
		}
	}
	for _, pattern := range []string{"cache/tmp/*", "scratch/*/objects/*", "scratch/*/refs/*"} {
		if left, _ := filepath.Glob(filepath.Join(p.state, pattern)); len(left) > 0 {
			ts.Fatalf("the server left %q", left)
		}
	}
}

// checkDraining waits until readiness is red and the public listener is closed.
func (p *serverProcess) checkDraining(ts *testscript.TestScript) {
	for deadline := time.Now().Add(metricPatience); ; time.Sleep(20 * time.Millisecond) {
		resp, err := http.Get(p.ops + "/readyz")
		ts.Check(err)
		resp.Body.Close()
		conn, err := net.Dial("tcp", strings.TrimPrefix(p.http, "http://"))
		if err == nil {
			conn.Close()
		}
		if resp.StatusCode == http.StatusServiceUnavailable && err != nil {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("not draining: readyz says %s, a connection %v", resp.Status, err)
		}
	}
}

// childrenOf lists a process's children where /proc tells.
func childrenOf(pid int) []int {
	var list []int
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, name := range tasks {
		text, _ := os.ReadFile(name)
		for field := range strings.FieldsSeq(string(text)) {
			var child int
			if _, err := fmt.Sscan(field, &child); err == nil {
				list = append(list, child)
			}
		}
	}
	return list
}

func isZombie(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(text), ") Z ")
}
