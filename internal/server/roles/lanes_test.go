package roles

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/gateway/router"
	"github.com/packhorse-git/packhorse/internal/schedule/admit"
	"github.com/packhorse-git/packhorse/internal/schedule/balance"
	"github.com/packhorse-git/packhorse/internal/server/config"
)

// TestLanesFollowTheConfiguration: callers share lanes, and anonymous ones leave room where callers can be known.
func TestLanesFollowTheConfiguration(t *testing.T) {
	t.Parallel()
	fill := func(change func(*config.Config)) (places int) {
		t.Helper()
		cfg := config.DefaultConfig()
		cfg.Lanes.Cold = 100
		change(&cfg)
		l := testDeps(t, config.RoleServe, cfg, slog.New(slog.DiscardHandler), prometheus.NewRegistry()).lanes
		l.reserveForKnown(cfg.Auth.KnowsCallers)
		for places < cfg.Lanes.Cold {
			if _, err := l.Cold.Enter(stranger(&l, places)); err != nil {
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
		{"anonymous callers may use all", func(*config.Config) {}, 100},
		{"where callers can be known, anonymous ones leave a half",
			func(c *config.Config) { c.Auth.Hook.URL = "http://127.0.0.1/" }, 50},
	} {
		if got := fill(c.change); got > c.want || got < c.want-chance {
			t.Errorf("%s: %d of 100 places, want %d", c.name, got, c.want)
		}
	}
}

// chance is how many places callers may miss because their counters are the same by chance.
const chance = 5

// stranger returns the i-th anonymous caller, each in another network.
func stranger(l *lanes, i int) balance.Caller { return l.CallerOf("", fmt.Sprintf("192.0.%d.1:1", i)) }

// TestFirstTokenMakesRoom: anonymous callers leave room for those who are known from the first token on, which is made
// while the server runs.
func TestFirstTokenMakesRoom(t *testing.T) {
	t.Parallel()
	cfg := config.DefaultConfig()
	cfg.Root = t.TempDir()
	cfg.State = t.TempDir()
	cfg.Auth.Tokens = filepath.Join(cfg.Root, "tokens")
	cfg.Lanes.Cold = 100
	d := testDeps(t, config.RoleServe, cfg, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if _, err := newGatewayParts(d, gatewayOptions{routes: router.New(nil), access: newAccess(&d.cfg, nil)}); err != nil {
		t.Fatal(err)
	}
	l := d.lanes
	fill := func() (places int) {
		var seats []*admit.Seat
		for {
			seat, err := l.Cold.Enter(stranger(&l, len(seats)))
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
	if got := fill(); got < 100-chance {
		t.Errorf("places of anonymous callers before the first token = %d, want 100", got)
	}
	if _, _, err := auth.AccessInFile(auth.NewTokenFile(cfg.Auth.Tokens)).Mint(t.Context(),
		auth.TokenRequest{Name: "ci", Scope: auth.Read}); err != nil {
		t.Fatal(err)
	}
	if got := fill(); got > 50 || got < 50-chance {
		t.Errorf("places of anonymous callers after the first token = %d, want 50", got)
	}
}
