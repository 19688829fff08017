package e2e

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

const (
	startLimit = 2 * time.Minute
	stopLimit  = 60 * time.Second
)

// story is what a script has going on.
type story struct {
	dir     string
	shape   shape
	sockets string                    // directory with a short path: that of a Unix socket is limited
	running *serverProcess            // what clients reach: serve or gateway
	nodes   map[string]*serverProcess // storage nodes that run, by name
	stuck   []net.Conn                // of clients that read no more
	orphans []int                     // processes that killed nodes had started
	stores  int                       // number of stores that were made
	config  string                    // of the server of the latest store
	origin  *origin                   // the Git host that a mirror follows; nil: none
}

type storyKey struct{}

func storyOf(ts *testscript.TestScript) *story { return ts.Value(storyKey{}).(*story) }

// end runs at the end of the script. A server that still runs is a sign of a failure, so its log is printed.
func (s *story) end(t testscript.T) {
	for _, conn := range s.stuck {
		conn.Close()
	}
	for _, p := range s.all() {
		p.kill()
		t.Log("the log of " + p.name + ":\n" + p.logged())
	}
	os.RemoveAll(s.sockets)
}

// all are the processes that run, what clients reach first.
func (s *story) all() (list []*serverProcess) {
	if s.running != nil {
		list = append(list, s.running)
	}
	for _, name := range slices.Sorted(maps.Keys(s.nodes)) {
		list = append(list, s.nodes[name])
	}
	return list
}

// logged is what all have logged.
func (s *story) logged() string {
	var text strings.Builder
	for _, p := range s.all() {
		text.WriteString(p.logged())
	}
	return text.String()
}

// server is what clients reach; without one the script fails.
func (s *story) server(ts *testscript.TestScript) *serverProcess {
	if s.running == nil {
		ts.Fatalf("no server runs; use serve first")
	}
	return s.running
}

// process is what clients reach ("gateway"), or a storage node.
func (s *story) process(ts *testscript.TestScript, name string) *serverProcess {
	if name == "gateway" {
		return s.server(ts)
	}
	if s.nodes[name] == nil {
		ts.Fatalf("no storage node %s runs", name)
	}
	return s.nodes[name]
}

// serverProcess is a running `packhorse serve`, gateway or storage.
type serverProcess struct {
	name      string // "serve", "gateway", or a node's
	cmd       *exec.Cmd
	http, ops string // URLs
	ssh       string // URL; "" without
	listen    string // a node's address
	state     string // state directory
	ended     chan struct{}
	err       error // valid once ended is closed

	mu  sync.Mutex
	log bytes.Buffer
}

// startServer starts packhorse and waits for its first word: where it serves, or that it ended.
func startServer(dir string, env, args []string) (*serverProcess, error) {
	return startProcess(args[0], exec.Command(filepath.Join(binDir, "packhorse"), args...), dir, env)
}

// runPackhorse runs a command of packhorse and returns its output.
func runPackhorse(t testing.TB, dir string, args ...string) string {
	t.Helper()
	var stderr strings.Builder
	cmd := exec.Command(filepath.Join(binDir, "packhorse"), args...)
	cmd.Dir, cmd.Env, cmd.Stderr = dir, append(gittest.Env(), "GORACE=atexit_sleep_ms=0"), &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("packhorse %q: %v\n%s%s", args, err, out, &stderr)
	}
	return string(out)
}

// createToken creates an access token for pushes. The flags name the tokens' file.
func createToken(t testing.TB, user string, flags ...string) string {
	t.Helper()
	return strings.TrimSpace(runPackhorse(t, "", append([]string{"token", "create", user, "--scope", "write"},
		flags...)...))
}

// basicHeader returns the header of a client with an access token.
func basicHeader(user, token string) string {
	return "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+token))
}

// killAll ends processes, and shows their logs if the test failed or they did.
func killAll(t *testing.T, processes ...*serverProcess) {
	for _, p := range processes {
		if p == nil {
			continue
		}
		p.kill()
		if log := p.logged(); t.Failed() || strings.Contains(log, "DATA RACE") || strings.Contains(log, "panic:") {
			t.Errorf("the log of packhorse %s ends:\n%s", p.name, tail(log, 8000))
		}
	}
}

// startProcess is startServer with a command that runs packhorse.
func startProcess(name string, cmd *exec.Cmd, dir string, env []string) (*serverProcess, error) {
	p := &serverProcess{name: name, cmd: cmd, ended: make(chan struct{})}
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
			var record struct{ Msg, HTTP, SSH, Ops, Listen string }
			if json.Unmarshal(lines.Bytes(), &record) == nil && record.Msg == "serving" {
				p.http, p.ssh, p.ops, p.listen = record.HTTP, record.SSH, record.Ops, record.Listen
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

// kill ends a process at once, with its git processes.
func (p *serverProcess) kill() {
	children := childrenOf(p.cmd.Process.Pid)
	p.cmd.Process.Kill()
	p.wait()
	for _, pid := range children {
		syscall.Kill(-pid, syscall.SIGKILL) // each has a separate group
	}
}

// stop ends a process with a signal; while runs meanwhile. It holds it to a clean end: exit code 0, no error, race or
// panic in its log, no process and no temporary file left. With errorsLogged there may be errors in its log.
func (p *serverProcess) stop(ts *testscript.TestScript, neg bool, signal syscall.Signal, errorsLogged bool,
	while func()) {
	children := childrenOf(p.cmd.Process.Pid)
	ts.Check(p.cmd.Process.Signal(signal))
	while()
	err := p.wait()
	log := p.logged()
	if neg != (err != nil) {
		ts.Fatalf("%s ended with %v\n%s", p.name, err, log)
	}
	if strings.Contains(log, "DATA RACE") || strings.Contains(log, "panic:") || strings.Contains(log, "goroutine ") {
		ts.Fatalf("the log of %s has a race or a panic:\n%s", p.name, log)
	}
	if !errorsLogged && strings.Contains(log, `"level":"ERROR"`) {
		ts.Fatalf("the log of %s has errors:\n%s", p.name, log)
	}
	for _, pid := range children {
		if syscall.Kill(pid, 0) == nil && !isZombie(pid) {
			ts.Fatalf("process %d outlived %s", pid, p.name)
		}
	}
	for _, pattern := range []string{"cache/tmp/*", "scratch/*/objects/*", "scratch/*/refs/*", "*.sock"} {
		if left, _ := filepath.Glob(filepath.Join(p.state, pattern)); len(left) > 0 {
			ts.Fatalf("%s left %q", p.name, left)
		}
	}
}

// cmdTerminate ends the server with SIGTERM, and then its storage nodes, and checks that each ends cleanly. The logs
// are then in serve.log.
//
// With -int it sends SIGINT. With -errors it accepts errors in the logs. With -while FILE it creates FILE once the
// server drains, for requests that wait for it.
func cmdTerminate(ts *testscript.TestScript, neg bool, args []string) {
	s := storyOf(ts)
	p := s.server(ts)
	signal, errorsLogged, while := syscall.SIGTERM, false, func() {}
	for i := 0; i < len(args); i++ {
		switch {
		case args[i] == "-int":
			signal = syscall.SIGINT
		case args[i] == "-errors":
			errorsLogged = true
		case args[i] == "-while" && i+1 < len(args):
			i++
			file := ts.MkAbs(args[i])
			while = func() {
				p.checkDraining(ts)
				ts.Check(os.WriteFile(file, nil, 0o644))
			}
		default:
			ts.Fatalf("usage: terminate [-int] [-errors] [-while FILE]")
		}
	}
	all := s.all()
	log := func() []byte {
		var text []byte
		for _, p := range all {
			text = append(text, p.logged()...)
		}
		return text
	}
	p.stop(ts, neg, signal, errorsLogged, while)
	s.running = nil
	for name, node := range s.nodes {
		node.stop(ts, neg, signal, errorsLogged, func() {})
		delete(s.nodes, name)
	}
	ts.Check(os.WriteFile(ts.MkAbs("serve.log"), log(), 0o644))
}

// cmdReadiness waits until /readyz answers with a status and a text that matches: readiness STATUS REGEXP.
func cmdReadiness(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: readiness STATUS REGEXP")
	}
	want := regexp.MustCompile(args[1])
	var status string
	var body []byte
	if !gittest.Eventually(func() bool {
		resp, err := http.Get(ts.Getenv("OPS") + "/readyz")
		ts.Check(err)
		status = resp.Status
		body, err = io.ReadAll(resp.Body)
		resp.Body.Close()
		ts.Check(err)
		return strconv.Itoa(resp.StatusCode) == args[0] && want.Match(body)
	}) {
		ts.Fatalf("/readyz: got %s with %q, want %s with a match of %q", status, body, args[0], want)
	}
}

// checkDraining waits until readiness is red and the public listener is closed.
func (p *serverProcess) checkDraining(ts *testscript.TestScript) {
	var status string
	var connectError error
	if !gittest.Eventually(func() bool {
		resp, err := http.Get(p.ops + "/readyz")
		ts.Check(err)
		resp.Body.Close()
		status = resp.Status
		var conn net.Conn
		if conn, connectError = net.Dial("tcp", strings.TrimPrefix(p.http, "http://")); connectError == nil {
			conn.Close()
		}
		return resp.StatusCode == http.StatusServiceUnavailable && connectError != nil
	}) {
		ts.Fatalf("while draining: /readyz got %s, want 503; the error of a new connection is %v, want one", status,
			connectError)
	}
}

// childrenOf lists a process's children according to /proc. It omits search workers and the reaper, which run as long
// as the process does.
func childrenOf(pid int) []int {
	return slices.DeleteFunc(allChildrenOf(pid), func(child int) bool {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", child))
		return strings.HasPrefix(string(text), "packhorse-search\x00") || strings.Contains(string(text), "\x00reaper\x00")
	})
}

// allChildrenOf lists a process's children according to /proc.
func allChildrenOf(pid int) []int {
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
