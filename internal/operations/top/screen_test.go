package top

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"
	"github.com/creack/pty"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/mirror/origin"
)

var update = flag.Bool("update", false, "write the frames in testdata")

// busy is a State with something of everything, hostile names included.
func busy() *State {
	return &State{
		Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Role: "serve", Version: "v1.2", UptimeMS: 100 * 3600 * 1000,
		Requests: Requests{Running: 5, Stages: map[string]int{"sending": 1, "packing": 1, "queued": 1},
			List: []Request{
				{ID: "1y2p0ij32e8e7", Operation: "fetch", Stage: "sending", AgeMS: 754_000, StageMS: 700_000,
					Repository: "team/monorepo", Caller: "ci-runner-17", Bytes: 5 << 30, GitCPUMS: 61_000, Commands: 1},
				{ID: "b", Operation: "push", Stage: "packing", AgeMS: 3200, StageMS: 90, Repository: "x\x1b[2J\u202e/evil",
					Caller: "mallory\n", Bytes: 0, GitCPUMS: 12, GitRSS: 9 << 20},
				{ID: "c", Operation: "info_refs", Stage: "queued", AgeMS: 40, StageMS: 40, Repository: "日本語/" +
					strings.Repeat("long", 60), Caller: "2001:db8::/64", Bytes: 999},
			}},
		Git: Git{Running: 1, List: []Command{
			{PID: 4711, Class: "receive", Subcommand: "receive-pack", Repository: "x/evil", Caller: "mallory", Request: "b",
				AgeMS: 80, CPUMS: 12, RSS: 9 << 20, Out: 100},
		}, Slots: []Slots{{Class: "pack", Used: 2, Queued: 40, Size: 2}, {Class: "receive", Used: 1, Size: 4}}},
		Lanes: []Lane{{Name: "cold", Running: 2, Queued: 40, Limit: 2, AdmittedTotal: 100, RefusedTotal: 7},
			{Name: "hit", Running: 1, Limit: 4096},
			{Name: "maintenance", Limit: 1}, {Name: "pages", Limit: 256}, {Name: "push", Running: 1, Limit: 4},
			{Name: "small", Running: 1, Limit: 1024}},
		Cache: &Cache{Bytes: 3 << 30, MaxBytes: 10 << 30, Entries: 42, Fills: 1, HitsTotal: 990, MissesTotal: 10},
		Origins: []origin.Status{{Host: "github.com", Running: 3}, {Host: "gitlab.example.com", Pause: 61_000},
			{Host: "gone.example.com", Error: "circuit breaker open, last failure: connection\x1b[2J refused"}},
		Heavy: Heavy{Minutes: 5,
			Repositories: []Hitter{{Name: "team/monorepo", Requests: 1234, Bytes: 1 << 40, GitCPUMS: 3600_000},
				{Name: "x/\x07evil", Requests: 3}},
			Callers: []Hitter{{Name: "ci-runner-17", Requests: 1234, Bytes: 1 << 40}}},
	}
}

func earlier() *State {
	s := busy()
	s.Lanes[0].RefusedTotal, s.Cache.HitsTotal, s.Cache.MissesTotal = 4, 989, 9
	return s
}

func TestFrames(t *testing.T) {
	t.Parallel()
	idle := &State{Role: "gateway", Time: busy().Time}
	for name, c := range map[string]struct {
		now, before *State
		view        View
	}{
		"once":         {busy(), nil, View{Width: 120, Sort: ByAge, From: "127.0.0.1:9090"}},
		"narrow":       {busy(), earlier(), View{Width: 80, Height: 24, Sort: ByBytes, From: "127.0.0.1:9090"}},
		"wide":         {busy(), nil, View{Width: 160, Height: 30, Sort: ByCaller, Reversed: true}},
		"git":          {busy(), nil, View{Width: 120, Height: 20, Page: CommandsPage}},
		"repositories": {busy(), nil, View{Width: 80, Height: 20, Page: RepositoriesPage}},
		"scrolled":     {busy(), nil, View{Width: 80, Height: 16, Offset: 1, Sort: ByAge}},
		"small":        {busy(), nil, View{Width: 80, Height: 15, Sort: ByAge}},
		"bold":         {busy(), nil, View{Width: 80, Height: 16, Sort: ByAge, Bold: true, Paused: true}},
		"no answer": {idle, nil, View{Width: 80, Height: 16, Sort: ByAge,
			Error: "connect: connection refused\x1b[31m"}},
		"help": {idle, nil, View{Width: 80, Height: 24, Help: true}},
	} {
		got := Frame(c.now, c.before, c.view)
		for i, line := range strings.Split(got, "\n") {
			if w := ansi.StringWidth(line); w > c.view.Width {
				t.Errorf("%s: line %d is %d wide", name, i, w)
			}
		}
		if n := strings.Count(got, "\n") + 1; c.view.Height > 0 && n != c.view.Height {
			t.Errorf("%s: %d lines, want %d", name, n, c.view.Height)
		}
		if !c.view.Bold && strings.ContainsAny(got, "\x1b\x07\r\u202e") {
			t.Errorf("%s: a name moves the cursor", name)
		}
		file := filepath.Join("testdata", strings.ReplaceAll(name, " ", "-")+".txt")
		if *update {
			if err := os.WriteFile(file, []byte(got+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil || got+"\n" != string(want) {
			t.Errorf("%s (%v; -update writes what is drawn now):\n%s\nwant\n%s", name, err, got, want)
		}
	}
}

// TestFramesOfAllSizes checks that a frame fits into terminals of all sizes.
func TestFramesOfAllSizes(t *testing.T) {
	t.Parallel()
	for width := 1; width < 320; width += 7 {
		for height := 1; height < 40; height += 3 {
			for page := range pages {
				got := Frame(busy(), nil, View{Width: width, Height: height, Page: page, Sort: ByAge, Offset: height,
					Bold: width%2 == 0})
				lines := strings.Split(got, "\n")
				if len(lines) != height {
					t.Fatalf("page %d at %dx%d: got %d lines, want %d", page, width, height, len(lines), height)
				}
				most := min(max(width, leastWidth), mostWidth)
				for i, l := range lines {
					if n := ansi.StringWidth(l); n > most {
						t.Fatalf("page %d at %dx%d: line %d has %d columns, want at most %d: %q", page, width, height, i+1, n, most, l)
					}
				}
			}
		}
	}
}

func TestLongNamesKeepTheirEnds(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"team/app": "team/app    ", "team/services/payment": "tea…/payment", "チーム/支払い/サービス": "チ…サービス ",
	} {
		if got := row([]column{{width: 12, left: true}}, []string{name}); got != want {
			t.Errorf("row of %q = %q, want %q", name, got, want)
		}
	}
}

func TestSizes(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64]string{0: "", 1: "1", 999: "999", 1000: "1.0K", 1 << 20: "1.0M", 150 << 20: "150M",
		5 << 30: "5.0G", 1 << 60: "1024P"} {
		if got := size(n); got != want {
			t.Errorf("%d bytes: %s, want %s", n, got, want)
		}
	}
	for ms, want := range map[int64]string{0: "0ms", 999: "999ms", 1000: "1.0s", 59_999: "59s", 61_000: "1m01",
		3_600_000: "1h00", 400 * 3_600_000: "16d"} {
		if got := age(ms); got != want {
			t.Errorf("%d ms: %s, want %s", ms, got, want)
		}
	}
}

func TestKeys(t *testing.T) {
	t.Parallel()
	s := &screen{now: busy(), view: View{Height: 24, Sort: ByAge}}
	for _, step := range []struct {
		key  string
		want func(View) bool
	}{
		{"s", func(v View) bool { return v.Sort == ByBytes }}, {"S", func(v View) bool { return v.Sort == ByAge }},
		{"S", func(v View) bool { return v.Sort == ByStage }}, {"s", func(v View) bool { return v.Sort == ByAge }},
		{"r", func(v View) bool { return v.Reversed }}, {" ", func(v View) bool { return v.Paused }},
		{"p", func(v View) bool { return !v.Paused }},
		{"\x1b[B", func(v View) bool { return v.Offset == 1 }}, {"\x1b[6~", func(v View) bool { return v.Offset == 2 }},
		{"\x1b[A", func(v View) bool { return v.Offset == 1 }},
		{"\x1b[5~", func(v View) bool { return v.Offset == 0 }}, {"\x1bOA", func(v View) bool { return v.Offset == 0 }},
		{"\t", func(v View) bool { return v.Page == CommandsPage }}, {"\x1bOB", func(v View) bool { return v.Offset == 0 }},
		{"\x1b[Z", func(v View) bool { return v.Page == RequestsPage }},
		{"\x1b[Z", func(v View) bool { return v.Page == CallersPage }},
		{"3", func(v View) bool { return v.Page == RepositoriesPage }}, {"?", func(v View) bool { return v.Help }},
		{"x", func(v View) bool { return v.Help }},
	} {
		if s.key(split(step.key)[0]) || !step.want(s.view) {
			t.Fatalf("after %q: %+v", step.key, s.view)
		}
	}
	for _, key := range []string{"q", "\x1b", "\x03"} {
		if !s.key(key) {
			t.Errorf("%q does not quit", key)
		}
	}
	want := []string{"j", "\xc3", "\xa4", "\x1b[A", "\x1b[15~", "\x1b", "\x1b[1"}
	if got := split("jä\x1b[A\x1b[15~\x1b\x1b[1"); !slices.Equal(got, want) {
		t.Errorf("keys are %q, want %q", got, want)
	}
}

// A state that does not come, or comes while it is paused, leaves what is shown.
func TestAnswers(t *testing.T) {
	t.Parallel()
	s := &screen{now: busy(), view: View{Sort: ByAge}}
	one, two := busy(), busy()
	s.received(answer{state: one})
	if s.now != one || s.before == nil {
		t.Error("a new state is not shown")
	}
	s.received(answer{err: errors.New("gone")})
	if s.now != one || s.view.Error != "gone" {
		t.Errorf("after an error: %+v", s.view)
	}
	s.received(answer{state: two})
	if s.now != two || s.view.Error != "" {
		t.Errorf("after the error: %+v", s.view)
	}
	s.view.Paused = true
	s.received(answer{state: one})
	if s.now != two {
		t.Error("it is paused")
	}
}

// written is what a terminal has been sent.
type written struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (w *written) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.Write(p)
}

func (w *written) has(text string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Contains(ansi.Strip(w.buf.String()), text)
}

// interruptible is f so that Close ends a Read.
func interruptible(t *testing.T, f *os.File) *os.File {
	t.Helper()
	defer f.Close()
	fd, err := syscall.Dup(int(f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.SetNonblock(fd, true); err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(fd), f.Name())
}

// Show draws on a real pseudo-terminal, asks again and again, obeys the keys, and leaves the terminal as it was.
func TestRun(t *testing.T) {
	t.Parallel()
	master, tty, err := pty.Open()
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skipf("no pseudo-terminal: %v", err)
	}
	defer tty.Close()
	if err := pty.Setsize(tty, &pty.Winsize{Rows: 30, Cols: 100}); err != nil {
		t.Fatal(err)
	}
	master = interruptible(t, master)
	var out written
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		buf := make([]byte, 4096)
		for {
			n, err := master.Read(buf)
			_, _ = out.Write(buf[:n])
			if err != nil {
				return
			}
		}
	}()
	defer func() { master.Close(); <-copied }()
	await := func(text string) {
		t.Helper()
		if !gittest.Eventually(func() bool { return out.has(text) }) {
			t.Fatalf("the terminal shows %q, want text with %q", ansi.Strip(out.buf.String()), text)
		}
	}
	var asked atomic.Int64
	ended := make(chan error, 1)
	go func() {
		ended <- Show(context.Background(), busy(), ScreenOptions{In: tty, Out: tty, From: "here",
			Sort: ByAge, Interval: 10 * time.Millisecond,
			Source: func(context.Context) (*State, error) {
				s := busy()
				if asked.Add(1) > 2 {
					s.Requests.List[0].Repository = "ZZZZZZZZZZZZZ"
				}
				return s, nil
			}})
	}()
	type_ := func(text string) {
		if _, err := master.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	await("team/monorepo")
	await("[Requests]")
	await("ZZZZZZZZZZZZZ")
	type_("?")
	await("the JSON output states by how much.")
	type_(" ")
	await("PAUSED")
	type_("q")
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("it does not quit")
	}
	// With the end of its context it ends too.
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		ended <- Show(ctx, busy(), ScreenOptions{In: tty, Out: tty, Interval: time.Hour,
			Sort: ByAge})
	}()
	cancel()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("it does not end with its context")
	}
}
