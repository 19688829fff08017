package search_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/search"
	"github.com/packhorse-git/packhorse/internal/search/ipc"
)

// children returns the workers of this process for a kind of work and a directory, from /proc.
func children(t *testing.T, what search.Work, dir string) (pids []int) {
	t.Helper()
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		text, _ := os.ReadFile(f)
		args := strings.Split(string(text), "\x00")
		status, _ := os.ReadFile(filepath.Join(filepath.Dir(f), "stat"))
		_, after, _ := bytes.Cut(status, []byte(") "))
		fields := bytes.Fields(after)
		if len(args) > 2 && args[0] == ipc.Program && args[1] == string(what) && len(fields) > 1 &&
			string(fields[1]) == strconv.Itoa(os.Getpid()) &&
			(what != search.WorkSearch || args[3] == filepath.Join(dir, "shards")) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(f)))
			pids = append(pids, pid)
		}
	}
	return pids
}

func needLinux(t *testing.T) {
	t.Helper()
	if _, err := os.Stat("/proc/self/cmdline"); err != nil {
		t.Skip("there is no /proc here to find processes by")
	}
}

// patience is for how long something is waited for: machines may be slow, and busy.
const patience = 3 * time.Minute

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	gittest.WaitFor(t, what, ok)
}

func TestSearcherIsKilled(t *testing.T) {
	t.Parallel()
	needLinux(t)
	s := newSource()
	s.push("a", main, files{"f": "needle"})
	o := options(t, s)
	said := newSaying(o.Log)
	o.Log = slog.New(said)
	e := start(t, o)
	await(t, e, "needle", has(1))
	for _, pid := range children(t, search.WorkSearch, o.Dir) {
		unix.Kill(pid, unix.SIGKILL)
	}
	eventually(t, "the death is known", func() bool { return e.Status(nil).Deaths == 1 })
	if err := e.Purge(t.Context(), repoPath("a"), ""); err != nil {
		t.Errorf("a purge while the process starts: %v", err)
	}
	await(t, e, "needle", has(1))
	if n := strings.Count(said.String(), "search index is open"); n != 2 {
		t.Errorf("log lines about an open index: got %d, want 2", n)
	}
}

// Workers of another build than the server's are refused, with the reason in the log.
func TestOtherBuild(t *testing.T) {
	t.Parallel()
	o := options(t, newSource())
	o.Build.Version = "other"
	said := newSaying(o.Log)
	o.Log = slog.New(said)
	e := start(t, o)
	eventually(t, "the log has the reason", func() bool {
		return strings.Contains(said.String(), "packhorse-search test does not match packhorse other: install both")
	})
	if _, err := ask(t, e, "needle"); !fault.Is(err, fault.Unavailable) {
		t.Errorf("search: got error %v, want one of kind %v", err, fault.Unavailable)
	}
}

// saying writes to a log, and keeps it.
type saying struct {
	slog.Handler
	mu   *sync.Mutex
	kept *strings.Builder
}

func newSaying(log *slog.Logger) saying {
	return saying{log.Handler(), &sync.Mutex{}, &strings.Builder{}}
}

func (s saying) Handle(ctx context.Context, r slog.Record) error {
	s.mu.Lock()
	fmt.Fprintln(s.kept, r.Level, r.Message)
	r.Attrs(func(a slog.Attr) bool {
		fmt.Fprintln(s.kept, a)
		return true
	})
	s.mu.Unlock()
	return s.Handler.Handle(ctx, r)
}

func (s saying) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kept.String()
}

// A shard that is truncated while it is mapped kills the search worker at its next access (SIGBUS), and no other
// process. The repository is indexed again.
func TestShardIsCutOff(t *testing.T) {
	t.Parallel()
	s := newSource()
	big := files{}
	for i := range 200 {
		big[fmt.Sprintf("f%d", i)] = fmt.Sprintf("needle %d\n%s", i, strings.Repeat("some more of it\n", 100))
	}
	s.push("big", main, big)
	s.push("b", main, files{"f": "needle"})
	o := options(t, s)
	o.Scan = time.Hour // or it is found sooner
	e := start(t, o)
	await(t, e, "needle count:1000", has(201))
	shards, _ := filepath.Glob(filepath.Join(o.Dir, "shards", "big_v*.zoekt"))
	if len(shards) != 1 {
		t.Fatalf("got shards %q, want 1", shards)
	}
	if err := os.Truncate(shards[0], 4096); err != nil {
		t.Fatal(err)
	}
	await(t, e, "needle count:1000", func(f *found) bool { return has(201)(f) && e.Status(nil).Deaths > 0 })
}

func TestBrokenAtTheStart(t *testing.T) {
	t.Parallel()
	s := newSource()
	s.push("a", main, files{"f": "needle"})
	s.push("b", main, files{"f": "needle"})
	o := options(t, s)
	e := search.New(o)
	await(t, e, "needle", has(2))
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(o.Dir, "shards")
	shards, _ := filepath.Glob(filepath.Join(dir, "*.zoekt"))
	if err := os.WriteFile(shards[0], []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"left_v16.00000.zoekt.1.tmp", "nobody_v16.00000.zoekt", "x_v16.00000.zoekt.meta",
		"no\nname_v16.00000.zoekt"} {
		os.WriteFile(filepath.Join(dir, name), []byte("garbage"), 0o600)
	}
	e = start(t, o)
	await(t, e, "needle", has(2))
	if rest, _ := os.ReadDir(dir); len(rest) != 2 {
		t.Errorf("what is left is %v", rest)
	}
}

// A truncated small shard, or a removed one, kills no process. Their results would be missing.
func TestShardsAreNotAsTheyWere(t *testing.T) {
	t.Parallel()
	s := newSource()
	for _, name := range []string{"a", "b", "c_v1"} {
		s.push(name, main, files{"f": "needle"})
	}
	o := options(t, s)
	e := start(t, o)
	await(t, e, "needle", has(3))
	for i, name := range []string{"a_v*.zoekt", "b_v*.zoekt", "c_v1_v*.zoekt"} {
		shards, _ := filepath.Glob(filepath.Join(o.Dir, "shards", name))
		if len(shards) != 1 {
			t.Fatalf("got shards %q, want 1", shards)
		}
		before, err := os.Stat(shards[0])
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			err = os.Truncate(shards[0], before.Size()/2)
		} else {
			err = os.Remove(shards[0])
		}
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, shards[0]+" is back", func() bool {
			after, err := os.Stat(shards[0])
			return err == nil && after.Size() > before.Size()*3/4
		})
	}
	await(t, e, "needle", has(3))
}

// TestSymbolsAreAdded: an index that was written without ctags is rebuilt, and searched meanwhile.
func TestSymbolsAreAdded(t *testing.T) {
	t.Parallel()
	program, err := exec.LookPath("ctags-universal")
	if err != nil {
		t.Skip("needs universal-ctags")
	}
	s := newSource()
	s.push("a", main, files{"f.go": "package f\n\nfunc Needle() {}\n"})
	o := options(t, s)
	e := search.New(o)
	await(t, e, "Needle", has(1))
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	o.Ctags = program
	e = start(t, o)
	await(t, e, "sym:Needle", has(1))
}

func TestCatalogueIsGarbage(t *testing.T) {
	t.Parallel()
	s := newSource()
	s.push("a", main, files{"f": "needle"})
	o := options(t, s)
	e := search.New(o)
	await(t, e, "needle", has(1))
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	garbage := strings.Repeat("\xff\x00{", 100_000) + "\n" + `{"id":4294967295,"repository":"a"}` + "\n" +
		`{"next":4294967295}` + "\n"
	if err := os.WriteFile(filepath.Join(o.Dir, "catalogue"), []byte(garbage), 0o600); err != nil {
		t.Fatal(err)
	}
	e = start(t, o)
	await(t, e, "needle", has(1))
	s.push("b", main, files{"f": "needle"})
	await(t, e, "needle", has(2))
}

// Not parallel: it kills the processes of other tests as well.
func TestIndexerIsKilled(t *testing.T) {
	needLinux(t)
	s := newSource()
	hold := make(chan struct{})
	s.mu.Lock()
	s.hold = hold
	s.mu.Unlock()
	s.push("held", main, files{"f": "needle", "g": "needle"})
	o := options(t, s)
	e := start(t, o)
	eventually(t, "a job runs", func() bool { return len(e.Status(nil).Jobs) == 1 })
	for _, pid := range children(t, search.WorkIndex, o.Dir) {
		unix.Kill(pid, unix.SIGKILL)
	}
	close(hold)
	await(t, e, "needle", has(2))
}

func TestDirectoryCannotBeUsed(t *testing.T) {
	t.Parallel()
	s := newSource()
	s.push("a", main, files{"f": "needle"})
	o := options(t, s)
	if err := os.WriteFile(o.Dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	e := start(t, o)
	eventually(t, "the status tells", func() bool { return strings.Contains(e.Status(nil).Error, "cannot be opened") })
	if _, err := ask(t, e, "needle"); err == nil {
		t.Error("a search without an index succeeded")
	}
}

func TestHostile(t *testing.T) {
	t.Parallel()
	s := newSource()
	names := []string{"with:colon@and at", "ünï/cödé.git", "-dash", "a%2fb", "a b", strings.Repeat("long/", 60) + "x",
		strings.Repeat("long/", 60) + "y"}
	for _, name := range names {
		s.push(name, main, files{
			"needle":                      "needle",
			"new\nline \"quote\" \xff.go": "needle\xff\xfe\n",
			"binary":                      "needle\x00\x01\x02",
			"one line":                    strings.Repeat("x", 100_000) + "needle" + strings.Repeat("y", 100_000),
			"too large":                   strings.Repeat("needle\n", 1<<18),
			"-rf":                         "needle",
			"empty":                       "",
		})
	}
	e := start(t, options(t, s))
	// searches without one would take the CPU that it needs
	eventually(t, "the index is complete", func() bool { return e.Status(nil).Complete })
	await(t, e, "content:needle count:all", has(4*len(names)))
	await(t, e, "file:large count:all", has(len(names)))
	for _, name := range names {
		await(t, e, "content:needle file:^needle repo:^"+strings.ReplaceAll(name, " ", "\\s")+"$", has(1))
	}
	await(t, e, `(x+x+)+y count:all`, func(*found) bool { return true })
}

func TestBranches(t *testing.T) {
	t.Parallel()
	s := newSource()
	o := options(t, s)
	o.Branches = []string{"refs/heads/release", "refs/heads/none", main}
	first := s.push("a", main, files{"same": "needle", "differs": "needle main", "main": "needle"})
	s.push("a", "refs/heads/release", files{"same": "needle", "differs": "needle release", "release": "needle"})
	e := start(t, o)
	await(t, e, "needle", has(5))
	await(t, e, "needle branch:release", has(3))
	await(t, e, "needle branch:HEAD", has(3, first))
	s.push("a", "refs/heads/release", files{"same": "needle"})
	await(t, e, "needle branch:release", func(f *found) bool { return has(1)(f) && f.Repositories[0].Lag == 0 })
}

func TestManyPushes(t *testing.T) {
	t.Parallel()
	s := newSource()
	o := options(t, s)
	o.Deltas = 2
	e := start(t, o)
	for i := range 12 {
		f := files{"steady": "needle"}
		f[fmt.Sprint("f", i)] = fmt.Sprintf("turn %d", i)
		id := s.push("a", main, f)
		await(t, e, "needle", has(1, id))
		await(t, e, fmt.Sprintf("\"turn %d\"", i), has(1, id))
		await(t, e, "turn", has(1))
	}
}

// TestPowerCut puts files of the index together as a power cut between their renamings leaves them: nothing of that is
// searched.
func TestPowerCut(t *testing.T) {
	t.Parallel()
	for name, cut := range map[string]func(t *testing.T, dir string, before map[string][]byte){
		"a new shard is not there, which what is beside the old one says": func(t *testing.T, dir string,
			_ map[string][]byte) {
			if err := os.Remove(filepath.Join(dir, "a_v16.00001.zoekt")); err != nil {
				t.Fatal(err)
			}
		},
		"a shard is new, and what is beside it is not": func(t *testing.T, dir string, before map[string][]byte) {
			if err := os.Remove(filepath.Join(dir, "a_v16.00001.zoekt")); err != nil {
				t.Fatal(err)
			}
			restore(t, dir, "a_v16.00000.zoekt.meta", before)
		},
		"nothing beside the old one": func(t *testing.T, dir string, _ map[string][]byte) {
			if err := os.Remove(filepath.Join(dir, "a_v16.00000.zoekt.meta")); err != nil {
				t.Fatal(err)
			}
		},
		"a shard has not all of its blocks": func(t *testing.T, dir string, before map[string][]byte) {
			path := filepath.Join(dir, "a_v16.00001.zoekt")
			content := before["a_v16.00001.zoekt"]
			if err := os.WriteFile(path, append(make([]byte, 200), content[200:]...), 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"the catalogue has not the last line": func(t *testing.T, dir string, _ map[string][]byte) {
			path := filepath.Join(filepath.Dir(dir), "catalogue")
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Truncate(path, int64(bytes.LastIndexByte(text[:len(text)-1], '\n')+5)); err != nil {
				t.Fatal(err)
			}
		},
		"none": nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSource()
			s.push("a", main, files{"f": "one needle", "g": "steady needle", "h": "gone needle"})
			o := options(t, s)
			o.Scan = time.Hour // or it is found without looking
			e := search.New(o)
			await(t, e, "needle", has(3))
			last := s.push("a", main, files{"f": "another needle", "g": "steady needle", "i": "new needle"})
			await(t, e, "needle", has(3, last))
			dir := filepath.Join(o.Dir, "shards")
			eventually(t, "the job is over", func() bool { return len(e.Status(nil).Jobs) == 0 && e.Status(nil).Fresh == 1 })
			if err := e.Close(); err != nil {
				t.Fatal(err)
			}
			before := contents(t, dir)
			if len(before) != 3 {
				t.Fatalf("the index has %d files", len(before))
			}
			given := s.files()
			if cut != nil {
				cut(t, dir, before)
			}
			e = start(t, o)
			await(t, e, "needle", has(3, last))
			await(t, e, "another", has(1, last))
			await(t, e, "gone", has(0))
			eventually(t, "the index is complete", func() bool { return e.Status(nil).Complete })
			if n := s.files() - given; n > 0 != (cut != nil) {
				t.Errorf("%d files were indexed anew", n)
			}
		})
	}
}

// contents reads the files of a directory.
func contents(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range entries {
		if all[f.Name()], err = os.ReadFile(filepath.Join(dir, f.Name())); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

func restore(t *testing.T, dir, name string, from map[string][]byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), from[name], 0o600); err != nil {
		t.Fatal(err)
	}
}
