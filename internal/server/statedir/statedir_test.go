package statedir

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/server/config"
)

// TestStateIsWaitedFor checks that Open waits for a process that is leaving its state directory, but not for others.
func TestStateIsWaitedFor(t *testing.T) {
	t.Parallel()
	cfg := config.DefaultConfig()
	cfg.State = t.TempDir()
	log := slog.New(slog.DiscardHandler)
	old, err := Open(cfg.State)
	if err != nil {
		t.Fatal(err)
	}
	if err := old.Write(Server{PID: 1, Role: config.RoleServe}); err != nil {
		t.Fatal(err)
	}
	if _, err := Take(t.Context(), cfg.State, time.Minute, log); err == nil {
		t.Fatal("two processes locked the directory, want an error")
	}
	if err := old.Write(Server{PID: 1, Role: config.RoleServe, Leaving: true}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Take(ctx, cfg.State, time.Minute, log); err == nil {
		t.Fatal("two processes locked the directory, want an error")
	}
	taken := make(chan error, 1)
	go func() {
		s, err := Take(t.Context(), cfg.State, time.Minute, log)
		if err == nil {
			err = s.Close()
		}
		taken <- err
	}()
	select {
	case err := <-taken:
		t.Errorf("the directory was taken while another process has it: %v", err)
	case <-time.After(2 * pollInterval):
	}
	if err := errors.Join(old.Close(), old.Close()); err != nil {
		t.Error(err)
	}
	if err := <-taken; err != nil {
		t.Error(err)
	}
}

// A backup has all of the state directory that cannot be lost, as the table in ARCHITECTURE.md lists it.
func TestDurable(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	lost := []string{"admin.sock", "cache", "dumps", "epoch", "hooks", "mirror", "pushes", "pushes.bad", "scratch",
		"search", "serve.json"}
	names := regexp.MustCompile("`STATE/([a-z.-]+)")
	for _, found := range names.FindAllStringSubmatch(string(text), -1) {
		if !slices.Contains(Durable, found[1]) && !slices.Contains(lost, found[1]) {
			t.Errorf("a backup does not have %s: add it to Durable, or to this list if it may be lost", found[1])
		}
	}
}
