package roles

import (
	"slices"
	"testing"

	"github.com/packhorse-git/packhorse/internal/config"
)

func TestReaperCommand(t *testing.T) {
	t.Parallel()
	cfg := config.DefaultConfig()
	if got := reaperProgram(&cfg, "/bin/packhorse"); !slices.Equal(got, []string{"/bin/packhorse", "reaper", "auto"}) {
		t.Errorf("the reaper is %q", got)
	}
	if reaperProgram(&cfg, "") != nil {
		t.Error("a reaper without a program")
	}
	cfg.Git.Reaper = false
	if reaperProgram(&cfg, "/bin/packhorse") != nil {
		t.Error("a reaper that was turned off")
	}
}
