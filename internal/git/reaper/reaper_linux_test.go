package reaper

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
)

// serve is a server. Each line of its input is a mode and a script, which it runs as a command. It prints the process
// number.
func serve() {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	k := Keep(Options{Command: []string{self, Name, "json"}, Log: slog.New(slog.NewJSONHandler(os.Stderr, nil))})
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		how, script, _ := strings.Cut(lines.Text(), " ")
		env := []string{"PATH=" + os.Getenv("PATH")}
		if how != "stranger" {
			env = append(env, k.Env(map[string]time.Duration{"graced": limit / 2, "hurried": time.Second}[how]))
		}
		p, err := os.StartProcess("/bin/sh", []string{"sh", "-c", script}, &os.ProcAttr{
			Env: env, Files: []*os.File{nil, nil, nil}, Sys: &syscall.SysProcAttr{Setpgid: true},
		})
		if err != nil {
			panic(err)
		}
		fmt.Println(p.Pid)
	}
	os.Exit(0)
}

// server is a running one.
type server struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
	err bytes.Buffer
	dir string // which its commands may write
}

func startServer(t *testing.T, asUser bool) *server {
	t.Helper()
	s := &server{t: t, dir: t.TempDir()}
	s.cmd = exec.Command("/proc/self/exe", "server")
	s.cmd.Stderr = &s.err
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if asUser {
		const nobody = 65534
		s.cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
		if err := os.Chown(s.dir, nobody, nobody); err != nil {
			t.Fatal(err)
		}
		for dir := s.dir; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
			if err := os.Chmod(dir, 0o711); err != nil {
				t.Fatal(err)
			}
		}
	}
	var err error
	if s.in, err = s.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	s.out = bufio.NewReader(out)
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.cmd.Process.Kill() })
	return s
}

// do runs a script in which FILE stands for the name of a file. It returns the IDs of n processes after the script has
// written them to the file.
func (s *server) do(n int, how, script string) (pids []int) {
	s.t.Helper()
	file := filepath.Join(s.dir, how+strconv.Itoa(len(script)))
	if _, err := fmt.Fprintf(s.in, "%s %s\n", how, strings.ReplaceAll(script, "FILE", file)); err != nil {
		s.t.Fatal(err)
	}
	line, err := s.out.ReadString('\n')
	if err != nil {
		s.t.Fatalf("%v\n%s", err, &s.err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		s.t.Fatal(err)
	}
	pids = []int{pid}
	if n == 0 {
		return pids
	}
	eventually(s.t, fmt.Sprintf("%d processes of %q", n, script), func() bool {
		text, _ := os.ReadFile(file)
		return bytes.Count(text, []byte("\n")) == n
	})
	text, _ := os.ReadFile(file)
	for field := range strings.FieldsSeq(string(text)) {
		pid, err := strconv.Atoi(field)
		if err != nil {
			s.t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return pids
}

// kill ends it, and waits for the reaper: both hold its standard error open.
func (s *server) kill() string {
	s.t.Helper()
	s.cmd.Process.Kill()
	ended := make(chan struct{})
	go func() {
		s.cmd.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(limit):
		s.t.Fatal("the reaper still runs")
	}
	return s.err.String()
}

func runs(pid int) bool {
	p, ok := readProcess(pid)
	return ok && !p.gone
}

// Scripts of commands that leave processes behind. No process ends by itself.
const (
	inGroup    = `sh -c 'echo $$ >>FILE; trap "" TERM INT HUP; while :; do sleep 100; done' & sleep 1000; :`
	ofSession  = `setsid sh -c 'echo $$ >>FILE; exec sleep 1000' & setsid setsid sh -c 'echo $$ >>FILE; exec sleep 1000' & sleep 1000; :`
	orphan     = `(setsid sh -c 'echo $$ >>FILE; exec sleep 1000' & )`
	clean      = `env -i PATH="$PATH" sh -c 'echo $$ >>FILE; exec sleep 1000' & sleep 1000; :`
	cleanAway  = `env -i PATH="$PATH" setsid sh -c 'echo $$ >>FILE; sh -c "sleep 1000; :" & echo $! >>FILE; wait' & sleep 1000; :`
	starts     = `echo $$ >>FILE; while :; do setsid sleep 1000 & sleep 0.01; done`
	asksFor    = `trap 'sleep 0.2; rm FILE.lock; exit' TERM; touch FILE.lock; echo $$ >>FILE; while :; do sleep 0.01; done`
	deafToTerm = `trap "" TERM; echo $$ >>FILE; while :; do sleep 0.01; done`
	onlyItself = `echo $$ >>FILE; exec sleep 1000`
)

// TestKill kills a server whose commands have left all kinds of processes behind.
func TestKill(t *testing.T) {
	t.Parallel()
	for _, asUser := range []bool{false, true} {
		name := "own user"
		if asUser {
			name = "another user"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if asUser && os.Getuid() != 0 {
				t.Skip("only root can become another user")
			}
			s := startServer(t, asUser)
			var pids []int
			add := func(p []int) { pids = append(pids, p...) }
			add(s.do(1, "marked", inGroup))
			add(s.do(2, "marked", ofSession))
			add(s.do(1, "marked", orphan))
			add(s.do(1, "marked", clean))
			add(s.do(2, "marked", cleanAway))
			add(s.do(1, "marked", starts))
			add(s.do(1, "graced", asksFor))
			add(s.do(1, "hurried", deafToTerm))
			add(s.do(1, "marked", onlyItself))
			spared := s.do(1, "stranger", onlyItself)
			log := s.kill()
			for _, pid := range pids {
				if runs(pid) {
					t.Errorf("%d still runs", pid)
					unix.Kill(pid, unix.SIGKILL)
				}
			}
			for _, pid := range spared {
				if !runs(pid) {
					t.Errorf("%d, a stranger, was killed", pid)
				}
			}
			unix.Kill(spared[0], unix.SIGKILL)
			if locks, _ := filepath.Glob(filepath.Join(s.dir, "*.lock")); len(locks) > 0 {
				t.Errorf("left %v", locks)
			}
			if !strings.Contains(log, "killed the remaining processes of its git commands") {
				t.Errorf("log: %s", log)
			}
		})
	}
}

// TestSignal checks that no signal is sent to a process that has reused a number.
func TestSignal(t *testing.T) {
	t.Parallel()
	cmd := startMarked(t, "")
	p, ok := readProcess(cmd.Process.Pid)
	if !ok {
		t.Fatal("the process was not found")
	}
	was := p
	was.start--
	if was.signal(unix.SIGKILL) || !runs(p.pid) {
		t.Error("killed another process with the same ID, want it alive")
	}
	if !p.signal(unix.SIGKILL) {
		t.Error("the process still runs, want it killed")
	}
}

// startMarked starts a command, and ends it with the test.
func startMarked(t *testing.T, env string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	cmd.Env = append(os.Environ(), env)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	// The kernel shows an empty environment until the exec is complete.
	eventually(t, "an environment", func() bool {
		shown, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", cmd.Process.Pid))
		return bytes.Contains(shown, []byte(env))
	})
	return cmd
}

// TestCloseAndAbandon ends reapers while their server continues.
func TestCloseAndAbandon(t *testing.T) {
	t.Parallel()
	for _, abandon := range []bool{false, true} {
		m := new(watched)
		k := Keep(Options{Command: testReaper(t), Metrics: m})
		cmd := startMarked(t, k.Env(0))
		if abandon {
			k.Abandon()
			cmd.Wait()
		}
		k.Close()
		<-k.ended
		if alive := runs(cmd.Process.Pid); alive == abandon {
			t.Errorf("abandon %v: alive %v", abandon, alive)
		}
		if ups, _, _ := m.is(); !slices.Equal(ups, []bool{false, true, false}) {
			t.Errorf("it is said to be up: %v", ups)
		}
	}
}

func testReaper(t *testing.T) []string {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return []string{self, Name, "json"}
}

// TestAgain ends reapers. The next ones know the running commands.
func TestAgain(t *testing.T) {
	t.Parallel()
	var log lockedBuffer
	m := new(watched)
	started := make(chan *os.Process, 1)
	k := Keep(Options{Command: testReaper(t), Metrics: m, Log: slog.New(slog.NewTextHandler(&log, nil)),
		spawn: func(command []string, stdin *os.File) (*os.Process, error) {
			p, err := spawn(command, stdin)
			started <- p
			return p, err
		}})
	cmd := startMarked(t, k.Env(0))
	first := <-started
	for i := range 2 {
		first.Kill()
		first = <-started
		if _, n, _ := m.is(); n != i+1 {
			t.Errorf("%d failures, want %d", n, i+1)
		}
	}
	if !strings.Contains(log.String(), "no reaper runs") {
		t.Errorf("log: %s", log.String())
	}
	k.Abandon()
	cmd.Wait()
	k.Close()
}

// TestHungStart has a reaper whose start hangs while the server ends it.
func TestHungStart(t *testing.T) {
	t.Parallel()
	for _, abandon := range []bool{false, true} {
		starts, goOn := make(chan *os.Process), make(chan struct{})
		first := make(chan *os.Process, 1)
		k := Keep(Options{Command: testReaper(t), spawn: func(command []string, stdin *os.File) (*os.Process, error) {
			if len(first) == 0 {
				p, err := spawn(command, stdin)
				first <- p
				return p, err
			}
			starts <- nil
			<-goOn
			return spawn(command, stdin)
		}})
		p := <-first
		first <- p
		p.Kill()
		<-starts
		cmd := startMarked(t, k.Env(0))
		k.end(!abandon)
		close(goOn)
		<-k.ended
		if abandon {
			cmd.Wait()
		}
		if alive := runs(cmd.Process.Pid); alive == abandon {
			t.Errorf("abandon %v: alive %v", abandon, alive)
		}
	}
}

// TestNoStart has a reaper that cannot be started.
func TestNoStart(t *testing.T) {
	t.Parallel()
	m := new(watched)
	k := Keep(Options{Command: []string{"/nonexistent/packhorse", Name, "json"}, Metrics: m})
	eventually(t, "a second try", func() bool { _, _, n := m.is(); return n >= 2 })
	k.Close()
}

// TestMarks: a mark has a grace period or none, and belongs to one run.
func TestMarks(t *testing.T) {
	t.Parallel()
	k := &Keeper{mark: strings.Repeat("ab", 16)}
	r := &reaper{mark: []byte(Mark + "=" + k.mark)}
	for env, want := range map[string]time.Duration{k.Env(0): 0, k.Env(time.Second): time.Second,
		k.Env(time.Hour): longestGrace} {
		if grace, ok := r.markOf(startMarked(t, env).Process.Pid); grace != want || !ok {
			t.Errorf("%s: %v, %v", env, grace, ok)
		}
	}
	if _, ok := r.markOf(startMarked(t, Mark+"=x").Process.Pid); ok {
		t.Error("the mark of another run is ours, want it foreign")
	}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestLogger: the reaper logs in the server's format.
func TestLogger(t *testing.T) {
	t.Parallel()
	master, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	defer tty.Close()
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	defer writer.Close()
	for _, c := range []struct {
		format   string
		from, to *os.File
		want     string
	}{
		{"json", master, tty, "{"}, {"text", reader, writer, "time="}, {"auto", master, tty, "time="}, {"auto", reader,
			writer, "{"},
	} {
		log := logger(c.to, c.format)
		log.Info("hello")
		line, err := bufio.NewReader(c.from).ReadString('\n')
		if err != nil || !strings.HasPrefix(line, c.want) || !strings.Contains(line, "hello") {
			t.Errorf("%q: %q, %v", c.format, line, err)
		}
	}
}
