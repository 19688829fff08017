package roles

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/packhorse-git/packhorse/internal/transport/clients"
)

// failing is a listener that cannot accept for some attempts, and is closed then.
type failing struct{ left int }

func (f *failing) Accept() (net.Conn, error) {
	if f.left--; f.left < 0 {
		return nil, net.ErrClosed
	}
	return nil, &net.OpError{Op: "accept", Net: "tcp", Err: syscall.EMFILE}
}
func (f *failing) Close() error   { return nil }
func (f *failing) Addr() net.Addr { return &net.TCPAddr{} }

func TestAcceptErrorsAreSeen(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	h := newHTTPLog(slog.New(slog.NewTextHandler(&out, nil)), nil)
	h.warnings = clients.NewLogLimit(1, time.Hour)
	server := http.Server{ErrorLog: h.logger()}
	if err := server.Serve(&failing{left: 3}); !errors.Is(err, net.ErrClosed) {
		t.Fatal(err)
	}
	if n := strings.Count(out.String(), "level=WARN"); n != 1 || !strings.Contains(out.String(), "too many open files") {
		t.Errorf("%d warnings in a moment, want 1:\n%s", n, &out)
	}
	h.warnings = clients.NewLogLimit(1, time.Hour)
	_ = server.Serve(&failing{left: 1})
	h.logger().Print("http: TLS handshake error from a client")
	if n := strings.Count(out.String(), "\n"); n != 2 {
		t.Errorf("%d lines after another while, want 2:\n%s", n, &out)
	}
	if n := testutil.ToFloat64(h.failed); n != 4 {
		t.Errorf("%v counted, want 4", n)
	}
}

// A git process or a fill that cannot be ended holds the end up for a bounded time only.
func TestCloseSourceIsBounded(t *testing.T) {
	t.Parallel()
	const soon, never = time.Millisecond, 10 * time.Minute
	killed := make(chan struct{})
	kill := func(context.Context) error { close(killed); return nil }
	if err := closeBelow(func() error { <-killed; return nil }, kill, soon, never); err != nil {
		t.Errorf("fill that ends with its process: error = %v, want none", err)
	}
	stuck := make(chan struct{})
	defer close(stuck)
	unkillable := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	done := make(chan error, 1)
	go func() { done <- closeBelow(func() error { <-stuck; return nil }, unkillable, soon, soon) }()
	select {
	case err := <-done:
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want the limit", err)
		}
	case <-time.After(time.Minute):
		t.Error("a stuck fill blocks the shutdown, want an error at the limit")
	}
	order := ""
	err := closeBelow(func() error { order += "cache "; return nil },
		func(context.Context) error { order += "runner"; return nil }, never, never)
	if err != nil || order != "cache runner" {
		t.Errorf("order = %q, error = %v, want cache runner", order, err)
	}
}
