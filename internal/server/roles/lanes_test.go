package roles

import (
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/gateway/router"
	"github.com/packhorse-git/packhorse/internal/schedule/admit"
	"github.com/packhorse-git/packhorse/internal/server/config"
)

// TestLanesFollowTheConfiguration: callers share lanes unless that is turned off, and anonymous ones leave room where
// callers can be known.
func TestLanesFollowTheConfiguration(t *testing.T) {
	t.Parallel()
	const stranger = "192.0.2.1:1"
	fill := func(change func(*config.Config)) (places int) {
		t.Helper()
		cfg := config.DefaultConfig()
		cfg.Lanes.Cold, cfg.Lanes.Anonymous = 100, 0.25
		change(&cfg)
		l := newServer(t, config.RoleServe, cfg, slog.New(slog.DiscardHandler), prometheus.NewRegistry()).lanes
		l.reserveForKnown(cfg.Lanes.Anonymous, cfg.Auth.KnowsCallers)
		for places < cfg.Lanes.Cold {
			if _, err := l.Cold.Enter(l.CallerOf("", stranger)); err != nil {
				break
			}
			places++
		}
		return places
	}
	for _, c := range []struct {
		name   string
		change func(*config.Config)
		want   int
	}{
		{"one caller leaves a half", func(*config.Config) {}, 50},
		{"where callers can be known, anonymous ones leave more",
			func(c *config.Config) { c.Auth.Hook.URL = "http://127.0.0.1/" }, 25},
		{"unless they need not", func(c *config.Config) { c.Auth.Hook.URL, c.Lanes.Anonymous = "http://127.0.0.1/", 1 }, 50},
		{"not fair", func(c *config.Config) { c.Auth.Hook.URL, c.Lanes.Fair = "http://127.0.0.1/", false }, 100},
	} {
		if got := fill(c.change); got != c.want {
			t.Errorf("%s: %d of 100 places, want %d", c.name, got, c.want)
		}
	}
}

// TestFirstTokenMakesRoom: anonymous callers leave room for those who are known from the first token on, which is made
// while the server runs.
func TestFirstTokenMakesRoom(t *testing.T) {
	t.Parallel()
	const stranger = "192.0.2.1:1"
	cfg := config.DefaultConfig()
	cfg.Root = t.TempDir()
	cfg.State = t.TempDir()
	cfg.Auth.Tokens = filepath.Join(cfg.Root, "tokens")
	cfg.Lanes.Cold, cfg.Lanes.Anonymous = 100, 0.25
	s := newServer(t, config.RoleServe, cfg, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err := s.addGateway(router.New(nil), nil, nil); err != nil {
		t.Fatal(err)
	}
	l := s.lanes
	fill := func() (places int) {
		var seats []*admit.Seat
		for {
			seat, err := l.Cold.Enter(l.CallerOf("", stranger))
			if err != nil {
				break
			}
			seats = append(seats, seat)
		}
		for _, seat := range seats {
			seat.Leave()
		}
		return len(seats)
	}
	if got := fill(); got != 50 {
		t.Errorf("places of anonymous callers before the first token = %d, want 50", got)
	}
	if _, _, err := auth.NewTokenFile(cfg.Auth.Tokens).Create(auth.TokenRequest{Name: "ci", Scope: auth.Read},
		time.Now()); err != nil {
		t.Fatal(err)
	}
	if got := fill(); got != 25 {
		t.Errorf("places of anonymous callers after the first token = %d, want 25", got)
	}
}
