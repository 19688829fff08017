package command

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/server/config"
	"github.com/packhorse-git/packhorse/internal/server/statedir"
)

// TestDebugDumpWithoutServer checks the errors of debug dump if no server runs, or does not answer.
func TestDebugDumpWithoutServer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	state, err := statedir.Open(filepath.Join(dir, "silent"))
	if err != nil {
		t.Fatal(err)
	}
	defer state.Close()
	if err := state.Write(statedir.Server{PID: 1 << 30, Role: config.RoleServe}); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		args []string
		code int
		want string
	}{
		{nil, exitUsage, "which server?"},
		{[]string{"--ops", "127.0.0.1:1"}, exitUsage, "--ops was removed: name the server with"},
		{[]string{"--state", dir}, exitFailed, "no server runs with the state directory " + dir},
		{[]string{"--root", dir}, exitFailed, "no server runs with the state directory " + filepath.Join(dir, ".packhorse")},
		{[]string{"--state", filepath.Join(dir, "silent")}, exitFailed, `"kill -QUIT 1073741824" makes the server write`},
	} {
		code, _, errs := runMain(append([]string{"debug", "dump"}, test.args...)...)
		if code != test.code || !strings.Contains(errs, test.want) {
			t.Errorf("%q: %d %s, want %d %s", test.args, code, errs, test.code, test.want)
		}
	}
}
