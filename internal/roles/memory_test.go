package roles

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestMemoryShares: all that may run at the same time fits into the limit, or the configuration is refused.
func TestMemoryShares(t *testing.T) {
	t.Parallel()
	if s := new(Config).memoryShares(); s != (memoryShares{}) || atMost(7, s.server) != 7 {
		t.Errorf("without a limit: %+v", s)
	}
	rapid.Check(t, func(t *rapid.T) {
		cfg := DefaultConfig()
		cfg.Root = "/"
		cfg.Limits.Memory = Size(rapid.Int64Range(1, 1<<40).Draw(t, "memory"))
		cfg.Git.Slots = rapid.IntRange(1, 64).Draw(t, "git slots")
		cfg.Push.Slots, cfg.Push.Enabled = rapid.IntRange(1, 64).Draw(t, "push slots"), rapid.Bool().Draw(t, "push")
		s := cfg.memoryShares()
		all := s.server + int64(cfg.Git.Slots+cfg.Lanes.Maintenance)*s.git + int64(cfg.Lanes.Maintenance+refsLimits().Slots+manageLimits().Slots+grepLimits(0).Slots)*s.small
		if cfg.Push.Enabled {
			all += int64(cfg.Push.Slots) * (s.git + s.small)
		}
		if all > int64(cfg.Limits.Memory) {
			t.Fatalf("%d of %d", all, cfg.Limits.Memory)
		}
		err := cfg.check()
		if refused := err != nil && strings.Contains(err.Error(), "limits.memory"); refused != (s.git < leastGit) {
			t.Fatalf("%+v: %v", s, err)
		}
	})
}
