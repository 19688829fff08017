package roles

import (
	"bytes"
	"context"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/config"
)

// TestReaperCommand has a reaper turned off, and one that nobody's server started.
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
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for _, env := range []Env{{Args: []string{"reaper", "auto"}, Stdin: strings.NewReader("")}, {Args: []string{"reaper", "auto"}, Stdin: null}, {Args: []string{"reaper"}}} {
		var errs bytes.Buffer
		env.Stdout, env.Stderr = &errs, &errs
		if code := Main(context.Background(), env); code != exitUsage {
			t.Errorf("exit %d: %s", code, &errs)
		}
	}
}
