package roles

import (
	"log/slog"
	"slices"
	"testing"

	"github.com/packhorse-git/packhorse/internal/server/config"
)

func TestReaperProgram(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		mode, program, format string
		want                  []string
	}{
		{config.ReaperOff, "/bin/packhorse", "json", nil},
		{"on", "", "json", nil},
		{"on", "/bin/packhorse", "json", []string{"/bin/packhorse", "reaper", "json"}},
		{"on", "/bin/packhorse", "terminal", []string{"/bin/packhorse", "reaper", "text"}},
	} {
		var c config.Config
		c.Git.Reaper, c.Log.Format = test.mode, test.format
		if got := reaperProgram(&c, test.program, slog.New(slog.DiscardHandler)); !slices.Equal(got, test.want) {
			t.Errorf("%+v: got %q, want %q", test, got, test.want)
		}
	}
}
