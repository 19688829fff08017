package roles

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// TestLanesFollowTheConfiguration: callers share lanes unless that is turned off, and anonymous ones leave room where callers can be known.
func TestLanesFollowTheConfiguration(t *testing.T) {
	t.Parallel()
	const stranger = "192.0.2.1:1"
	fill := func(change func(*Config)) (places int) {
		t.Helper()
		cfg := DefaultConfig()
		cfg.Lanes.Cold, cfg.Lanes.Anonymous = 100, 0.25
		change(&cfg)
		l := newLanes(cfg, prometheus.NewRegistry())
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
		change func(*Config)
		want   int
	}{
		{"one caller leaves a half", func(*Config) {}, 50},
		{"where callers can be known, anonymous ones leave more", func(c *Config) { c.Auth.Hook.URL = "http://127.0.0.1/" }, 25},
		{"unless they need not", func(c *Config) { c.Auth.Hook.URL, c.Lanes.Anonymous = "http://127.0.0.1/", 1 }, 50},
		{"not fair", func(c *Config) { c.Auth.Hook.URL, c.Lanes.Fair = "http://127.0.0.1/", false }, 100},
	} {
		if got := fill(c.change); got != c.want {
			t.Errorf("%s: %d of 100 places, want %d", c.name, got, c.want)
		}
	}
}
