package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/schedule/retry"
)

// TestShortage has many callers that need a process during a shortage. All succeed after it.
func TestShortage(t *testing.T) {
	t.Parallel()
	s := newStarter(newMetrics(nil))
	s.room, s.patient, s.limit = make(chan struct{}, 4), time.Hour, time.Hour
	s.pauses = retry.Policy{First: time.Millisecond, Max: 20 * time.Millisecond}
	var room atomic.Bool
	var tries atomic.Int32
	spawn := func() error {
		tries.Add(1)
		if room.Load() {
			return nil
		}
		return &os.PathError{Op: "fork/exec", Path: "git", Err: syscall.EAGAIN}
	}
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			if err := s.start(t.Context(), spawn); err != nil {
				t.Error(err)
			}
		})
	}
	gittest.WaitFor(t, "many tries", func() bool { return tries.Load() >= 100 })
	room.Store(true)
	all.Wait()
	if n := gather(t, s.metrics)["packhorse_git_start_shortages_total processes"]; n != fmt.Sprint(tries.Load()-50) {
		t.Errorf("%s of %d tries were counted", n, tries.Load())
	}
}

// TestShortageLasts checks that callers get an error that names the shortage after their wait.
func TestShortageLasts(t *testing.T) {
	t.Parallel()
	for errno, of := range map[syscall.Errno]string{
		syscall.EAGAIN: "processes", syscall.ENOMEM: "memory", syscall.EMFILE: "files", syscall.ENFILE: "files",
	} {
		s := newStarter(newMetrics(nil))
		s.patient = 10 * time.Millisecond
		err := startError(script(""), s.start(t.Context(), func() error { return os.NewSyscallError("fork", errno) }))
		short, ok := errors.AsType[*Shortage](err)
		if !ok || short.Of != of || !errors.Is(err, errno) || !fault.Is(err, fault.Unavailable) ||
			fault.RetryAfter(err) == 0 {
			t.Errorf("%v: %v", errno, err)
		}
		if m := fault.Message(err); m != "cannot start git script" {
			t.Errorf("the client is told %q, want %q", m, "cannot start git script")
		}
	}
}

func TestShortageAbandoned(t *testing.T) {
	t.Parallel()
	s := newStarter(newMetrics(nil))
	s.patient = time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	err := s.start(ctx, func() error {
		cancel()
		return syscall.EAGAIN
	})
	if err := startError(script(""), err); !fault.Is(err, fault.Cancelled) {
		t.Error(err)
	}
	if err := s.start(t.Context(), func() error { return syscall.ENOENT }); err != syscall.ENOENT {
		t.Error(err)
	}
	if len(s.room) != 0 {
		t.Error("a place was not returned")
	}
}

// TestHangingStart: starts that do not end keep others waiting for a bounded time.
func TestHangingStart(t *testing.T) {
	t.Parallel()
	s := newStarter(newMetrics(nil))
	s.room, s.limit = make(chan struct{}, 1), 10*time.Millisecond
	end := make(chan struct{})
	var hanging sync.WaitGroup
	hanging.Go(func() { _ = s.start(t.Context(), func() error { <-end; return nil }) })
	gittest.WaitFor(t, "the first start hangs", func() bool { return len(s.room) > 0 })
	err := startError(script(""), s.start(t.Context(), func() error { return nil }))
	if !fault.Is(err, fault.Unavailable) {
		t.Error(err)
	}
	close(end)
	hanging.Wait()
}

// helper runs this test binary as another process, which does one thing and ends (see beHelper).
func helper(t *testing.T, what string, before ...string) string {
	t.Helper()
	args := append(before, os.Args[0], "-test.run=^$")
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "PROCESS_HELPER="+what)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%s: %v\n%s", what, err, out)
	}
	return string(out)
}

// beHelper runs the helper process of TestMain.
func beHelper(what string) error {
	r, err := New(Options{Classes: map[Class]Limits{"test": {Slots: 2}}})
	if err != nil {
		return err
	}
	version := Command{Class: "test", Subcommand: "version", Args: []string{"version"}}
	run := func() error {
		p, err := r.Start(context.Background(), version)
		if err != nil {
			return err
		}
		_, _ = io.Copy(io.Discard, p.Stdout())
		_, err = p.Wait()
		return err
	}
	switch what {
	case "run":
		return run()
	case "processes":
		return noProcesses(r, run)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 64, Max: 64}); err != nil {
		return err
	}
	var open []*os.File
	for {
		f, err := os.Open(os.DevNull)
		if err != nil {
			break
		}
		open = append(open, f)
	}
	r.starter.patient = 10 * time.Millisecond
	err = run()
	if short, ok := errors.AsType[*Shortage](err); !ok || short.Of != "files" {
		return fmt.Errorf("without a descriptor: %w", err)
	}
	r.starter.patient = time.Hour
	time.AfterFunc(100*time.Millisecond, func() { closeAll(open[:20]) })
	return run()
}

// TestNoDescriptors checks that a server without free descriptors reports that, and starts processes again later.
func TestNoDescriptors(t *testing.T) {
	t.Parallel()
	helper(t, "descriptors")
}

// TestNoProcesses checks that a server at its limit of processes reports that, and starts processes again later.
func TestNoProcesses(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: needs root, to become a user who has no other process")
	}
	if out := helper(t, "processes"); strings.HasPrefix(out, "SKIPPED") {
		t.Skip(out)
	}
}

// noProcesses becomes a user of its own, since the limit counts all threads of one, and does not hold for root
// (getrlimit(2), RLIMIT_NPROC).
func noProcesses(r *Runner, run func() error) error {
	if err := spareThreads(16); err != nil { // Go ends a program that gets no thread
		return err
	}
	if err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(1<<30+os.Getpid()),
		syscall.Setuid(1<<30+os.Getpid())); err != nil {
		fmt.Println("SKIPPED: this root cannot become any user:", err) // in a user namespace
		return nil
	}
	if err := run(); err != nil { // nothing else is the matter
		return err
	}
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	const most = 1 << 10
	if err := unix.Setrlimit(unix.RLIMIT_NPROC, &unix.Rlimit{Cur: uint64(len(tasks)), Max: most}); err != nil {
		return err
	}
	r.starter.patient = 10 * time.Millisecond
	err = run()
	if short, ok := errors.AsType[*Shortage](err); !ok || short.Of != "processes" {
		return fmt.Errorf("with no process left: %w", err)
	}
	r.starter.patient = time.Hour
	time.AfterFunc(100*time.Millisecond, func() {
		_ = unix.Setrlimit(unix.RLIMIT_NPROC, &unix.Rlimit{Cur: most, Max: most})
	})
	return run()
}

// spareThreads makes the runtime create threads, which it keeps: n goroutines wait in a system call at the same time.
func spareThreads(n int) error {
	var fds [2]int
	if err := syscall.Pipe(fds[:]); err != nil {
		return err
	}
	var waiting sync.WaitGroup
	for range n {
		waiting.Go(func() { _, _ = syscall.Read(fds[0], make([]byte, 1)) })
	}
	for tasks, err := os.ReadDir("/proc/self/task"); len(tasks) < n &&
		err == nil; tasks, err = os.ReadDir("/proc/self/task") {
		time.Sleep(time.Millisecond)
	}
	syscall.Close(fds[1])
	waiting.Wait()
	return syscall.Close(fds[0])
}
