package command

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/operations/accesslog"
)

func TestEstimate(t *testing.T) {
	t.Parallel()
	const line = `h - - [26/Nov/2026:01:00:00 +0100] "POST /app.git/git-upload-pack HTTP/1.1" 200 1000 "-" "git"` + "\n"
	log := filepath.Join(t.TempDir(), "access.log")
	if err := os.WriteFile(log, []byte(strings.Repeat(line, 3)), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, errs := runMain("estimate", log, "--json", "--cpu-per-gb", "9e5")
	var got accesslog.Report
	if err := json.Unmarshal([]byte(out), &got); code != exitOK || err != nil || got.Total.Fetches != 3 ||
		got.Total.SavedBytes() != 2000 || len(got.Repositories) != 1 {
		t.Errorf("estimate --json = %d, %s, %s, %v, want 3 fetches and 2000 saved bytes", code, out, errs, err)
	}
	code, out, errs = runMain("estimate", log)
	if code != exitOK || !strings.Contains(out, "66.7 %") || errs != "" {
		t.Errorf("estimate = %d, %s, %s, want a share of 66.7 %%", code, out, errs)
	}
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{nil, exitUsage, "which log?"},
		{[]string{log, "--window", "1ms"}, exitUsage, "window 1ms: want at least 1s"},
		{[]string{log, "--cpu-per-gb", "NaN"}, exitUsage, "CPU time NaN"},
		{[]string{log + ".1"}, exitFailed, "no such file"},
		{[]string{os.DevNull}, exitOK, "no fetches found"},
	} {
		code, out, errs := runMain(append([]string{"estimate"}, c.args...)...)
		if code != c.code || out != "" || !strings.Contains(errs, c.says) {
			t.Errorf("estimate %q = %d, %q, %q, want %d and %q", c.args, code, out, errs, c.code, c.says)
		}
	}
}
