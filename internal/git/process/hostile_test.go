package process

import (
	"io"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/schedule/balance"
)

// TestManyAtOnce requests 10,000 slots at once. As many as possible succeed, the others get an error, and nothing is
// left behind.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	const slots, queue, all = 2, 50, 10_000
	r := newRunner(t, fakeGitPath, Limits{Slots: slots, Queue: queue})
	var ran, refused atomic.Int32
	var done sync.WaitGroup
	begin, full := make(chan struct{}), make(chan struct{})
	for i := range all {
		done.Go(func() {
			<-begin
			c := script("cat") // until everybody has asked
			c.Caller, c.Repository = balance.Caller("abcdefg"[i%7:i%7+1]), "mono"
			input, feed := io.Pipe()
			defer feed.Close()
			c.Stdin = input
			p, err := r.Start(t.Context(), c)
			if err != nil {
				if !fault.Is(err, fault.Exhausted) || fault.RetryAfter(err) == 0 {
					t.Error(err)
				}
				if refused.Add(1) == all-slots-queue {
					close(full)
				}
				return
			}
			<-full
			feed.Close()
			io.Copy(io.Discard, p.Stdout())
			if _, err := p.Wait(); err != nil {
				t.Error(err)
			}
			ran.Add(1)
		})
	}
	close(begin)
	done.Wait()
	if ran.Load() != slots+queue || refused.Load() != all-slots-queue {
		t.Errorf("%d ran, %d were refused, want %d, %d", ran.Load(), refused.Load(), slots+queue, all-slots-queue)
	}
	if q := r.Queue("test"); q.InUse() != 0 || q.Queued() != 0 || len(r.Running()) != 0 {
		t.Errorf("%d slots are taken, %d wait, %d run, want 0, 0, 0", q.InUse(), q.Queued(), len(r.Running()))
	}
}

// TestStderrFlood: a command that writes without end to its standard error costs no memory, and is not kept from its
// work.
func TestStderrFlood(t *testing.T) {
	t.Parallel()
	r := newRunner(t, fakeGitPath, Limits{})
	var told atomic.Int64
	c := script("head -c 50000000 /dev/zero | tr '\\0' x >&2; echo out; (echo; echo last) >&2; exit 3")
	c.Stderr = func(b []byte) { told.Add(int64(len(b))) }
	p, err := r.Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(p.Stdout())
	if err != nil || string(out) != "out\n" {
		t.Errorf("%q, %v", out, err)
	}
	if _, err := p.Wait(); err == nil || !strings.HasSuffix(err.Error(), "last") || len(err.Error()) > 2*tailSize ||
		told.Load() != 50_000_006 {
		t.Errorf("%d bytes; %.200v", told.Load(), err)
	}
}

// TestStdinIsNotRead runs a command that does not read its endless input. It reaches its time limit, and its caller
// continues.
func TestStdinIsNotRead(t *testing.T) {
	t.Parallel()
	r := newRunner(t, fakeGitPath, Limits{Time: 100 * time.Millisecond})
	c := script("exec sleep 1000")
	c.Stdin = endless{}
	p, err := r.Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	io.Copy(io.Discard, p.Stdout())
	if u, err := p.Wait(); !fault.Is(err, fault.Deadline) || u.Exit != "signal: killed" || u.In > 1<<20 {
		t.Errorf("%+v, %v", u, err)
	}
}

type endless struct{}

func (endless) Read(b []byte) (int, error) { return len(b), nil }

// TestResults: how commands end is counted by its cause.
func TestResults(t *testing.T) {
	t.Parallel()
	limit := int64(0)
	if runtime.GOOS == "linux" {
		limit = 64 << 20
	}
	r := newRunner(t, "", Limits{Memory: limit})
	sh := func(text string) Command {
		return Command{Class: "test", Subcommand: "sh", Program: "/bin/sh", Args: []string{"-c", text}}
	}
	output(t, r, sh("exit 0"))
	output(t, r, sh("exit 7"))
	output(t, r, sh("kill -9 $$"))
	p, err := r.Start(t.Context(), sh("exec sleep 1000"))
	if err != nil {
		t.Fatal(err)
	}
	p.Kill()
	_, _ = p.Wait()
	want := map[string]string{"ok": "1", "failed": "1", "signal": "1", "cancelled": "1"}
	if limit > 0 { // git itself, which wants a buffer for all that it reads
		c := Command{Class: "test", Subcommand: "stripspace", Args: []string{"stripspace"},
			Stdin: io.LimitReader(endless{}, 1<<30)}
		_, u, err := output(t, r, c)
		if err == nil || u.Exit != "exit 128" {
			t.Errorf("%+v, %v", u, err)
		}
		if n := gather(t, r.metrics)["packhorse_git_commands_total test memory stripspace"]; n != "1" {
			t.Errorf("%s died for want of memory, and not as %v", n, err)
		}
	}
	got := gather(t, r.metrics)
	for result, n := range want {
		if got["packhorse_git_commands_total test "+result+" sh"] != n {
			t.Errorf("%s: %s, want %s", result, got["packhorse_git_commands_total test "+result+" sh"], n)
		}
	}
}
