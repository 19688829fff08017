package config_test

import (
	"strings"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/server/config"
)

func TestLFSURL(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                "",
		"https://git.example.com":         "https://git.example.com",
		"https://git.example.com:8443/":   "https://git.example.com:8443",
		"http://git.example.com/packs/":   "http://git.example.com/packs",
		"git.example.com":                 "refused",
		"ssh://git.example.com":           "refused",
		"https://":                        "refused",
		"https://:8443":                   "refused",
		"https://git.example.com?":        "refused",
		"https://user@git.example.com":    "refused",
		"https://git.example.com/?a=b":    "refused",
		"https://git.example.com/#a":      "refused",
		"https://git.example.com/%zz":     "refused",
		"https://git.example.com:port/":   "refused",
		"https://git.example.com/ x\r\ny": "refused",
	} {
		c := config.DefaultConfig()
		c.LFS.URL = text
		got := ""
		if err := c.Check(); err != nil && strings.Contains(err.Error(), "lfs.url") {
			got = "refused"
		} else if u := c.LFS.PublicURL(); u != nil {
			got = u.String()
		}
		if got != want {
			t.Errorf("lfs.url = %q is %q, want %q", text, got, want)
		}
	}
}

// TestLFSSchedule: a server does the upkeep of LFS objects on its own only if it maintains repositories and takes
// pushes or has mirrors.
func TestLFSSchedule(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change     func(c *config.Config)
		background bool
		grace      time.Duration
	}{
		"defaults":    {func(*config.Config) {}, true, 336 * time.Hour},
		"maintenance": {func(c *config.Config) { c.Maintenance.Enabled = false }, false, 336 * time.Hour},
		"pushes":      {func(c *config.Config) { c.Push.Enabled = false }, false, 336 * time.Hour},
		"mirrors": {func(c *config.Config) {
			c.Push.Enabled, c.Mirror = false, []config.MirrorConfig{{}}
		}, true, 336 * time.Hour},
		"grace": {func(c *config.Config) { c.LFS.Grace.Duration = 0 }, true, -1},
	} {
		cfg := config.DefaultConfig()
		cfg.State = "/state"
		c.change(&cfg)
		schedule, want := cfg.LFSSchedule(), ""
		if c.background {
			want = "/state/lfs.json"
		}
		if schedule.File != want || schedule.Grace != c.grace {
			t.Errorf("%s: LFSSchedule = %+v, want File %q and Grace %v", name, schedule, want, c.grace)
		}
	}
	cfg := config.DefaultConfig()
	cfg.LFS.Grace.Duration = time.Minute
	if err := cfg.Check(); err == nil || !strings.Contains(err.Error(), "lfs.grace is 1m") {
		t.Errorf("Check with lfs.grace = 1m: %v, want an error about it", err)
	}
}
