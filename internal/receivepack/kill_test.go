package receivepack

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
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
	for i := range 25 {
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
	t.Logf("%d of 25 pushes were acknowledged before the kill", acknowledged)
	w.clean()
}

// leave makes what a git leaves that is killed while it changes refs.
func (w *world) leave(id git.ObjectID) []string {
	w.t.Helper()
	var made []string
	for name, text := range map[string]string{
		"refs/heads/main.lock": id.String() + "\n", "refs/heads/gone.lock": "", "HEAD.lock": "", "packed-refs.lock": "", "packed-refs.new": "# pack-refs",
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
		// Somebody else's: of a ref that the push does not change, and one that holds what it does not write.
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

// A push that takes long, of another ref, keeps nobody from clearing away after one that died beside it.
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

// What git has begun to do of an atomic push is done to its end; nothing is if it had not begun, or if somebody has gone on from there.
func TestHalfAnAtomicPush(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		is     map[string]string // what is changed before the server starts again
		want   string            // of the branches a, b, gone and made: which commit each is
		agreed bool              // the journal says so; and git was asked to end, and has removed its locks
	}{
		"begun":           {map[string]string{"a": "new"}, "a new b new made new", false},
		"deleted":         {map[string]string{"a": "new", "b": "new", "gone": "", "made": ""}, "a new b new made new", false},
		"unlocked":        {map[string]string{"b": "new"}, "a old b new gone old", false}, // whoever set b, it was not this push
		"not begun":       {nil, "a old b old gone old", false},
		"all":             {map[string]string{"a": "new", "b": "new", "gone": "", "made": "new"}, "a new b new made new", false},
		"passed":          {map[string]string{"a": "new", "b": "other"}, "a new b other gone old", false},
		"agreed":          {map[string]string{"b": "new"}, "a new b new made new", true},
		"agreed, deleted": {map[string]string{"gone": ""}, "a new b new made new", true},
		"agreed, no more": {nil, "a old b old gone old", true},
		"agreed, passed":  {map[string]string{"a": "new", "b": "other"}, "a new b other gone old", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, Options{})
			ids := map[string]git.ObjectID{"old": w.Commit("old"), "new": w.Commit("new"), "other": w.Commit("other")}
			for _, branch := range []string{"a", "b", "gone"} {
				w.Git("update-ref", "refs/heads/"+branch, ids["old"].String())
			}
			snapshot, err := w.open().Refs.Snapshot(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			updates := []Update{
				{Ref: "refs/heads/a", Old: ids["old"], New: ids["new"]}, {Ref: "refs/heads/b", Old: ids["old"], New: ids["new"]},
				{Ref: "refs/heads/gone", Old: ids["old"]}, {Ref: "refs/heads/made", New: ids["new"]},
			}
			n, err := newNote(w.Dir, w.Dir, updates, snapshot)
			if err == nil {
				err = n.atomic(updates, snapshot)
			}
			if err != nil {
				t.Fatal(err)
			}
			journal := t.TempDir()
			e, err := n.write(journal, "earlier")
			if err == nil && test.agreed {
				err = e.agree()
			}
			if err != nil {
				t.Fatal(err)
			}
			e.file.Close()
			for branch, to := range test.is {
				if to == "" && branch != "made" {
					w.Git("update-ref", "-d", "refs/heads/"+branch)
				} else if to != "" {
					w.Git("update-ref", "refs/heads/"+branch, ids[to].String())
				}
			}
			for branch, holds := range map[string]string{"b": ids["new"].String() + "\n", "made": ids["new"].String() + "\n", "gone": ""} {
				if test.agreed {
					break
				}
				if err := os.WriteFile(filepath.Join(w.Dir, "refs/heads", branch+".lock"), []byte(holds), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if left := worldAt(t, Options{Journal: journal}, w.Repo).server.Complete(context.Background()); len(left) > 0 {
				t.Errorf("%q are left", left)
			}
			got := w.Git("for-each-ref", "--format=%(refname:short) %(contents:subject)")
			if strings.ReplaceAll(got, "\n", " ") != test.want {
				t.Errorf("the refs are %s, want %s", got, test.want)
			}
			w.clean()
		})
	}
}

// host is as git names this machine.
func host(t *testing.T) string {
	t.Helper()
	name, err := os.Hostname()
	if err != nil {
		name = "localhost"
	}
	return name
}

// A git that is asked to end while it sets the refs of an atomic push removes its locks. All refs are set then, or none.
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
	t.Logf("%d of 3 pushes had to be completed", swept(t, w.server.metrics, "push"))
	w.clean()
}

// A lock that does not stay proves nothing: somebody else may have had it for a moment.
func TestLocksThatDoNotStay(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	e := &entry{note: note{Dir: dir, Common: dir, Start: time.Now().UnixNano(), Refs: byName{"refs/a": "", "refs/b": "", "refs/c": ""}}, ended: time.Now().Add(time.Hour)}
	if err := os.Mkdir(filepath.Join(dir, "refs"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name := range e.note.Refs {
		if err := os.WriteFile(filepath.Join(dir, name+".lock"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if e.seen = e.stale(); len(e.seen) != 3 {
		t.Fatalf("seen are %v", e.seen)
	}
	err := os.Remove(filepath.Join(dir, "refs/a.lock"))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "refs/b.lock"), []byte("0123"), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	if e.forgetMoved(); len(e.seen) != 1 || e.seen[filepath.Join(dir, "refs/c.lock")] == nil {
		t.Errorf("%v are said to have stayed", e.seen)
	}
}

// A server that was killed leaves a journal; the next one takes care of it, once nobody lives any more whom it began.
func TestJournalOfAnEarlierServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	c := w.clone()
	w.mustPush(c, "main", "main:refs/heads/gone")
	id := c.Commit("next", c.ID("main"))
	update := []Update{{Ref: "refs/heads/main", New: id}, {Ref: "refs/heads/gone"}}
	snapshot, err := w.open().Refs.Snapshot(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	n, err := newNote(w.Dir, w.Dir, update, snapshot)
	if err != nil {
		t.Fatal(err)
	}
	journal := t.TempDir()
	e, err := n.write(journal, "earlier") // its file stands for a git that still lives
	if err != nil {
		t.Fatal(err)
	}
	made := w.leave(id)
	keep, quarantine := filepath.Join(w.Dir, "objects/pack/pack-1.keep"), filepath.Join(w.Dir, "objects/tmp_objdir-incoming-aBc123")
	if err := os.WriteFile(keep, []byte("receive-pack 999999999 on "+host(t)+"\n"), 0o400); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(quarantine+"/pack", 0o700); err != nil {
		t.Fatal(err)
	}
	next := worldAt(t, Options{Journal: journal}, w.Repo)
	if found := there(made); len(found) != len(made) {
		t.Errorf("locks were removed though their owner lives: there are %q", found)
	}
	late, cancel := context.WithCancel(context.Background())
	cancel()
	if alive := next.server.Settle(late); len(alive) != 1 || alive[0] != "earlier" {
		t.Errorf("%q are said to live", alive)
	}
	e.file.Close()
	if alive := next.server.Settle(context.Background()); len(alive) > 0 || len(there(made)) > 0 {
		t.Errorf("%q are said to live, and %q are there", alive, there(made))
	}
	next.mustPush(c, id.String()+":refs/heads/main", ":refs/heads/gone")
	if found := there(made); len(found) > 0 {
		t.Errorf("there are still %q", found)
	}
	eventually(t, "the quarantine is still there", func() bool { return len(there([]string{keep, quarantine})) == 0 })
	next.clean()
}

// A file that keeps a pack goes once the process that it names does, which may be buried late.
func TestKeptPackOfTheLiving(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	living := exec.Command("sleep", "300")
	if err := living.Start(); err != nil {
		t.Fatal(err)
	}
	end := sync.OnceFunc(func() { _ = living.Process.Kill(); _ = living.Wait() })
	defer end()
	snapshot, err := w.open().Refs.Snapshot(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	n, err := newNote(w.Dir, w.Dir, nil, snapshot)
	if err != nil {
		t.Fatal(err)
	}
	journal := t.TempDir()
	e, err := n.write(journal, "earlier")
	if err != nil {
		t.Fatal(err)
	}
	e.file.Close()
	keep := filepath.Join(w.Dir, "objects/pack/pack-1.keep")
	if err := os.WriteFile(keep, fmt.Appendf(nil, "receive-pack %d on %s\n", living.Process.Pid, host(t)), 0o400); err != nil {
		t.Fatal(err)
	}
	next := worldAt(t, Options{Journal: journal}, w.Repo)
	if alive := next.server.Settle(context.Background()); len(alive) > 0 || len(there([]string{keep})) == 0 {
		t.Errorf("%q are said to live; there are %q", alive, there([]string{keep}))
	}
	end()
	next.clean()
}

// A ref's name may be any bytes; the journal has them as they are.
func TestJournalOfOddNames(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	want := note{Dir: "/a", Common: "/a", Start: 1, Refs: byName{"refs/heads/\xff": "1", "refs/heads/\xfe": "", "refs/heads/\"é\"": "2"}, Olds: byName{"refs/heads/\xff": ""}}
	e, err := want.write(dir, "one")
	if err != nil {
		t.Fatal(err)
	}
	e.file.Close()
	left, err := readJournal(dir, func(path string, err error) { t.Errorf("%s is set aside: %v", path, err) })
	if err != nil || len(left) != 1 || !reflect.DeepEqual(left[0].note, want) {
		t.Errorf("read %+v, %v", left, err)
	}
}

// Who goes away in the middle of a push ends it, and nothing is left.
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
