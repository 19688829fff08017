package reaper

import (
	"bufio"
	"bytes"
	"errors"
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
	k := Keep(Options{Command: []string{self, Name, "json"}, Cgroups: os.Args[2:],
		Log: slog.New(slog.NewJSONHandler(os.Stderr, nil))})
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		how, script, _ := strings.Cut(lines.Text(), " ")
		if how == "claim" { // a group that is not its own
			pid, _ := strconv.Atoi(script)
			k.Add(pid, 0)
			fmt.Println(pid)
			continue
		}
		env := []string{"PATH=" + os.Getenv("PATH")}
		if how != "unmarked" && how != "stranger" {
			env = append(env, k.Env())
		}
		p, err := os.StartProcess("/bin/sh", []string{"sh", "-c", script}, &os.ProcAttr{
			Env: env, Files: []*os.File{nil, nil, nil}, Sys: &syscall.SysProcAttr{Setpgid: true},
		})
		if err != nil {
			panic(err)
		}
		if how != "unannounced" && how != "stranger" {
			k.Add(p.Pid, map[string]time.Duration{"graced": limit / 2, "hurried": time.Second}[how])
		}
		if how == "ended" {
			p.Kill()
			k.Remove(p.Pid)
			p.Wait()
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

func startServer(t *testing.T, asUser bool, cgroups ...string) *server {
	t.Helper()
	s := &server{t: t, dir: t.TempDir()}
	s.cmd = exec.Command("/proc/self/exe", append([]string{"server"}, cgroups...)...)
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
			add(s.do(1, "unannounced", onlyItself)) // between its start and its announcement
			add(s.do(1, "unmarked", onlyItself))
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

// TestStrangers has processes that reuse the IDs of a command's processes.
func TestStrangers(t *testing.T) {
	t.Parallel()
	// In another session, as of a terminal or another service.
	other := exec.Command("sleep", "1000")
	other.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		other.Process.Kill()
		other.Wait()
	}()
	s := startServer(t, false)
	s.do(0, "claim", strconv.Itoa(other.Process.Pid))
	s.do(0, "ended", onlyItself)
	if log := s.kill(); strings.Contains(log, "killed") {
		t.Errorf("log: %s", log)
	}
	if !runs(other.Process.Pid) {
		t.Error("killed a process of another program, want it alive")
	}

	// Of our session, with a command's old number, started after the server's end; and found, but not there any more.
	later := exec.Command("sleep", "1000")
	later.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := later.Start(); err != nil {
		t.Fatal(err)
	}
	pid := later.Process.Pid
	defer func() {
		later.Process.Kill()
		later.Wait()
	}()
	p, ok := readProcess(pid)
	if !ok {
		t.Fatal("the process was not found")
	}
	r := &reaper{mark: []byte(Mark + "=none"), session: p.session, groups: map[int]time.Duration{pid: 0},
		end: p.start - 1}
	if list := r.remaining(); len(list) > 0 {
		t.Errorf("writeEnd: %v", list)
	}
	r.end = p.start
	if list := r.remaining(); len(list) != 1 || list[0] != p {
		t.Errorf("writeEnd: %v, want %v", list, p)
	}
	was := p
	was.start--
	if was.signal(unix.SIGKILL) || !runs(pid) {
		t.Error("killed another process with the same ID, want it alive")
	}
	if !p.signal(unix.SIGKILL) {
		t.Error("the process still runs, want it killed")
	}
}

// TestCloseAndAbandon ends reapers while their server continues.
func TestCloseAndAbandon(t *testing.T) {
	t.Parallel()
	for _, abandon := range []bool{false, true} {
		m := new(watched)
		k := Keep(Options{Command: testReaper(t, Name, "json"), Metrics: m})
		cmd := exec.Command("sleep", "1000")
		cmd.Env = append(os.Environ(), k.Env())
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		k.Add(cmd.Process.Pid, 0)
		if abandon {
			k.Abandon()
			cmd.Wait()
		}
		k.Close()
		k.Add(1<<30, 0)
		<-k.ended
		if alive := runs(cmd.Process.Pid); alive == abandon {
			t.Errorf("abandon %v: alive %v", abandon, alive)
		}
		cmd.Process.Kill()
		cmd.Wait()
		if ups, _, _ := m.is(); !slices.Equal(ups, []bool{false, true, false}) {
			t.Errorf("it is said to be up: %v", ups)
		}
	}
}

func testReaper(t *testing.T, args ...string) []string {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return append([]string{self}, args...)
}

// TestAgain ends reapers. The next ones know the running commands.
func TestAgain(t *testing.T) {
	t.Parallel()
	var log lockedBuffer
	m := new(watched)
	k := Keep(Options{Command: testReaper(t, Name, "json"), Metrics: m, Log: slog.New(slog.NewTextHandler(&log, nil))})
	cmd := exec.Command("sleep", "1000") // without the mark: only its group identifies it
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	k.Add(cmd.Process.Pid, 0)
	for i := range 2 {
		k.mu.Lock()
		first := k.child
		k.mu.Unlock()
		first.process.Kill()
		eventually(t, "another reaper", func() bool {
			k.mu.Lock()
			defer k.mu.Unlock()
			return k.child != nil && k.child != first && k.child.process != nil
		})
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

// TestHungStart has a reaper whose start hangs. Adding commands does not wait for it, and no message and no end is
// lost.
func TestHungStart(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		end   func(*Keeper)
		alive bool
	}{
		"abandon": {(*Keeper).Abandon, false},
		"close":   {func(k *Keeper) { k.shut(true) }, true},
		"full": {func(k *Keeper) { // more than the pipe holds: the reaper that starts is killed, and the next one knows
			for i := range 20_000 {
				k.Add(i+1<<23, 0)
				k.Remove(i + 1<<23)
			}
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := Keep(Options{Command: testReaper(t, Name, "json")})
			starts, goOn := make(chan struct{}), make(chan struct{})
			k.mu.Lock()
			start := k.spawn
			k.spawn = func(command []string, stdin *os.File) (*os.Process, error) {
				select {
				case starts <- struct{}{}:
					<-goOn
				case <-goOn:
				}
				return start(command, stdin)
			}
			first := k.child.process
			k.mu.Unlock()
			first.Kill()
			<-starts
			cmd := exec.Command("sleep", "1000")
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			k.Add(cmd.Process.Pid, 0) // would hang
			test.end(k)
			close(goOn)
			if name == "full" {
				eventually(t, "one that runs", func() bool {
					k.mu.Lock()
					defer k.mu.Unlock()
					return k.child != nil && k.child.process != nil && !k.child.stopped && k.sendErr == nil
				})
				if syscall.Kill(cmd.Process.Pid, 0) != nil {
					t.Error("the reaper ended the command, want it running")
				}
				k.Abandon()
				<-ended
			} else {
				<-k.ended
				if test.alive {
					select {
					case <-ended:
						t.Error("the reaper ended the command, want it running")
						ended <- errors.New("so it was")
					default:
					}
					cmd.Process.Kill()
				}
				if err := <-ended; err == nil {
					t.Error("the command ended by itself")
				}
			}
			k.Close()
		})
	}
}

// TestDeaf has a reaper that does not read, and one that cannot be started.
func TestDeaf(t *testing.T) {
	t.Parallel()
	m := new(watched)
	k := Keep(Options{Command: testReaper(t, "deaf"), Metrics: m})
	for i := 0; ; i++ {
		if _, ended, _ := m.is(); ended > 0 {
			break
		}
		k.Add(i+1<<23, 0)
		k.Remove(i + 1<<23)
	}
	k.Close()

	m = new(watched)
	k = Keep(Options{Command: []string{"/nonexistent/packhorse", Name, "json"}, Metrics: m})
	k.Add(1<<23, 0)
	eventually(t, "a second try", func() bool { _, _, n := m.is(); return n >= 2 })
	k.Close()
}

// TestParseLine reads lines that no server sends.
func TestParseLine(t *testing.T) {
	t.Parallel()
	const run = "run 0123456789abcdef0123456789abcdef 7"
	for _, lines := range [][]string{
		{"+5 0"}, {"run"}, {"run x 1"}, {run, "+1 0"}, {run, "+0 0"}, {run, "+-5 0"}, {run, "+5"}, {run, "+5 x"}, {run,
			"+5 -1"}, {run, "-"}, {run, "kill"}, {run, ""}, {run, "cgroup x"}, {run, "+9999999999999999999999 0"},
	} {
		r := &reaper{groups: make(map[int]time.Duration)}
		var err error
		for _, line := range lines {
			if err == nil {
				err = r.parseLine(line)
			}
		}
		if err == nil {
			t.Errorf("%q is understood: %+v", lines, r)
		}
	}
	r := &reaper{groups: make(map[int]time.Duration)}
	for _, line := range []string{run, "cgroup /a b", "+5 0", "+6 7", "-5", "-7"} {
		if err := r.parseLine(line); err != nil {
			t.Error(err)
		}
	}
	if len(r.groups) != 1 || r.groups[6] != 7*time.Millisecond || r.session != 7 || len(r.cgroups) != 1 ||
		r.cgroups[0] != "/a b" {
		t.Errorf("%+v", r)
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
			writer, "{"}, {"yaml", nil, writer, ""}, {"", nil, writer, ""},
	} {
		log := logger(c.to, c.format)
		if log == nil {
			if c.want != "" {
				t.Errorf("%q: no log", c.format)
			}
			continue
		}
		log.Info("hello")
		line, err := bufio.NewReader(c.from).ReadString('\n')
		if err != nil || c.want == "" || !strings.HasPrefix(line, c.want) || !strings.Contains(line, "hello") {
			t.Errorf("%q: %q, %v", c.format, line, err)
		}
	}
}
