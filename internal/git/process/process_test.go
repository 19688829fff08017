package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/schedule/balance"
)

// fakeGit replaces git. Its first argument is a shell script.
const fakeGit = "#!/bin/sh\neval \"$1\"\n"

var fakeGitPath string

func TestMain(m *testing.M) {
	if what := os.Getenv("PROCESS_HELPER"); what != "" {
		if err := beHelper(what); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	dir, err := os.MkdirTemp("", "fakegit")
	if err != nil {
		panic(err)
	}
	// Written before any process is started: a fork in between would hold it open for writing, and exec refuses that.
	fakeGitPath = filepath.Join(dir, "git")
	if err := os.WriteFile(fakeGitPath, []byte(fakeGit), 0o755); err != nil {
		panic(err)
	}
	code := m.Run()
	os.RemoveAll(dir)
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

func newRunner(t *testing.T, git string, l Limits) *Runner {
	t.Helper()
	if l.Slots == 0 {
		l.Slots = 2
	}
	r, err := New(Options{Git: git, Classes: map[Class]Limits{"test": l}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return r
}

func script(text string) Command {
	return Command{Class: "test", Subcommand: "script", Args: []string{text}}
}

func output(t *testing.T, r *Runner, c Command) (string, Usage, error) {
	t.Helper()
	p, err := r.Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(p.Stdout())
	if err != nil {
		t.Error(err)
	}
	u, err := p.Wait()
	return string(out), u, err
}

func TestRun(t *testing.T) {
	t.Parallel()
	r := newRunner(t, "", Limits{})
	var errs bytes.Buffer
	text := strings.Repeat("some text\n", 100_000)
	out, u, err := output(t, r, Command{
		Class: "test", Subcommand: "hash-object", Args: []string{"hash-object", "--stdin"},
		Stdin: strings.NewReader(text), Stderr: func(b []byte) { errs.Write(b) }, StdoutBuffer: 1 << 20,
	})
	if err != nil || u.Exit != "ok" || errs.Len() != 0 {
		t.Errorf("%+v, %v, %q", u, err, errs.String())
	}
	if want := gittest.Run(t, "", text, "hash-object", "--stdin"); strings.TrimSpace(out) != want {
		t.Errorf("got %q, want %s", out, want)
	}
	if u.Wall <= 0 || u.MaxRSS < 0 {
		t.Errorf("usage %+v", u)
	}
}

func TestFailure(t *testing.T) {
	t.Parallel()
	r := newRunner(t, "", Limits{})
	var errs bytes.Buffer
	_, u, err := output(t, r, Command{
		Class: "test", Subcommand: "cat-file", Args: []string{"--git-dir=/nonexistent", "cat-file", "-p", "HEAD"},
		Stderr: func(b []byte) { errs.Write(b) },
	})
	if u.Exit != "exit 128" || !fault.Is(err, fault.Internal) || !strings.Contains(err.Error(), "exit 128: fatal: ") {
		t.Errorf("%+v, %v", u, err)
	}
	if !strings.HasPrefix(errs.String(), "fatal: ") {
		t.Errorf("standard error: %q", errs.String())
	}
	if m := fault.Message(err); m != "git cat-file failed" {
		t.Errorf("the client is told %q, want %q", m, "git cat-file failed")
	}
	if _, err := r.Start(t.Context(), Command{Class: "none"}); err == nil {
		t.Error("started a command of an unknown class, want an error")
	}
}

func TestRead(t *testing.T) {
	t.Parallel()
	r := newRunner(t, fakeGitPath, Limits{})
	errOwn := errors.New("own")
	all := func(out io.Reader) error { _, err := io.Copy(io.Discard, out); return err }
	two := func(out io.Reader) error { _, err := io.ReadFull(out, make([]byte, 2)); return err }
	for _, c := range []struct {
		script string
		read   func(io.Reader) error
		exit   Exit
		want   error // if exit is not set
	}{
		{"echo text", all, Exit{}, nil},
		{"echo text; echo problem >&2", all, Exit{}, nil},
		{"echo problem >&2; exit 3", all, Exit{"exit 3", "problem\n"}, nil},
		{"printf x; exit 3", two, Exit{Status: "exit 3"}, nil},
		{"printf x", two, Exit{}, io.ErrUnexpectedEOF},
		{"exit 3", func(out io.Reader) error { return errors.Join(all(out), errOwn) }, Exit{}, errOwn},
		{"echo text; exec sleep 60", func(io.Reader) error { return errOwn }, Exit{}, errOwn},
	} {
		exit, err := r.Read(t.Context(), script(c.script), c.read)
		isFine := errors.Is(err, c.want)
		if c.exit != (Exit{}) {
			isFine = fault.Is(err, fault.Internal)
		}
		if exit != c.exit || !isFine {
			t.Errorf("%s: %+v, %v, want %+v, %v", c.script, exit, err, c.exit, c.want)
		}
	}
	exit, _ := r.Read(t.Context(), script("head -c 100000 /dev/zero >&2; exit 1"), all)
	if len(exit.Message) != maxMessage {
		t.Errorf("a message of %d bytes, want %d", len(exit.Message), maxMessage)
	}
}

func TestForeignSignal(t *testing.T) {
	t.Parallel()
	r := newRunner(t, fakeGitPath, Limits{})
	_, u, err := output(t, r, script("kill -9 $$"))
	if u.Exit != "signal: killed" || !fault.Is(err, fault.Unavailable) {
		t.Errorf("%+v, %v", u, err)
	}
}

// TestKillsGroup starts a grandchild that ignores everything and holds the pipes open.
func TestKillsGroup(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		limits Limits
		tail   string // what the leader does once its child runs
		end    func(p *Process, cancel context.CancelFunc)
		kind   fault.Kind
		ok     bool
	}{
		{name: "context", tail: "wait", end: func(_ *Process, cancel context.CancelFunc) { cancel() }, kind: fault.Cancelled},
		{name: "kill", tail: "wait", end: func(p *Process, _ context.CancelFunc) { p.Kill(); p.Kill() },
			kind: fault.Cancelled},
		{name: "time limit", limits: Limits{Time: 200 * time.Millisecond}, tail: "wait", kind: fault.Deadline},
		{name: "leader ends", tail: "exit 0", ok: true},
		{name: "leader fails", tail: "exit 3", kind: fault.Internal},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := newRunner(t, fakeGitPath, test.limits)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			p, err := r.Start(ctx, script(`sh -c 'trap "" TERM INT HUP PIPE; echo $$; exec sleep 1000' & `+
				`while [ "$(cat /proc/$!/comm)" != sleep ]; do :; done; `+test.tail))
			if err != nil {
				t.Fatal(err)
			}
			var line []byte
			for !bytes.HasSuffix(line, []byte("\n")) {
				b := make([]byte, 16)
				n, err := p.Stdout().Read(b)
				if err != nil {
					t.Fatal(err)
				}
				line = append(line, b[:n]...)
			}
			grandchild, _ := strconv.Atoi(strings.TrimSpace(string(line)))
			if test.end != nil {
				test.end(p, cancel)
			}
			io.Copy(io.Discard, p.Stdout())
			_, err = p.Wait()
			if test.ok != (err == nil) || err != nil && fault.KindOf(err) != test.kind {
				t.Errorf("wait: %v", err)
			}
			awaitGone(t, grandchild)
			p.Kill()
		})
	}
}

// awaitGone waits for a process that was sent SIGKILL; it is not ours to wait for otherwise.
func awaitGone(t *testing.T, pid int) {
	t.Helper()
	gittest.WaitFor(t, fmt.Sprintf("process %d has ended", pid), func() bool {
		state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || bytes.Contains(state, []byte(") Z "))
	})
}

// TestEscaped has a grandchild that leaves the group and keeps the pipes. No caller may wait for it.
func TestEscaped(t *testing.T) {
	t.Parallel()
	r := newRunner(t, fakeGitPath, Limits{})
	file := filepath.Join(t.TempDir(), "pid")
	p, err := r.Start(t.Context(),
		script("setsid sleep 60 & while [ \"$(cat /proc/$!/comm)\" != sleep ]; do :; done; echo $! >"+file+".new; mv "+
			file+".new "+file+"; wait"))
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	gittest.WaitFor(t, "the grandchild has written its process ID", func() bool {
		b, _ := os.ReadFile(file)
		pid, _ = strconv.Atoi(strings.TrimSpace(string(b)))
		return pid != 0
	})
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
	began := time.Now()
	p.Kill()
	if _, err := io.Copy(io.Discard, p.Stdout()); err == nil {
		t.Error("the output of a killed command ended without an error, want one")
	}
	if _, err := p.Wait(); !fault.Is(err, fault.Cancelled) {
		t.Error(err)
	}
	if d := time.Since(began); d > 30*time.Second {
		t.Errorf("took %v", d)
	}
}

func TestSlots(t *testing.T) {
	t.Parallel()
	r := newRunner(t, fakeGitPath, Limits{Slots: 1, Queue: 1})
	p, err := r.Start(t.Context(), script("sleep 1000"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	queued := make(chan error)
	go func() {
		_, err := r.Start(ctx, script("echo never"))
		queued <- err
	}()
	gittest.WaitFor(t, "a command waits", func() bool { return r.classes["test"].slots.Queued() > 0 })
	if _, err := r.Start(t.Context(), script("echo never")); !fault.Is(err, fault.Exhausted) {
		t.Errorf("a full queue: %v", err)
	}
	cancel()
	if err := <-queued; !fault.Is(err, fault.Cancelled) {
		t.Errorf("cancelled in the queue: %v", err)
	}
	p.Kill()
	if out, _, err := output(t, r, script("echo again")); out != "again\n" || err != nil {
		t.Errorf("after the slot is free: %q, %v", out, err)
	}
	p.Wait()
}

func TestStdinFails(t *testing.T) {
	t.Parallel()
	r := newRunner(t, fakeGitPath, Limits{})
	c := script("cat; echo all of it")
	c.Stdin = io.MultiReader(strings.NewReader("part "), failingReader{})
	p, err := r.Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	out, _ := io.ReadAll(p.Stdout())
	if _, err := p.Wait(); !errors.Is(err, errReading) || strings.Contains(string(out), "all") {
		t.Errorf("%q, %v", out, err)
	}
	// A command that does not read its input has not failed.
	c = script("exit 0")
	c.Stdin = strings.NewReader(strings.Repeat("x", 1<<20))
	if _, _, err := output(t, r, c); err != nil {
		t.Error(err)
	}
}

var errReading = errors.New("the connection broke")

type failingReader struct{}

func (failingReader) Read([]byte) (int, error) { return 0, errReading }

func TestEnvironment(t *testing.T) {
	t.Setenv("GIT_DIR", "/somewhere") // the server's own environment must not reach git
	t.Setenv("PACKHORSE_SECRET", "x")
	r := newRunner(t, fakeGitPath, Limits{})
	leak, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer leak.Close()
	c := script("env; echo; ls /proc/$$/fd; echo; pwd")
	c.Env = []string{"GIT_DIR=/there", "LC_ALL=POSIX"}
	out, _, err := output(t, r, c)
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(out, "\n\n")
	env := strings.Split(parts[0], "\n")
	for _, want := range []string{"GIT_DIR=/there", "LC_ALL=POSIX", "GIT_NO_LAZY_FETCH=1",
		"GIT_CONFIG_KEY_0=core.hooksPath"} {
		if !slices.Contains(env, want) {
			t.Errorf("no %s in\n%s", want, parts[0])
		}
	}
	for _, e := range env {
		if strings.HasPrefix(e, "PACKHORSE") || e == "GIT_DIR=/somewhere" || e == "LC_ALL=C" {
			t.Errorf("%s reached the child", e)
		}
	}
	// The shell itself keeps its script open, at 10 or above or at 3.
	if n := len(strings.Fields(parts[1])); n > 4 {
		t.Errorf("descriptors:\n%s", parts[1])
	}
	if strings.TrimSpace(parts[2]) != "/" {
		t.Errorf("working directory %s", parts[2])
	}
}

func TestOverridesWin(t *testing.T) {
	t.Parallel()
	repo := gittest.Init(t)
	r := newRunner(t, "", Limits{})
	for _, o := range overrides {
		repo.Git("config", "--local", o[0], "/bin/evil")
		out, _, err := output(t, r, Command{Class: "test", Subcommand: "config",
			Args: []string{"--git-dir=" + repo.Dir, "config", "--get", o[0]}})
		if err != nil || strings.TrimSuffix(out, "\n") != o[1] {
			t.Errorf("%s is %q, want %q (%v)", o[0], out, o[1], err)
		}
	}
}

func TestNiceAndRSS(t *testing.T) {
	t.Parallel()
	ballast := bytes.Repeat([]byte{1}, 64<<20) // the account must not show the server's own size
	r := newRunner(t, fakeGitPath, Limits{Nice: 7})
	out, u, err := output(t, r, script("until [ $(awk '{print $19}' /proc/$$/stat) -ge 7 ]; do :; done; nice; sleep 0.1"))
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprint(min(niceness()+7, 19)); strings.TrimSpace(out) != want {
		t.Errorf("nice %s, want %s", out, want)
	}
	if u.MaxRSS == 0 || u.MaxRSS >= int64(len(ballast)) {
		t.Errorf("greatest resident size %d", u.MaxRSS)
	}
}

// TestMemory checks that a command and its children fail if they exceed the memory limit.
func TestMemory(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("limits of memory need Linux")
	}
	const hungry = `[ "$(ulimit -d)" = %s ] || exec sleep 1000; x=$(head -c 50000000 /dev/zero | tr '\0' a); echo ${#x}`
	for limit, want := range map[int64]string{32 << 20: "32768", 0: "$(ulimit -d)"} {
		r := newRunner(t, fakeGitPath, Limits{Memory: limit})
		for _, line := range []string{hungry, "sh -c '" + strings.ReplaceAll(hungry, "'", `'\''`) + "'"} {
			wait := "until [ \"$(ulimit -d)\" = " + want + " ]; do :; done; " // as long as the command is its own
			out, _, err := output(t, r, script(wait+fmt.Sprintf(line, want)))
			if limit == 0 && (err != nil || strings.TrimSpace(out) != "50000000") || limit > 0 &&
				(err == nil || strings.Contains(out, "50000000")) {
				t.Errorf("with %d: %q, %v", limit, out, err)
			}
		}
	}
}

func TestClose(t *testing.T) {
	t.Parallel()
	r := newRunner(t, fakeGitPath, Limits{Slots: 1, Queue: 1})
	p, err := r.Start(t.Context(), script("sleep 1000"))
	if err != nil {
		t.Fatal(err)
	}
	queued := make(chan error)
	go func() {
		_, err := r.Start(t.Context(), script("echo never"))
		queued <- err
	}()
	gittest.WaitFor(t, "a command waits", func() bool { return r.classes["test"].slots.Queued() > 0 })
	if err := r.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-queued; !fault.Is(err, fault.Unavailable) {
		t.Errorf("in the queue: %v", err)
	}
	if _, err := p.Wait(); !fault.Is(err, fault.Unavailable) {
		t.Errorf("running: %v", err)
	}
	if _, err := r.Start(t.Context(), script("echo never")); !fault.Is(err, fault.Unavailable) {
		t.Errorf("after: %v", err)
	}
}

func TestCannotStart(t *testing.T) {
	t.Parallel()
	if _, err := New(Options{Git: "/nonexistent/git"}); err == nil {
		t.Error("made a Runner without git, want an error")
	}
	r := newRunner(t, fakeGitPath, Limits{Slots: 1})
	c := script("echo")
	c.Dir = "/nonexistent"
	if _, err := r.Start(t.Context(), c); !fault.Is(err, fault.Internal) {
		t.Error(err)
	}
	if out, _, err := output(t, r, script("echo ok")); err != nil || out != "ok\n" {
		t.Errorf("the slot was lost: %q, %v", out, err)
	}
}

// gather returns a Runner's metrics without histograms, by name and labels.
func gather(t *testing.T, m *metrics) map[string]string {
	t.Helper()
	reg := prometheus.NewRegistry()
	reg.MustRegister(m.commands, m.inFlight, m.cpu, m.maxRSS, m.slow, m.short)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]string)
	for _, f := range families {
		for _, one := range f.Metric {
			var labels []string
			for _, l := range one.Label {
				labels = append(labels, l.GetValue())
			}
			got[f.GetName()+" "+strings.Join(labels, " ")] = fmt.Sprint(one.GetCounter().GetValue() + one.GetGauge().GetValue())
		}
	}
	return got
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	r := newRunner(t, fakeGitPath, Limits{})
	output(t, r, script("exit 0"))
	output(t, r, script("exit 1"))
	got := gather(t, r.metrics)
	for name, want := range map[string]string{
		"packhorse_git_commands_total test ok script": "1", "packhorse_git_commands_total test failed script": "1",
		"packhorse_git_commands_in_flight test script": "0",
	} {
		if got[name] != want {
			t.Errorf("%s is %q, want %s", name, got[name], want)
		}
	}
}

func TestTail(t *testing.T) {
	t.Parallel()
	var tl tail
	for range 1000 {
		tl.add([]byte("warning: something long enough\n"))
	}
	tl.add([]byte("Counting objects:  10%\rCounting objects: 100%, done.\nfatal: bad \x1b[31mobject\xff\n"))
	text := tl.text()
	if len(tl.buf) > tailSize || strings.Contains(text, "Counting") ||
		!strings.HasSuffix(text, "fatal: bad ?[31mobject?") {
		t.Errorf("%q", text)
	}
}

// A command with grace is asked to end before it is killed, and killed if it does not.
func TestGrace(t *testing.T) {
	t.Parallel()
	r := newRunner(t, fakeGitPath, Limits{})
	lock := filepath.Join(t.TempDir(), "lock")
	for name, test := range map[string]struct {
		script string
		grace  time.Duration
		locked bool
	}{
		"ends": {"trap 'rm " + lock + "; exit 1' TERM; touch " + lock + "; echo ready; while :; do sleep 0.01; done",
			time.Hour, false},
		"ignores": {"trap '' TERM; touch " + lock + "; echo ready; while :; do sleep 0.01; done", 10 * time.Millisecond,
			true},
		"none": {"trap 'rm " + lock + "; exit 1' TERM; touch " + lock + "; echo ready; while :; do sleep 0.01; done", 0,
			true},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		c := script(test.script)
		c.Grace = test.grace
		p, err := r.Start(ctx, c)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(p.Stdout(), make([]byte, 6)); err != nil {
			t.Error(err)
		}
		cancel()
		if _, err := p.Wait(); !fault.Is(err, fault.Cancelled) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Stat(lock); (err == nil) != test.locked {
			t.Errorf("%s: its lock: %v", name, err)
		}
		os.Remove(lock)
	}
}

// TestCallersShareSlots checks that a caller without a slot is next, regardless of the queues of others.
func TestCallersShareSlots(t *testing.T) {
	t.Parallel()
	r := newRunner(t, fakeGitPath, Limits{Slots: 1, Queue: 10})
	start := func(c balance.Caller) *Process {
		cmd := script("cat")
		cmd.Caller = c
		p, err := r.Start(t.Context(), cmd)
		if err != nil {
			t.Error(err)
			return nil
		}
		return p
	}
	order := make(chan balance.Caller, 4)
	held := make(chan struct{})
	go func() {
		defer close(held)
		cmd := script("sleep 1000") // until it is killed
		cmd.Caller = "greedy"
		p, err := r.Start(t.Context(), cmd)
		if err != nil {
			t.Error(err)
			return
		}
		for i, c := range []balance.Caller{"greedy", "greedy", "greedy", "quiet"} {
			go func() {
				if p := start(c); p != nil {
					order <- c
					_, _ = io.Copy(io.Discard, p.Stdout())
					_, _ = p.Wait()
				}
			}()
			gittest.WaitFor(t, "the command waits", func() bool { return r.Queue("test").Queued() > i })
		}
		p.Kill()
		_, _ = p.Wait()
	}()
	<-held
	if first := <-order; first != "quiet" {
		t.Errorf("%s was next, want %s", first, "quiet")
	}
	for range 3 {
		<-order
	}
}

// TestPerRepository: while there is work on others, commands on one repository leave a slot free.
func TestPerRepository(t *testing.T) {
	t.Parallel()
	r := newRunner(t, fakeGitPath, Limits{Slots: 3, Queue: 10})
	start := func(repository string) *Process {
		t.Helper()
		c := script("exec sleep 1000")
		c.Repository = repository
		p, err := r.Start(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	all := []*Process{start("small"), start("mono"), start("mono")}
	all[0].Kill()
	<-all[0].Done()
	waits, cancel := context.WithCancel(t.Context())
	third := make(chan error)
	go func() {
		c := script("echo never")
		c.Repository = "mono"
		_, err := r.Start(waits, c)
		third <- err
	}()
	gittest.WaitFor(t, "a command waits", func() bool { return r.Queue("test").Queued() > 0 })
	all = append(all, start("small")) // while one of the other's waits
	cancel()
	if err := <-third; !fault.Is(err, fault.Cancelled) {
		t.Error(err)
	}
	for _, p := range all {
		p.Kill()
		_, _ = p.Wait()
	}
	for each, want := range map[int]int{0: 2, 1: 1, -1: 0} {
		l := Limits{Slots: 3, PerRepository: each}
		if got := l.queue().Each; got != want {
			t.Errorf("%d: %d, want %d", each, got, want)
		}
	}
}
