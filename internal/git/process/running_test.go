package process

import (
	"context"
	"io"
	"runtime"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
)

// TestRunning checks that a running command is listed with the usage of itself and its children, and that the usage
// counts for its request.
func TestRunning(t *testing.T) {
	t.Parallel()
	r := newRunner(t, fakeGitPath, Limits{})
	ctx, request := inflight.NewBoard().Begin(t.Context(), "fetch", "")
	request.Describe("", "team/app", "")
	c := script("(x=0; while [ $x -lt 50000 ]; do x=$((x+1)); done; read line; exit 0) & wait; echo ready; cat")
	input, feed := io.Pipe()
	c.Stdin, c.Caller, c.Repository = input, "ada", "/srv/git/team/app.git"
	p, err := r.Start(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(p.Stdout(), make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(feed, "12345678\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(p.Stdout(), make([]byte, 9)); err != nil {
		t.Fatal(err)
	}
	all := r.Running()
	if len(all) != 1 {
		t.Fatalf("%d run, want 1", len(all))
	}
	one := all[0]
	if one.Pid != p.Pid() || one.Subcommand != "script" || one.Class != "test" || one.Caller != "ada" ||
		one.Repository != "team/app" ||
		one.Request != request.ID() || one.Stage != request.Stage().String() || one.Age <= 0 || one.In != 9 ||
		one.Out != 15 || !strings.Contains(one.Args, "wait; echo ready") {
		t.Errorf("%+v", one)
	}
	if runtime.GOOS == "linux" && (one.RSS <= 0 || one.Processes != 2 || one.User <= 0) {
		t.Errorf("live: %+v", one.Live)
	}
	feed.Close()
	io.Copy(io.Discard, p.Stdout())
	u, err := p.Wait()
	if err != nil || u.In != 9 || u.Out != 15 {
		t.Errorf("%+v, %v", u, err)
	}
	if len(r.Running()) != 0 {
		t.Error("Running lists the command after its end, want none")
	}
	if g := request.Usage(); g.Commands != 1 || g.In != 9 || g.Out != 15 || g.User != u.User || g.MaxRSS != u.MaxRSS {
		t.Errorf("the request: %+v, %+v", g, u)
	}
}

// TestLateOutput checks that bytes count even if they are read after the end of the command.
func TestLateOutput(t *testing.T) {
	t.Parallel()
	r := newRunner(t, fakeGitPath, Limits{})
	ctx, request := inflight.NewBoard().Begin(t.Context(), "fetch", "")
	p, err := r.Start(ctx, script("echo 12345"))
	if err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	io.Copy(io.Discard, p.Stdout())
	for range 2 {
		if u, err := p.Wait(); err != nil || u.Out != 6 {
			t.Errorf("%+v, %v", u, err)
		}
	}
	if g := request.Usage(); g.Out != 6 || g.Commands != 1 {
		t.Errorf("the request: %+v", g)
	}
}

func TestSanitised(t *testing.T) {
	t.Parallel()
	for _, test := range [][]string{
		{""},
		{"pack-objects --revs", "pack-objects", "--revs"},
		{"'a b' '' 'it'\\''s'", "a b", "", "it's"},
		{"a?level=ERROR?[31mred", "a\nlevel=ERROR\x1b[31mred"},
		{"'x?y z'", "x\u2028y z"},
		{"clone https://example.org/a@b", "clone", "https://ada:secret@example.org/a@b"},
		{"https://example.org", "https://token@x@example.org"},
		{"bad?", "bad\xff"},
	} {
		if got := sanitised(test[1:]); got != test[0] {
			t.Errorf("%q: %q, want %q", test[1:], got, test[0])
		}
	}
	long := make([]string, 10_000)
	for i := range long {
		long[i] = strings.Repeat("x", 10_000)
	}
	began := sanitised(long)
	if len(began) > longestArgs+longestArg || !strings.HasSuffix(began, " ...") {
		t.Errorf("%d bytes: %q", len(began), began)
	}
	if text := sanitised([]string{"https://" + strings.Repeat("@x/", 1<<20)}); len(text) > longestArg+10 {
		t.Errorf("one long argument: %d bytes", len(text))
	}
}

// TestRunningIsBounded checks that a caller that starts very many processes does not make the report longer than its
// limit.
func TestRunningIsBounded(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("what processes have started is known on Linux")
	}
	r := newRunner(t, fakeGitPath, Limits{})
	p, err := r.Start(t.Context(), script("i=0; while [ $i -lt 100 ]; do sleep 1000 & i=$((i+1)); done; echo ready; wait"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(p.Stdout(), make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	if all := r.Running(); len(all) != 1 || all[0].Processes != maxProcesses {
		t.Errorf("%+v", all)
	}
	p.Kill()
	_, _ = p.Wait()
}

// BenchmarkRunning lists commands that run.
func BenchmarkRunning(b *testing.B) {
	r, err := New(Options{Classes: map[Class]Limits{"test": {Slots: 20}}})
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close(context.Background())
	for range 20 {
		if _, err := r.Start(b.Context(), Command{Class: "test", Subcommand: "sleep", Program: "/bin/sleep",
			Args: []string{"1000"}}); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		if len(r.Running()) != 20 {
			b.Fatal("they do not run")
		}
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/20, "µs/command")
}
