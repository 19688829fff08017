package watchdog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// never is a time that no test lives to see.
const never = time.Hour

// options are those of a watchdog that sees nothing.
func options(t *testing.T) Options {
	return Options{
		Dir: filepath.Join(t.TempDir(), "dumps"), Stall: never, Interval: never,
		Profile: time.Millisecond, Log: slog.New(slog.DiscardHandler), Metrics: NewMetrics(nil), About: "a test",
	}
}

func start(t *testing.T, o Options) *Watchdog {
	t.Helper()
	w := Start(o)
	t.Cleanup(func() {
		w.Close()
		w.work.Wait() // a dump that is being written has the CPU's profile
	})
	return w
}

func (w *Watchdog) mustDump(t *testing.T) Dump {
	t.Helper()
	d, err := w.Dump(t.Context(), CauseAsked, "a test asks")
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func read(t *testing.T, d Dump, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(d.Dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// eventually waits for what takes as long as the machine makes it.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	gittest.WaitFor(t, what, is)
}

// value is that of a counter.
func value(t *testing.T, c prometheus.Metric) float64 {
	t.Helper()
	var m dto.Metric
	if err := c.Write(&m); err != nil {
		t.Fatal(err)
	}
	return m.GetCounter().GetValue()
}

// whole lists the dumps in a directory that are complete.
func whole(dir string) (list []string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if dumpName.MatchString(e.Name()) && !strings.HasSuffix(e.Name(), partSuffix) {
			list = append(list, e.Name())
		}
	}
	return list
}

func TestJudge(t *testing.T) {
	t.Parallel()
	s := signs{stall: 10 * time.Second}
	start := time.Now()
	for _, step := range []struct {
		after time.Duration
		r     reading
		want  []string
	}{
		{0, reading{}, nil},
		{1 * time.Second, reading{late: 9 * time.Second, probes: []probing{{"http", 9 * time.Second}}}, nil},
		{3 * time.Second, reading{late: 11 * time.Second}, []string{signScheduler}},
		{4 * time.Second, reading{probes: []probing{{"http", 1}, {"disk", 10 * time.Second}}}, []string{signProbe}},
		{5 * time.Second, reading{slow: 0.01}, nil},
		{6 * time.Second, reading{slow: 0.02}, nil},
		{15 * time.Second, reading{slow: 1}, nil},
		{16 * time.Second, reading{slow: 1}, []string{signScheduler}},
		{17 * time.Second, reading{slow: 0}, nil},
		{27 * time.Second, reading{slow: 1}, nil},
	} {
		step.r.at = start.Add(step.after)
		var got []string
		for _, f := range s.findings(step.r) {
			got = append(got, f.sign)
		}
		if !slices.Equal(got, step.want) {
			t.Errorf("after %v: %q, want %q", step.after, got, step.want)
		}
	}
}

// TestBark checks that automatic dumps become rare while a sign lasts.
func TestBark(t *testing.T) {
	t.Parallel()
	o := options(t)
	o.Interval = 10 * time.Minute
	w := start(t, o)
	other := &Watchdog{Options: w.Options, busy: map[string]bool{}, lines: make(chan func(), 1000)}
	other.stopped, other.stop = context.WithCancel(context.Background())
	other.stop() // nothing is written
	began := time.Now()
	var at []time.Duration
	for d := time.Duration(0); d < 8*time.Hour; d += time.Minute {
		before := other.notBefore
		other.bark(began.Add(d), []finding{{signProbe, "a test"}})
		if other.notBefore != before {
			at = append(at, d)
		}
		other.work.Wait()
	}
	m := time.Minute
	if want := []time.Duration{0, 10 * m, 30 * m, 70 * m, 150 * m, 310 * m}; !slices.Equal(at, want) {
		t.Errorf("dumps at %v, want %v", at, want)
	}
	quiet := began.Add(8*time.Hour + 10*m) // before it would have been the turn of the old sign
	other.bark(quiet, []finding{{signProbe, "again"}})
	if other.notBefore != quiet.Add(o.Interval) {
		t.Errorf("after a quiet time the next may be at %v", other.notBefore.Sub(quiet))
	}
	other.bark(quiet.Add(m), nil)
	other.bark(quiet.Add(2*m), []finding{{signProbe, "soon again"}})
	if other.notBefore != quiet.Add(o.Interval) {
		t.Error("a sign that came back soon has another dump")
	}
	other.work.Wait()
}

// TestNoDumpAfterTheEnd checks that Close waits for the running dump, and that later ones fail.
func TestNoDumpAfterTheEnd(t *testing.T) {
	t.Parallel()
	w := start(t, options(t))
	w.Close()
	if d, err := w.Dump(t.Context(), CauseAsked, ""); !errors.Is(err, errEnded) {
		t.Errorf("%+v, %v", d, err)
	}
}

// TestDump checks the files of a dump and their modes.
func TestDump(t *testing.T) {
	o := options(t)
	o.Parts = []Part{{"requests.txt", func(w io.Writer) error {
		_, err := io.WriteString(w, "one request\n")
		return err
	}}}
	w := start(t, o)
	d := w.mustDump(t)
	for name, want := range map[string]string{
		"why.txt": "a test asks", "stacks.txt": "TestDump", "goroutines.txt": "goroutine profile: total",
		"requests.txt": "one request",
		"mutex.pprof":  "", "heap.pprof": "", "cpu.pprof": "",
	} {
		if text := read(t, d, name); !strings.Contains(text, want) || text == "" {
			t.Errorf("%s: %.200q", name, text)
		}
		if info, err := os.Stat(filepath.Join(d.Dir, name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", name, info.Mode(), err)
		}
		if !slices.Contains(d.Files, name) {
			t.Errorf("%s is not among %q", name, d.Files)
		}
	}
	for _, dir := range []string{d.Dir, o.Dir} {
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v %v", dir, info.Mode(), err)
		}
	}
	if n := value(t, o.Metrics.dumps.WithLabelValues(CauseAsked)); n != 1 {
		t.Errorf("%v dumps counted", n)
	}
}

// TestTogether checks that callers share the dump that is being written.
func TestTogether(t *testing.T) {
	t.Parallel()
	o := options(t)
	entered, proceed := make(chan struct{}), make(chan struct{})
	o.Parts = []Part{{"slow.txt", func(io.Writer) error {
		close(entered)
		<-proceed
		return nil
	}}}
	w := start(t, o)
	dirs := make(chan string, 3)
	ask := func() {
		d, err := w.Dump(context.Background(), CauseAsked, "")
		if err != nil {
			t.Error(err)
		}
		dirs <- d.Dir
	}
	go ask()
	<-entered
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := w.Dump(gone, CauseAsked, ""); !errors.Is(err, context.Canceled) {
		t.Errorf("who went away got %v", err)
	}
	go ask()
	go ask()
	close(proceed)
	if a, b, c := <-dirs, <-dirs, <-dirs; (a != b && b != c && a != c) || a == "" {
		t.Errorf("%q %q %q", a, b, c)
	}
}

//go:noinline
func holdsTheLockTooLong(mu *sync.Mutex, held chan<- struct{}, until <-chan struct{}) {
	mu.Lock()
	defer mu.Unlock()
	close(held)
	<-until
}

// TestLockUp checks that a probe that waits for a lock with 1,400 goroutines causes a dump that names its holder.
func TestLockUp(t *testing.T) {
	o := options(t)
	o.Stall = 100 * time.Millisecond
	o.Interval = 10 * time.Millisecond // on a busy machine the first dump can be for another sign
	var mu sync.Mutex
	o.Probes = []Probe{{"log", func(context.Context) error {
		mu.Lock()
		defer mu.Unlock()
		return nil
	}}}
	held, until := make(chan struct{}), make(chan struct{})
	var all sync.WaitGroup
	defer all.Wait()
	defer close(until)
	all.Go(func() { holdsTheLockTooLong(&mu, held, until) })
	<-held
	for range 1400 {
		all.Go(func() {
			mu.Lock()
			defer mu.Unlock()
		})
	}
	start(t, o)
	eventually(t, "a dump with the holder of the lock", func() bool {
		return slices.ContainsFunc(whole(o.Dir), func(name string) bool {
			said := func(file string) string {
				text, _ := os.ReadFile(filepath.Join(o.Dir, name, file))
				return string(text)
			}
			return strings.Contains(said("why.txt"), `the probe "log" has had no answer`) &&
				strings.Contains(said("stacks.txt"), "holdsTheLockTooLong") &&
				strings.Count(said("stacks.txt"), "[sync.Mutex.Lock") >= 1400 &&
				strings.Contains(said("goroutines.txt"), "holdsTheLockTooLong")
		})
	})
}

// TestProbe checks that a listener without accepts causes a dump.
func TestProbe(t *testing.T) {
	o := options(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	o.Stall, o.Interval = 200*time.Millisecond, 10*time.Millisecond
	o.Probes = []Probe{HTTP("http", l.Addr(), nil, false), Readable("disk", t.TempDir())}
	start(t, o)
	// On a busy machine a dump can be for another sign, or a disk be as slow once.
	eventually(t, "a dump for the probe alone", func() bool {
		return slices.ContainsFunc(whole(o.Dir), func(name string) bool {
			text, _ := os.ReadFile(filepath.Join(o.Dir, name, "why.txt"))
			return strings.Contains(string(text), `the probe "http" has had no answer`) &&
				!strings.Contains(string(text), `"disk"`)
		})
	})
}

// TestWritable: it writes from the first time on, and through no link.
func TestWritable(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	dir := filepath.Join(top, "dumps")
	if err := Writable("state", dir).Do(t.Context()); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Join(dir, "probe")); err != nil || info.Size() != 1 || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
	link := filepath.Join(top, "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "probe")); err != nil {
		t.Fatal(err)
	}
	if err := Writable("state", link).Do(t.Context()); err == nil {
		t.Error("Writable followed a link to a directory, want an error")
	}
	victim := filepath.Join(top, "victim")
	if err := os.WriteFile(victim, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(victim, filepath.Join(dir, "probe")); err != nil {
		t.Fatal(err)
	}
	if err := Writable("state", dir).Do(t.Context()); err == nil {
		t.Error("Writable followed a link to a file, want an error")
	}
	if text, err := os.ReadFile(victim); err != nil || string(text) != "precious" {
		t.Errorf("%q %v", text, err)
	}
	if err := os.Remove(filepath.Join(dir, "probe")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(dir, "probe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Writable("state", dir).Do(t.Context()); err == nil { // and does not wait for a reader
		t.Error("Writable accepted a pipe, want an error")
	}
}

// TestRefusedIsAnswered checks that a refused connection counts as an answer, as when the process ends.
func TestRefusedIsAnswered(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	p := &probe{Probe: HTTP("http", l.Addr(), nil, false), made: time.Now()}
	var asked atomic.Int32
	do := p.Do
	p.Do = func(ctx context.Context) error {
		asked.Add(1)
		return do(ctx)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		p.run(ctx, time.Millisecond, time.Minute)
		close(done)
	}()
	eventually(t, "two questions", func() bool { return asked.Load() >= 2 })
	eventually(t, "an answer", func() bool { return p.waiting(time.Now()) == 0 })
	cancel()
	<-done
}

// TestPartThatHangs is given up, and not begun again while it hangs.
func TestPartThatHangs(t *testing.T) {
	t.Parallel()
	o := options(t)
	o.patience = 3 * time.Second // of which all is waited for
	proceed := make(chan struct{})
	var ran atomic.Int32
	o.Parts = []Part{{"hangs.txt", func(w io.Writer) error {
		ran.Add(1)
		io.WriteString(w, "so far\n")
		<-proceed
		_, err := io.WriteString(w, "too late\n")
		if err == nil {
			t.Error("a part wrote after its dump had ended, want os.ErrClosed")
		}
		return nil
	}}}
	w := start(t, o)
	first := w.mustDump(t)
	if text := read(t, first, "hangs.txt"); text != "so far\n" {
		t.Errorf("%q", text)
	}
	if text := read(t, first, "notes.txt"); !strings.Contains(text, "hangs.txt: was not made within") {
		t.Error(text)
	}
	second := w.mustDump(t)
	if text := read(t, second, "notes.txt"); !strings.Contains(text,
		"hangs.txt: the attempt of an earlier dump has not ended") || ran.Load() != 1 {
		t.Errorf("%d: %s", ran.Load(), text)
	}
	close(proceed)
}

// TestLogThatHangs: a log that takes nothing keeps no dump from being written.
func TestLogThatHangs(t *testing.T) {
	t.Parallel()
	o := options(t)
	r, wr := io.Pipe()
	defer r.Close()
	o.Log = slog.New(slog.NewTextHandler(wr, nil))
	w := start(t, o)
	for range 20 {
		w.mustDump(t)
	}
}

// TestBounds checks the limits of number and bytes. Other files are kept.
func TestBounds(t *testing.T) {
	t.Parallel()
	o := options(t)
	w := start(t, o)
	foreign := filepath.Join(o.Dir, "20200101T000000.000Z-mutex-1x")
	for i := range maxDumps {
		name := fmt.Sprintf("20200101T000000.%03dZ-probe-1", i)
		if err := os.MkdirAll(filepath.Join(o.Dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{foreign, filepath.Join(o.Dir, "20200101T000000.000Z-probe-2.part")} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	last := w.mustDump(t)
	names := whole(o.Dir)
	entries, err := os.ReadDir(o.Dir)
	if err != nil || len(names) != maxDumps || len(entries) != maxDumps+1 ||
		names[maxDumps-1] != filepath.Base(last.Dir) {
		t.Errorf("%q %v, want %d and the other directory, the last one %s", entries, err, maxDumps, last.Dir)
	}

	small := options(t)
	small.maxDump = 8 << 10
	d := start(t, small).mustDump(t)
	if notes := read(t, d, "notes.txt"); !strings.Contains(notes, errFull.Error()) {
		t.Errorf("notes = %v, want one for each missing part", notes)
	}
	var sum int64
	files, _ := os.ReadDir(d.Dir)
	for _, f := range files {
		info, _ := f.Info()
		sum += info.Size()
	}
	if sum > small.maxDump || len(files) != len(d.Files) {
		t.Errorf("%d bytes in %d files, of %q", sum, len(files), d.Files)
	}
}

// TestLastWords checks that stacks go to standard error if the directory does not take a dump.
func TestLastWords(t *testing.T) {
	t.Parallel()
	o := options(t)
	o.Dir = "/dev/null/dumps"
	var said bytes.Buffer
	var mu sync.Mutex
	o.Stderr = writer(func(b []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return said.Write(b)
	})
	if d, err := start(t, o).Dump(t.Context(), CauseAsked, ""); err == nil || !strings.Contains(err.Error(), "/dev/null") {
		t.Errorf("%v %v", d, err)
	}
	eventually(t, "last words", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return strings.Contains(said.String(), "TestLastWords") && strings.Contains(said.String(), "/dev/null")
	})
}

type writer func([]byte) (int, error)

func (w writer) Write(b []byte) (int, error) { return w(b) }

// TestStrangersDirectory checks that a link and a directory of another user get no dump.
func TestStrangersDirectory(t *testing.T) {
	t.Parallel()
	o := options(t)
	if err := os.Symlink(t.TempDir(), o.Dir); err != nil {
		t.Fatal(err)
	}
	if d, err := start(t, o).Dump(t.Context(), CauseAsked, ""); err == nil {
		t.Errorf("a link was followed: %v", d)
	}
	if os.Geteuid() == 0 {
		o = options(t)
		if err := os.Mkdir(o.Dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(o.Dir, 12345, 12345); err != nil {
			t.Fatal(err)
		}
		if d, err := start(t, o).Dump(t.Context(), CauseAsked, ""); err == nil ||
			!strings.Contains(err.Error(), "another user") {
			t.Errorf("%v %v", d, err)
		}
	}
	o = options(t)
	if err := os.Mkdir(o.Dir, 0o777); err != nil {
		t.Fatal(err)
	}
	d := start(t, o).mustDump(t)
	if info, err := os.Stat(filepath.Dir(d.Dir)); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v %v", info.Mode(), err)
	}
}

// TestSSHProbe checks that a greeting and a refusal count as answers, unlike silence and a lack of descriptors.
func TestSSHProbe(t *testing.T) {
	t.Parallel()
	for says, want := range map[string]bool{"SSH-2.0-packhorse\r\n": true, "too many connections; try again\r\n": true,
		"": false} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		served := make(chan struct{})
		go func() {
			defer close(served)
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			io.WriteString(c, says)
			if n, _ := io.Copy(io.Discard, c); n != 0 {
				t.Errorf("the probe says %d bytes", n)
			}
		}()
		ctx, cancel := context.WithCancel(t.Context())
		if !want {
			ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
		}
		if err := SSH("ssh", l.Addr(), nil).Do(ctx); (err == nil) != want {
			t.Errorf("%q: %v", says, err)
		}
		cancel()
		l.Close() // it may not have come this far
		<-served
	}
	for err, want := range map[error]bool{
		&net.OpError{Op: "dial", Err: os.NewSyscallError("socket", syscall.EMFILE)}: false,
		os.NewSyscallError("open", syscall.ENFILE):                                  false, os.ErrDeadlineExceeded: false,
		os.NewSyscallError("connect", syscall.ECONNREFUSED): true, io.EOF: true,
	} {
		if isAnswer(err) != want {
			t.Errorf("%v: %v", err, !want)
		}
	}
}

// TestDraftsAreClosed: what does not take a dump is not left open.
func TestDraftsAreClosed(t *testing.T) {
	if _, err := os.Stat("/proc/self/fd"); err != nil {
		t.Skip("what is open is not told here")
	}
	o := options(t)
	p := &place{dir: o.Dir, maxDump: maxDump, patience: time.Minute}
	const name = "20200101T000000.000Z-probe-1"
	if err := os.MkdirAll(filepath.Join(o.Dir, name+partSuffix), 0o700); err != nil {
		t.Fatal(err)
	}
	open := func() (n int) {
		fds, _ := os.ReadDir("/proc/self/fd")
		for _, fd := range fds {
			if to, _ := os.Readlink("/proc/self/fd/" + fd.Name()); to == o.Dir {
				n++
			}
		}
		return n
	}
	for range 3 {
		if _, err := p.draft(name); err == nil {
			t.Fatal("draft succeeded beside another of its name, want an error")
		}
	}
	if n := open(); n != 0 {
		t.Errorf("the directory is open %d times", n)
	}
}

func TestReachable(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{"0.0.0.0:80": "127.0.0.1:80", "[::]:80": "[::1]:80",
		"10.1.2.3:80": "10.1.2.3:80"} {
		a, err := net.ResolveTCPAddr("tcp", in)
		if err != nil {
			t.Fatal(err)
		}
		if got := Reachable(a); got != want {
			t.Errorf("%s: %s", in, got)
		}
	}
	if got := Reachable(&net.UnixAddr{Name: "/a", Net: "unix"}); got != "/a" {
		t.Error(got)
	}
}

// TestStartHangs: what would wait for a process that does not start is left out.
func TestStartHangs(t *testing.T) {
	t.Parallel()
	o := options(t)
	o.Starting = func() time.Duration { return time.Minute }
	d := start(t, o).mustDump(t)
	if text := read(t, d, "notes.txt"); strings.Count(text, "left out, since it stops the world") != 2 {
		t.Error(text)
	}
	if _, err := os.Stat(filepath.Join(d.Dir, "stacks.txt")); err == nil {
		t.Error("a part that stops the world was written during the start of a process")
	}
	read(t, d, "processes.txt")
}
