package receivepack

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// swept is what the counter says.
func swept(t *testing.T, m *Metrics, what string) int {
	t.Helper()
	var d dto.Metric
	if err := m.swept.WithLabelValues(what).Write(&d); err != nil {
		t.Fatal(err)
	}
	return int(d.GetCounter().GetValue())
}

// What is in the journal and cannot be read stops no start. It is kept, within bounds.
func TestJournalOfGarbage(t *testing.T) {
	t.Parallel()
	journal := filepath.Join(t.TempDir(), "journal")
	for _, dir := range []string{journal, journal + "/a directory"} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(filepath.Join(journal, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"empty": "", "half": `{"Dir":"/x`, "other": `[1]`, "nowhere": `{"Dir":"","Common":""}`, "names": `{"Dir":"/x","Common":"/x","Refs":{"unquoted":""}}`,
		"binary": "\x00\xff\n\n",
	} {
		if err := os.WriteFile(filepath.Join(journal, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("nowhere to be found", filepath.Join(journal, "link")); err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, Options{Journal: journal})
	w.mustPush(w.clone(), "main")
	w.clean()
	var names []string
	bad, err := os.ReadDir(journal + ".bad")
	for _, f := range bad {
		names = append(names, f.Name())
	}
	want := []string{"a directory", "binary", "fifo", "half", "link", "names", "nowhere", "other"}
	if err != nil || !slices.Equal(names, want) {
		t.Errorf("set aside are %q (%v), want %q", names, err, want)
	}
	if n := swept(t, w.server.metrics, "note"); n != len(want) {
		t.Errorf("%v were counted", n)
	}
}

// dead makes a push in the journal of a server whose git has died, with the locks that it has left.
func (w *world) dead(journal string, updates []Update, locks ...string) []string {
	w.t.Helper()
	snapshot, err := w.open().Refs.Snapshot(context.Background())
	if err != nil {
		w.t.Fatal(err)
	}
	n, err := newNote(w.Dir, w.Dir, updates, snapshot)
	if err != nil {
		w.t.Fatal(err)
	}
	e, err := n.write(journal, "earlier")
	if err != nil {
		w.t.Fatal(err)
	}
	e.file.Close()
	var made []string
	for _, name := range locks {
		made = append(made, filepath.Join(w.Dir, name))
		if err := os.WriteFile(made[len(made)-1], nil, 0o644); err != nil {
			w.t.Fatal(err)
		}
	}
	return made
}

// startOver is a server over a journal, with a sweeper that is fit for a test.
func startOver(t *testing.T, journal string, change func(w *sweeper)) *sweeper {
	t.Helper()
	s := newSweeper(journal, nil, slog.New(slog.DiscardHandler), NewMetrics())
	s.pause, s.idle, s.poll = time.Millisecond, 0, time.Millisecond
	change(s)
	if err := s.begin(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	return s
}

// A lock that cannot be removed makes those fail at once who need it, and keeps nobody else waiting.
func TestLockThatStays(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	w.mustPush(w.clone(), "main", "main:refs/heads/other")
	journal := t.TempDir()
	id := w.ID("main")
	made := w.dead(journal, []Update{{Ref: "refs/heads/main", Old: id}}, "refs/heads/main.lock")
	var stays atomic.Bool
	stays.Store(true)
	tried := make(chan bool, 100)
	s := startOver(t, journal, func(s *sweeper) {
		s.again = time.Millisecond
		s.unlink = func(path string) error {
			select {
			case tried <- true:
			default:
			}
			if stays.Load() {
				return &fs.PathError{Op: "remove", Path: path, Err: syscall.EROFS}
			}
			return os.Remove(path)
		}
	})
	<-tried
	<-tried
	ctx := context.Background()
	note := func(ref string) note { return note{Dir: w.Dir, Common: w.Dir, Refs: byName{ref: ""}} }
	err := s.wait(ctx, note("refs/heads/main"))
	if !fault.Is(err, fault.Unavailable) || !strings.Contains(fault.Message(err), "refs/heads/main.lock") || strings.Contains(fault.Message(err), w.Dir) {
		t.Errorf("a push to the ref is told %v", err)
	}
	if err := s.wait(ctx, note("refs/heads/other")); err != nil {
		t.Errorf("a push to another ref is told %v", err)
	}
	if left := s.settle(ctx, func(*entry) bool { return true }); len(left) != 1 {
		t.Errorf("%q are left", left)
	}
	stays.Store(false)
	eventually(t, "the lock is still there", func() bool { return len(there(made)) == 0 })
	if err := s.wait(ctx, note("refs/heads/main")); err != nil {
		t.Errorf("when the lock is gone a push to the ref is told %v", err)
	}
	eventually(t, "nothing was counted", func() bool { return swept(t, s.metrics, "lock") == 1 })
}

// A lock that may be somebody else's is left to them, but for one ref's, which says whose it is.
func TestLocksOfOthersAtWork(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	w.mustPush(w.clone(), "main")
	journal := t.TempDir()
	made := w.dead(journal, []Update{{Ref: "refs/heads/main", Old: w.ID("main")}}, "packed-refs.lock", "shallow.lock", "refs/heads/main.lock")
	var open, near atomic.Bool
	near.Store(true)
	asked := make(chan string, 1000)
	startOver(t, journal, func(s *sweeper) {
		s.holder = func(_ note, lock string, _ time.Time) (bool, bool) {
			select {
			case asked <- lock:
			default:
			}
			return open.Load(), near.Load()
		}
	})
	for range 10 {
		<-asked
	}
	if found := there(made); !slices.Equal(found, made[:2]) {
		t.Errorf("while others are at work there are %q", found)
	}
	near.Store(false)
	eventually(t, "the locks are still there", func() bool { return len(there(made)) == 0 })
}

// An old lock is nobody's, unless somebody has it open.
func TestOldLocks(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ open, near, old, want bool }{
		{false, false, false, false}, {false, true, false, true}, {true, true, false, true}, {true, true, true, true}, {false, true, true, false},
	} {
		s := newSweeper(t.TempDir(), nil, slog.New(slog.DiscardHandler), NewMetrics())
		s.holder = func(note, string, time.Time) (bool, bool) { return test.open, test.near }
		path := filepath.Join(s.dir, "lock")
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if at := time.Now().Add(-2 * foreignAge); test.old && os.Chtimes(path, at, at) != nil {
			t.Fatal("cannot make a file old")
		}
		info, err := os.Lstat(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.foreign(note{}, path, info); got != test.want {
			t.Errorf("%+v: %v", test, got)
		}
	}
}

// A lock of another user's is no push's, whether that user's processes can be seen or not.
func TestLockOfAnotherUser(t *testing.T) {
	t.Parallel()
	s := newSweeper(t.TempDir(), nil, slog.New(slog.DiscardHandler), NewMetrics())
	s.holder = func(note, string, time.Time) (bool, bool) { return false, false }
	path := filepath.Join(s.dir, "lock")
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(path, 12345, -1); err != nil {
		t.Skip("no file can be given away here:", err)
	}
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	if !s.foreign(note{}, path, info) {
		t.Error("it would be removed")
	}
}

// Of a process on another machine nothing is known: what it keeps stays.
func TestKeptPackOfAnotherMachine(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	e := newEntry("")
	e.note, e.ended = note{Dir: dir, Common: dir, Start: time.Now().UnixNano()}, time.Now().Add(time.Hour)
	if err := os.MkdirAll(filepath.Join(dir, "objects/pack"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, on := range map[string]string{"pack-1.keep": host(t), "pack-2.keep": "elsewhere." + host(t)} {
		if err := os.WriteFile(filepath.Join(dir, "objects/pack", name), []byte("receive-pack 999999999 on "+on+"\n"), 0o400); err != nil {
			t.Fatal(err)
		}
	}
	if list, more := e.keeps(); len(list) != 1 || filepath.Base(list[0]) != "pack-1.keep" || more {
		t.Errorf("to be removed are %q, more to come: %v", list, more)
	}
}

// A git that is at work in the repository is seen by where it works and what it was told.
func TestHolders(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("processes are looked at on Linux")
	}
	t.Parallel()
	w := newWorld(t, Options{})
	elsewhere := newWorld(t, Options{})
	n := note{Dir: w.Dir, Common: w.Dir}
	lock := filepath.Join(w.Dir, "packed-refs.lock")
	near := func(at time.Time) bool { _, near := holders(n, lock, at); return near }
	if near(time.Now()) {
		t.Error("somebody is said to work in a new repository")
	}
	for name, start := range map[string]func(*exec.Cmd){
		"working directory": func(c *exec.Cmd) { c.Dir = filepath.Join(w.Dir, "objects") },
		"argument":          func(c *exec.Cmd) { c.Args = slices.Insert(c.Args, 1, "--git-dir="+w.Dir) },
		"environment":       func(c *exec.Cmd) { c.Env = append(os.Environ(), "GIT_DIR="+w.Dir) },
	} {
		before := time.Now()
		cmd := exec.Command("git", "cat-file", "--batch")
		cmd.Dir = elsewhere.Dir
		start(cmd)
		in, err := cmd.StdinPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		end := sync.OnceFunc(func() { in.Close(); _ = cmd.Wait() })
		defer end()
		eventually(t, name+": git is not seen", func() bool { return near(time.Now()) })
		if near(before.Add(-time.Minute)) {
			t.Errorf("%s: a git is said to hold a lock that is older", name)
		}
		end()
		if near(time.Now()) {
			t.Errorf("%s: git is seen when it has ended", name)
		}
	}
	f, err := os.Create(lock)
	if err != nil {
		t.Fatal(err)
	}
	if open, _ := holders(n, lock, time.Now()); !open {
		t.Error("an open lock is not seen")
	}
	if err := errors.Join(f.Close(), os.Remove(lock)); err != nil {
		t.Error(err)
	}
}

// A server that is killed while it sets HEAD leaves a lock of HEAD. The next one removes it.
func TestHeadLockOfKilledServer(t *testing.T) {
	t.Parallel()
	w, journal := newWorld(t, Options{}), t.TempDir()
	killed := &Server{sweeper: startOver(t, journal, func(*sweeper) {})}
	released, err := killed.NoteHead(w.Dir, w.Dir)
	if err != nil {
		t.Fatal(err)
	}
	lock := filepath.Join(w.Dir, headLock)
	if err := os.WriteFile(lock, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for e := range killed.sweeper.running {
		e.file.Close()
	}
	next := startOver(t, journal, func(*sweeper) {})
	for _, e := range next.earlier {
		<-e.unlocked
	}
	if _, err := os.Lstat(lock); !os.IsNotExist(err) || len(next.earlier) != 1 {
		t.Errorf("%d notes; the lock: %v", len(next.earlier), err)
	}
	released()
	if notes, err := os.ReadDir(journal); err != nil || len(notes) > 0 {
		t.Errorf("left in the journal: %v, %v", notes, err)
	}
}
