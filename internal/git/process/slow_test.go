package process

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
)

// lockedBuffer is a log.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// TestSlow checks that a slow command is logged while it runs and at its end, on one line each, for any names that
// clients choose.
func TestSlow(t *testing.T) {
	t.Parallel()
	const forged = "x\nlevel=ERROR msg=forged \x1b[2J\u2028\u202e"
	for name, handler := range map[string]func(io.Writer) slog.Handler{
		"text": func(w io.Writer) slog.Handler { return slog.NewTextHandler(w, nil) },
		"json": func(w io.Writer) slog.Handler { return slog.NewJSONHandler(w, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log lockedBuffer
			r, err := New(Options{Git: fakeGitPath, Classes: map[Class]Limits{"test": {Slots: 1, Slow: time.Millisecond}},
				Log: slog.New(handler(&log))})
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close(context.Background())
			ctx, request := inflight.NewBoard().Begin(t.Context(), "fetch", "")
			request.Describe("", forged, "")
			c := script("cat")
			c.Args = append(c.Args, forged, "https://ada:secret@example.org/")
			input, feed := io.Pipe()
			c.Stdin, c.Caller = input, forged
			p, err := r.Start(ctx, c)
			if err != nil {
				t.Fatal(err)
			}
			gittest.WaitFor(t, "the log has a line", func() bool { return strings.Contains(log.String(), "\n") })
			feed.Close()
			io.Copy(io.Discard, p.Stdout())
			if _, err := p.Wait(); err != nil {
				t.Error(err)
			}
			text := log.String()
			lines := strings.SplitAfter(strings.TrimSuffix(text, "\n"), "\n")
			if len(lines) != 2 || strings.ContainsAny(text, "\x1b\u2028\u202e") || strings.Contains(text, "secret") {
				t.Fatalf("%d lines\n%s", len(lines), text)
			}
			for i, want := range []string{"slow git still runs", "slow git"} {
				if !strings.Contains(lines[i], want) || !strings.Contains(lines[i], request.ID()) ||
					!strings.Contains(lines[i], "script") {
					t.Errorf("line %d: %s", i, lines[i])
				}
			}
			if name == "json" {
				var end struct{ Level, Exit, Class, Stage string }
				if err := json.Unmarshal([]byte(lines[1]), &end); err != nil || end.Level != "WARN" || end.Exit != "ok" ||
					end.Class != "test" || end.Stage == "" {
					t.Errorf("%+v, %v", end, err)
				}
			}
			if n := gather(t, r.metrics)["packhorse_git_slow_total test script"]; n != "1" {
				t.Errorf("%s were counted, want %s", n, "1")
			}
		})
	}
}

// TestNotSlow checks that fast commands, and slow ones without a callback, are not reported.
func TestNotSlow(t *testing.T) {
	t.Parallel()
	for _, slow := range []time.Duration{0, time.Hour} {
		var log lockedBuffer
		r, err := New(Options{Git: fakeGitPath, Classes: map[Class]Limits{"test": {Slots: 1, Slow: slow}},
			Log: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		output(t, r, script("echo"))
		if err := r.Close(t.Context()); err != nil || log.String() != "" {
			t.Errorf("%v, %s, want %q", err, log.String(), "")
		}
	}
}
