package pushrecovery

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/process"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newRecovery creates a Recovery with short delays. Start is left to the test.
func newRecovery(t *testing.T, journal string) *Recovery {
	t.Helper()
	runner, err := process.New(process.Options{Git: "git",
		Classes: map[process.Class]process.Limits{"receive": {Slots: 2, Queue: 10}}})
	if err != nil {
		t.Fatal(err)
	}
	r := New(Options{
		Journal: journal, Runner: runner, Class: "receive", Log: slog.New(slog.DiscardHandler),
		Removed: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "removed"}, []string{"kind"}),
		Delays:  Delays{Poll: time.Millisecond, Stable: time.Millisecond, Shared: time.Hour, Retry: time.Millisecond},
	})
	t.Cleanup(func() {
		r.Close()
		if err := runner.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return r
}

func start(t *testing.T, r *Recovery) {
	t.Helper()
	if err := r.Start(nil); err != nil {
		t.Fatal(err)
	}
}

// newEntry adds a push to a journal, whose file stays locked until Release.
func newEntry(t *testing.T, journal string, r Record) *Push {
	t.Helper()
	if r.Start.IsZero() {
		r.Start = time.Now()
	}
	e, err := (&Recovery{Options: Options{Journal: journal}}).create("earlier", r)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// write creates files with the given contents, and returns their paths.
func write(t *testing.T, dir string, files map[string]string) (paths []string) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(files[name]), 0o644); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	return paths
}

// existing returns the paths that exist.
func existing(paths []string) (found []string) {
	for _, path := range paths {
		if _, err := os.Lstat(path); err == nil {
			found = append(found, path)
		}
	}
	return found
}

func eventually(t *testing.T, failure string, done func() bool) {
	t.Helper()
	if !gittest.Eventually(done) {
		t.Fatal(failure)
	}
}

func id(digit string) git.ObjectID { return git.MustParseObjectID(strings.Repeat(digit, 40)) }

func refs(names ...git.RefName) map[git.RefName]git.ObjectID {
	m := make(map[git.RefName]git.ObjectID)
	for _, name := range names {
		m[name] = git.ObjectID{}
	}
	return m
}

// Lock files of a killed push are removed when its last process ends. Lock files that it cannot have made stay.
func TestLocksOfAnEarlierServer(t *testing.T) {
	t.Parallel()
	dir, journal := t.TempDir(), t.TempDir()
	record := Record{GitDir: dir, CommonDir: dir, LocksHead: true,
		Refs: map[git.RefName]git.ObjectID{"refs/heads/main": id("1"), "refs/heads/gone": {}, "refs/heads/third": id("2")}}
	e := newEntry(t, journal, record)
	own := write(t, dir, map[string]string{"HEAD.lock": "", "refs/heads/main.lock": id("1").String() + "\n",
		"refs/heads/gone.lock": ""})
	foreign := write(t, dir, map[string]string{"refs/heads/other.lock": "", "refs/heads/third.lock": id("3").String() +
		"\n"})
	r := newRecovery(t, journal)
	start(t, r)
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if ids := r.WaitForEarlierPushes(ended); !slices.Equal(ids, []string{"earlier"}) || len(existing(own)) != len(own) {
		t.Errorf("while the push has a process: got %q, lock files %q", ids, existing(own))
	}
	e.release()
	if ids := r.WaitForEarlierPushes(context.Background()); len(ids) > 0 || len(existing(own)) > 0 {
		t.Errorf("after its end: got %q, lock files %q", ids, existing(own))
	}
	if got := existing(foreign); len(got) != len(foreign) {
		t.Errorf("of the foreign lock files only %q are left", got)
	}
	eventually(t, "the push is still in the journal", func() bool {
		return !e.isActive() &&
			len(existing([]string{filepath.Join(journal, "earlier")})) == 0
	})
}

// Lock files for all refs may be of another Git process, so they have to be old.
func TestSharedLocks(t *testing.T) {
	t.Parallel()
	dir, journal := t.TempDir(), t.TempDir()
	newEntry(t, journal, Record{GitDir: dir, CommonDir: dir, Start: time.Now().Add(-3 * time.Hour),
		Refs: refs("refs/heads/main")}).release()
	young := write(t, dir, map[string]string{"packed-refs.lock": ""})
	old := write(t, dir, map[string]string{"shallow.lock": ""})
	at := time.Now().Add(-2 * time.Hour)
	if err := os.Chtimes(old[0], at, at); err != nil {
		t.Fatal(err)
	}
	r := newRecovery(t, journal)
	start(t, r)
	if ids := r.WaitForEarlierPushes(context.Background()); len(ids) != 1 {
		t.Errorf("got %q, want the push whose lock file is left", ids)
	}
	if len(existing(old)) > 0 || len(existing(young)) == 0 {
		t.Errorf("lock files: got %q and %q, want only the second", existing(old), existing(young))
	}
	if name, age := FindLock(&r.earlier[0].Record); name != "packed-refs.lock" || age <= 0 {
		t.Errorf("FindLock: got %q, %v", name, age)
	}
	if err := os.Chtimes(young[0], at, at); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the lock file is still there", func() bool { return len(existing(young)) == 0 })
}

func TestLockOfAnotherUser(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := write(t, dir, map[string]string{"refs/heads/main.lock": ""})[0]
	p := newPush("", Record{CommonDir: dir, Start: time.Now(),
		Refs: refs("refs/heads/main")}, time.Now().Add(time.Hour))
	if got := p.staleLocks(); len(got) != 1 {
		t.Errorf("got %v, want one stale lock file", got)
	}
	if err := os.Chown(path, 12345, -1); err != nil {
		t.Skip("SKIPPED: cannot change the owner of a file:", err)
	}
	if got := p.staleLocks(); len(got) != 0 {
		t.Errorf("got %v, want no stale lock file", got)
	}
}

// A lock file that cannot be removed does not delay pushes, and is removed later.
func TestLockThatCannotBeRemoved(t *testing.T) {
	t.Parallel()
	dir, journal := t.TempDir(), t.TempDir()
	record := Record{GitDir: dir, CommonDir: dir, Refs: refs("refs/heads/main")}
	newEntry(t, journal, record).release()
	paths := write(t, dir, map[string]string{"refs/heads/main.lock": ""})
	var isReadOnly atomic.Bool
	isReadOnly.Store(true)
	r := newRecovery(t, journal)
	r.unlink = func(path string) error {
		if isReadOnly.Load() {
			return &fs.PathError{Op: "remove", Path: path, Err: syscall.EROFS}
		}
		return os.Remove(path)
	}
	start(t, r)
	if ids := r.WaitForEarlierPushes(context.Background()); len(ids) != 1 {
		t.Errorf("got %q, want one push", ids)
	}
	p, err := r.Begin(context.Background(), Record{GitDir: dir, CommonDir: dir, Start: time.Now()}, "next")
	if err != nil {
		t.Fatal(err)
	}
	r.End(context.Background(), p, true)
	isReadOnly.Store(false)
	eventually(t, "the lock file is still there", func() bool { return len(existing(paths)) == 0 })
	eventually(t, "the removal is not counted",
		func() bool { return testutil.ToFloat64(r.Removed.WithLabelValues("lock")) == 1 })
}

// A push of another ref may take any time. It does not delay the removal of lock files that it cannot have made.
func TestConcurrentPush(t *testing.T) {
	t.Parallel()
	dir, journal := t.TempDir(), t.TempDir()
	r := newRecovery(t, journal)
	start(t, r)
	begin := func(id string, ref git.RefName) *Push {
		p, err := r.Begin(context.Background(), Record{GitDir: dir, CommonDir: dir, Start: time.Now(),
			Refs: refs(ref)}, id)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	other, same, killed := begin("other", "refs/heads/other"), begin("same", "refs/heads/main"), begin("killed",
		"refs/heads/main")
	paths := write(t, dir, map[string]string{"refs/heads/main.lock": ""})
	ended, cancel := context.WithCancel(context.Background())
	r.end(killed, false)
	cancel()
	if killed.waitUnlocked(ended) || len(existing(paths)) == 0 {
		t.Error("the lock file was removed although a running push may have made it")
	}
	r.End(context.Background(), same, true)
	if !killed.waitUnlocked(context.Background()) || len(existing(paths)) > 0 {
		t.Error("the lock file is still there")
	}
	r.End(context.Background(), other, true)
}

// A server that is killed while it sets HEAD leaves a lock file. The next server removes it.
func TestHeadLock(t *testing.T) {
	t.Parallel()
	dir, journal := t.TempDir(), t.TempDir()
	killed := newRecovery(t, journal)
	start(t, killed)
	done, err := killed.BeginHead(dir, dir)
	if err != nil {
		t.Fatal(err)
	}
	paths := write(t, dir, map[string]string{"HEAD.lock": ""})
	for p := range killed.running {
		p.release()
	}
	next := newRecovery(t, journal)
	start(t, next)
	if ids := next.WaitForEarlierPushes(context.Background()); len(ids) > 0 || len(existing(paths)) > 0 {
		t.Errorf("got %q, lock files %q", ids, existing(paths))
	}
	done()
	if files, err := os.ReadDir(journal); err != nil || len(files) > 0 {
		t.Errorf("the journal has %v, %v", files, err)
	}
}

// A lock file that does not stay unchanged proves nothing about an atomic push.
func TestObserveLocks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	paths := write(t, dir, map[string]string{"refs/a.lock": "", "refs/b.lock": "", "refs/c.lock": ""})
	p := newPush("", Record{CommonDir: dir, Start: time.Now(),
		Refs: refs("refs/a", "refs/b", "refs/c")}, time.Now().Add(time.Hour))
	before := p.staleLocks()
	synctest.Test(t, func(t *testing.T) {
		r := New(Options{})
		defer r.Close()
		observed := make(chan bool)
		go func() { observed <- r.observeLocks(p) }()
		synctest.Wait() // it sleeps
		if err := os.Remove(paths[0]); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(paths[1], []byte("0123"), 0o644); err != nil {
			t.Fatal(err)
		}
		<-observed
	})
	if len(before) != 3 || len(p.lasting) != 1 || p.lasting[paths[2]] == nil {
		t.Errorf("got %d lock files before, and afterwards %v, want only %s", len(before), p.lasting, paths[2])
	}
}

// An unreadable journal does not keep a server from starting. Up to a limit, its files are kept.
func TestUnreadableJournal(t *testing.T) {
	t.Parallel()
	journal := filepath.Join(t.TempDir(), "journal")
	files := make(map[string]string)
	for i := range maxRejected + 1 {
		files[fmt.Sprint(i)] = "{}\n"
	}
	write(t, journal, files)
	r := newRecovery(t, journal)
	start(t, r)
	kept, err := os.ReadDir(journal + ".bad")
	if err != nil || len(kept) != maxRejected {
		t.Errorf("%d files are kept, want %d (%v)", len(kept), maxRejected, err)
	}
	if left, err := os.ReadDir(journal); err != nil || len(left) > 0 {
		t.Errorf("the journal has %v, %v", left, err)
	}
	if n := testutil.ToFloat64(r.Removed.WithLabelValues("note")); n != maxRejected+1 {
		t.Errorf("%v files are counted", n)
	}
}

func TestUnwritableJournal(t *testing.T) {
	t.Parallel()
	r := newRecovery(t, filepath.Join(t.TempDir(), "nowhere"))
	if _, err := r.Begin(context.Background(), Record{CommonDir: "/x"}, "id"); !fault.Is(err,
		fault.Unavailable) {
		t.Errorf("got %v, want a fault of kind Unavailable", err)
	}
}

// hostname is how Git names this machine.
func hostname() string {
	name, err := os.Hostname()
	if err != nil {
		name = "localhost"
	}
	return name
}

// Nothing is known about the processes of another machine.
func TestKeepFileOfAnotherMachine(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"objects/pack/pack-1.keep": "receive-pack 999999999 on " + hostname() + "\n",
		"objects/pack/pack-2.keep": "receive-pack 999999999 on elsewhere." + hostname() + "\n",
		"objects/pack/pack-3.keep": "kept by hand",
	})
	all := func(fs.FileInfo) bool { return true }
	if found := keepFiles(dir, all); len(found) != 1 || found[filepath.Join(dir,
		"objects/pack/pack-1.keep")] != 999999999 {
		t.Errorf("got %v", found)
	}
}

// A .keep file is removed when the process that it names has ended and was reaped. Quarantines are removed too.
func TestKeepFilesAndQuarantines(t *testing.T) {
	t.Parallel()
	dir, journal := t.TempDir(), t.TempDir()
	process := exec.Command("sleep", "300")
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = process.Process.Kill(); _ = process.Wait() }()
	newEntry(t, journal, Record{GitDir: dir, CommonDir: dir}).release()
	keep := write(t, dir, map[string]string{"objects/pack/pack-1.keep": fmt.Sprintf("receive-pack %d on %s\n",
		process.Process.Pid, hostname())})
	quarantine := write(t, dir, map[string]string{"objects/tmp_objdir-incoming-aBc123/pack/x": "",
		"objects/incoming-old/x": ""})
	r := newRecovery(t, journal)
	start(t, r)
	eventually(t, "the quarantines are still there", func() bool { return len(existing(quarantine)) == 0 })
	if len(existing(keep)) == 0 {
		t.Error("the .keep file was removed although its process lives")
	}
	_ = process.Process.Kill()
	_ = process.Wait()
	eventually(t, "the .keep file is still there", func() bool { return len(existing(keep)) == 0 })
	eventually(t, "the push is still in the journal", func() bool {
		return len(existing([]string{filepath.Join(journal,
			"earlier")})) == 0
	})
}

// Git was killed while it set the refs of an atomic push. The push is completed, unless it had not begun or another
// push has changed its refs since.
func TestAtomicPush(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		changed map[string]string // branches that were changed, and to which commit
		want    string
		agreed  bool // the journal says that all hooks accepted, and there are no lock files
	}{
		"begun":     {map[string]string{"a": "new"}, "a new b new made new", false},
		"deleted":   {map[string]string{"a": "new", "b": "new", "gone": "", "made": ""}, "a new b new made new", false},
		"unlocked":  {map[string]string{"b": "new"}, "a old b new gone old", false}, // another push has set b
		"not begun": {nil, "a old b old gone old", false},
		"all": {map[string]string{"a": "new", "b": "new", "gone": "", "made": "new"}, "a new b new made new",
			false},
		"passed":          {map[string]string{"a": "new", "b": "other"}, "a new b other gone old", false},
		"agreed":          {map[string]string{"b": "new"}, "a new b new made new", true},
		"agreed, deleted": {map[string]string{"gone": ""}, "a new b new made new", true},
		"agreed, no more": {nil, "a old b old gone old", true},
		"agreed, passed":  {map[string]string{"a": "new", "b": "other"}, "a new b other gone old", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			repo, journal := gittest.Init(t), t.TempDir()
			ids := map[string]git.ObjectID{"old": repo.Commit("old"), "new": repo.Commit("new"), "other": repo.Commit("other")}
			for _, branch := range []string{"a", "b", "gone"} {
				repo.Git("update-ref", "refs/heads/"+branch, ids["old"].String())
			}
			e := newEntry(t, journal, Record{
				GitDir: repo.Dir, CommonDir: repo.Dir, Agreed: test.agreed,
				Refs: map[git.RefName]git.ObjectID{"refs/heads/a": ids["new"], "refs/heads/b": ids["new"], "refs/heads/gone": {},
					"refs/heads/made": ids["new"]},
				Old: map[git.RefName]git.ObjectID{"refs/heads/a": ids["old"], "refs/heads/b": ids["old"],
					"refs/heads/gone": ids["old"], "refs/heads/made": {}},
			})
			e.release()
			for branch, commit := range test.changed {
				if commit == "" && branch != "made" {
					repo.Git("update-ref", "-d", "refs/heads/"+branch)
				} else if commit != "" {
					repo.Git("update-ref", "refs/heads/"+branch, ids[commit].String())
				}
			}
			if !test.agreed {
				write(t, repo.Dir, map[string]string{
					"refs/heads/b.lock": ids["new"].String() + "\n", "refs/heads/made.lock": ids["new"].String() +
						"\n", "refs/heads/gone.lock": "",
				})
			}
			r := newRecovery(t, journal)
			start(t, r)
			if ids := r.CompleteAtomicPushes(context.Background()); len(ids) > 0 {
				t.Errorf("got %q, want no incomplete push", ids)
			}
			got := repo.Git("for-each-ref", "--format=%(refname:short) %(contents:subject)")
			if strings.ReplaceAll(got, "\n", " ") != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

// A completed push is not completed again when later changes have set its refs back.
func TestSettledPush(t *testing.T) {
	t.Parallel()
	repo, journal := gittest.Init(t), t.TempDir()
	before, after := repo.Commit("old"), repo.Commit("new")
	repo.Git("update-ref", "refs/heads/a", before.String())
	repo.Git("update-ref", "refs/heads/b", after.String())
	e := newEntry(t, journal, Record{GitDir: repo.Dir, CommonDir: repo.Dir, Agreed: true,
		Refs: map[git.RefName]git.ObjectID{"refs/heads/a": after, "refs/heads/b": after},
		Old:  map[git.RefName]git.ObjectID{"refs/heads/a": before, "refs/heads/b": before}})
	e.release()
	r := newRecovery(t, journal)
	for _, want := range []git.ObjectID{after, before} {
		pushes, err := r.read()
		if err == nil {
			err = r.complete(pushes[0])
		}
		if got := repo.ID("refs/heads/a"); err != nil || got != want {
			t.Fatalf("a is %s, want %s, %v", got, want, err)
		}
		repo.Git("update-ref", "refs/heads/a", before.String())
	}
}
