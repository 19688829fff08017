package receivepack

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node"
)

// Git is killed at any moment: what was acknowledged is there, and the next push goes through.
func TestKilledAtAnyMoment(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	c := w.clone()
	var victim atomic.Int64 // nanoseconds until it is killed; negative: it is not
	var killing sync.WaitGroup
	w.server.started = func(pid int) {
		if after := time.Duration(victim.Load()); after >= 0 {
			killing.Go(func() { time.Sleep(after); _ = syscall.Kill(-pid, syscall.SIGKILL) })
		}
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	acknowledged := 0
	tip := c.ID("main")
	rounds := 25
	if testing.Short() {
		rounds = 10
	}
	for i := range rounds {
		tip = c.Commit(fmt.Sprint(i), tip)
		c.Git("update-ref", "refs/heads/main", tip.String())
		victim.Store(rnd.Int64N(int64(25 * time.Millisecond)))
		_, err := w.push(c, "main", fmt.Sprintf("main:refs/heads/b%d", i), fmt.Sprintf("+:refs/heads/b%d", i-1))
		killing.Wait()
		if err == nil {
			acknowledged++
			if got := w.refs(); !strings.Contains(got, "refs/heads/main "+tip.String()) {
				t.Fatalf("an acknowledged push is lost: %s", got)
			}
		}
		victim.Store(-1)
		w.mustPush(c, "main", fmt.Sprintf("main:refs/heads/c%d", i))
	}
	t.Logf("%d of %d pushes were acknowledged before the kill", acknowledged, rounds)
	w.clean()
}

// leave makes what a git leaves that is killed while it changes refs.
func (w *world) leave(id git.ObjectID) []string {
	w.t.Helper()
	var made []string
	for name, text := range map[string]string{
		"refs/heads/main.lock": id.String() +
			"\n", "refs/heads/gone.lock": "", "HEAD.lock": "", "packed-refs.lock": "", "packed-refs.new": "# pack-refs",
	} {
		path := filepath.Join(w.Dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			w.t.Fatal(err)
		}
		made = append(made, path)
	}
	return made
}

func there(paths []string) (found []string) {
	for _, path := range paths {
		if _, err := os.Lstat(path); err == nil {
			found = append(found, path)
		}
	}
	return found
}

func TestLocksOfTheKilled(t *testing.T) {
	t.Parallel()
	var w *world
	var pid atomic.Int64
	var kill atomic.Bool
	var made []string
	foreign := ""
	w = newWorld(t, Options{Decider: decider(func(_ context.Context, p *Push) error {
		if !kill.Load() {
			return nil
		}
		for _, u := range p.Updates {
			if u.Ref == "refs/heads/main" {
				made = w.leave(u.New)
			}
		}
		// Foreign locks: one of a ref that the push does not change, and one whose content the push does not write.
		for _, name := range []string{"refs/heads/other.lock", "refs/heads/third.lock"} {
			foreign = filepath.Join(w.Dir, name)
			_ = os.WriteFile(foreign, []byte("0123\n"), 0o644)
		}
		_ = syscall.Kill(int(-pid.Load()), syscall.SIGKILL)
		return nil
	})})
	w.server.started = func(p int) { pid.Store(int64(p)) }
	c := w.clone()
	w.mustPush(c, "main", "main:refs/heads/gone", "main:refs/heads/third")
	c.Git("update-ref", "refs/heads/main", c.Commit("next", c.ID("main")).String())
	kill.Store(true)
	if out, err := w.push(c, "main", "main:refs/heads/third", ":refs/heads/gone"); err == nil {
		t.Fatalf("git was killed, and says %s", out)
	}
	kill.Store(false)
	if found := there(made); len(found) > 0 {
		t.Errorf("after the push there are still %q", found)
	}
	if found := there([]string{foreign}); len(found) == 0 {
		t.Error("a lock of somebody else's was removed")
	}
	w.mustPush(c, "main", ":refs/heads/gone")
	if out, err := w.push(c, "main:refs/heads/third"); err == nil {
		t.Errorf("a push went through a lock: %s", out)
	}
	for _, name := range []string{"other", "third"} {
		if err := os.Remove(filepath.Join(w.Dir, "refs/heads", name+".lock")); err != nil {
			t.Error(err)
		}
	}
	w.clean()
}

// A push that meets a lock file of another process is refused. The client and the log get its name and age.
func TestForeignLock(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	c := w.clone()
	w.mustPush(c, "main:refs/heads/old")
	for lock, refspec := range map[string]string{"refs/heads/main.lock": "main", "packed-refs.lock": ":refs/heads/old"} {
		path := filepath.Join(w.Dir, lock)
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		_, err := w.push(c, refspec)
		if o, _ := w.last(); err == nil || o.Reason != reasonConflict {
			t.Errorf("%s, just created: got %v, reason %q, want %q", lock, err, o.Reason, reasonConflict)
		}
		at := time.Now().Add(-time.Minute)
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
		out, err := w.push(c, refspec)
		o, logged := w.last()
		want := fmt.Sprintf("lock file %q exists since 1m", lock)
		if err == nil || !strings.Contains(out, "remote: "+want) || o.Reason != reasonLocked ||
			!fault.Is(logged, fault.Unavailable) || !strings.Contains(logged.Error(), want) {
			t.Errorf("%s: got %v, reason %q, want %q\n%s", lock, logged, o.Reason, want, out)
		}
		if err := os.Remove(path); err != nil {
			t.Error(err)
		}
		w.mustPush(c, refspec)
	}
	w.clean()
}

// A long push of another ref does not prevent the cleanup after a push that died beside it.
func TestLocksBesideALongPush(t *testing.T) {
	t.Parallel()
	var w *world
	var latest atomic.Int64 // the git that was started last
	begun, end := make(chan int64), make(chan struct{})
	over := sync.OnceFunc(func() { close(end) })
	defer over()
	started := func(not int64) (pid int64) {
		eventually(t, "no git was started", func() bool { pid = latest.Load(); return pid != not })
		return pid
	}
	long := int64(0)
	var made []string
	w = newWorld(t, Options{Decider: decider(func(_ context.Context, p *Push) error {
		switch p.Updates[0].Ref {
		case "refs/heads/long":
			begun <- started(0)
			<-end
		case "refs/heads/killed":
			for name, text := range map[string]string{"HEAD.lock": "", "refs/heads/killed.lock": p.Updates[0].New.String()} {
				made = append(made, filepath.Join(w.Dir, name))
				if err := os.WriteFile(made[len(made)-1], []byte(text), 0o644); err != nil {
					t.Error(err)
				}
			}
			_ = syscall.Kill(int(-started(long)), syscall.SIGKILL)
		}
		return nil
	})})
	w.server.started = func(pid int) { latest.Store(int64(pid)) }
	w.Git("symbolic-ref", "HEAD", "refs/heads/killed")
	c := w.clone()
	result := make(chan error, 1)
	go func() {
		out, err := w.push(c, "main:refs/heads/long")
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		result <- err
	}()
	long = <-begun
	if out, err := w.push(c, "main:refs/heads/killed"); err == nil {
		t.Fatalf("git was killed, and says %s", out)
	}
	eventually(t, "the locks are still there", func() bool { return len(there(made)) == 0 })
	over()
	if err := <-result; err != nil {
		t.Errorf("the long push: %v", err)
	}
	w.clean()
}

// A git that is asked to end while it sets the refs of an atomic push removes its locks. All refs are set then, or
// none.
func TestAtomicPushThatIsEnded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	c := w.clone()
	const refs = 100
	for i := range 3 {
		tip := c.Commit(fmt.Sprint(i), c.ID("main"))
		args := []string{"--atomic"}
		for n := range refs {
			args = append(args, fmt.Sprintf("+%s:refs/tags/%d/%03d", tip, i/2, n))
		}
		pushed := make(chan struct{})
		var ending sync.WaitGroup
		w.server.started = func(pid int) {
			ending.Go(func() {
				for first := filepath.Join(w.Dir, fmt.Sprintf("refs/tags/%d/000", i/2)); ; {
					select {
					case <-pushed: // it was too fast for us
						return
					case <-time.After(100 * time.Microsecond):
					}
					if is, _ := os.ReadFile(first); strings.HasPrefix(string(is), tip.String()) {
						_ = syscall.Kill(-pid, syscall.SIGTERM)
						return
					}
				}
			})
		}
		_, _ = w.push(c, args...)
		close(pushed)
		ending.Wait()
		eventually(t, "half of an atomic push is done", func() bool { return strings.Count(w.refs(), tip.String()) == refs })
	}
	t.Logf("%d of 3 pushes had to be completed", recovered(w, "push"))
	w.clean()
}

// A client that disconnects in the middle of a push ends it, and nothing of the push remains.
func TestClientGoesAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	c := w.clone()
	pack := c.GitIn("main\n", "pack-objects", "--revs", "--stdout", "-q")
	head := command2(t, c.ID("main"), "refs/heads/main", "report-status side-band-64k")
	for name, end := range map[string]func(in *io.PipeWriter, cancel func()){
		"cut off":   func(in *io.PipeWriter, _ func()) { in.CloseWithError(io.ErrUnexpectedEOF) },
		"stalled":   func(in *io.PipeWriter, _ func()) { in.CloseWithError(fault.New(fault.Invalid, "too slow")) },
		"cancelled": func(in *io.PipeWriter, cancel func()) { cancel(); in.CloseWithError(context.Canceled) },
	} {
		ctx, cancel := context.WithCancel(context.Background())
		out, in := io.Pipe()
		started := make(chan struct{})
		w.server.started = func(int) { close(started) }
		result := make(chan error, 1)
		go func() {
			_, err := w.server.Serve(ctx, w.target(), node.Session{Stateless: true}, tester, out, &recorder{})
			result <- err
		}()
		if _, err := io.WriteString(in, head+pack[:len(pack)-10]); err != nil {
			t.Fatal(err)
		}
		<-started
		end(in, cancel)
		want := fault.Invalid
		if name == "cancelled" {
			want = fault.Cancelled
		}
		if err := <-result; fault.KindOf(err) != want {
			t.Errorf("%s: %v, of kind %v", name, err, fault.KindOf(err))
		}
		cancel()
	}
	if got := w.refs(); got != "" {
		t.Errorf("refs: %s", got)
	}
	w.clean()
}
