package config

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestMemoryShares: all that may run at the same time fits into the limit, or the configuration is refused.
func TestMemoryShares(t *testing.T) {
	t.Parallel()
	if s := new(Config).MemoryShares(); s != (MemoryShares{}) || AtMost(7, s.Server) != 7 {
		t.Errorf("without a limit: %+v", s)
	}
	rapid.Check(t, func(t *rapid.T) {
		cfg := DefaultConfig()
		cfg.Root = "/"
		cfg.Limits.Memory = Size(rapid.Int64Range(1, 1<<40).Draw(t, "memory"))
		cfg.Git.Slots = rapid.IntRange(1, 64).Draw(t, "git slots")
		cfg.Push.Slots, cfg.Push.Enabled = rapid.IntRange(1, 64).Draw(t, "push slots"), rapid.Bool().Draw(t, "push")
		s := cfg.MemoryShares()
		all := s.Server + int64(cfg.Git.Slots+cfg.Maintenance.Slots)*s.Git +
			int64(cfg.Maintenance.Slots+RefsLimits().Slots+ManageLimits().Slots+GrepLimits().Slots+
				MergeLimits().Slots+InspectLimits().Slots)*s.small
		if cfg.Push.Enabled {
			all += int64(cfg.Push.Slots) * (s.Git + s.small)
		}
		if all > int64(cfg.Limits.Memory) {
			t.Fatalf("%d of %d", all, cfg.Limits.Memory)
		}
		if got, want := cfg.Collected(), s.Server+int64(cfg.Git.Slots)*s.Git; got != want {
			t.Fatalf("Collected() = %d, want %d: the server and its packs", got, want)
		}
		if cfg.Packs.Source = PacksByGit; cfg.Collected() != s.Server {
			t.Fatalf("Collected() = %d if git makes the packs, want %d", cfg.Collected(), s.Server)
		}
		err := cfg.Check()
		if refused := err != nil && strings.Contains(err.Error(), "limits.memory"); refused != (s.Git < leastGit) {
			t.Fatalf("%+v: %v", s, err)
		}
	})
}
