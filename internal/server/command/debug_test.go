package command

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/packhorse-git/packhorse/internal/server/config"
	"github.com/packhorse-git/packhorse/internal/server/statedir"
)

// TestDebugDumpWithoutServer checks the errors of debug dump if no server runs, and that it sends no signal to another
// process.
func TestDebugDumpWithoutServer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	say := func(args ...string) (int, string) {
		var out bytes.Buffer
		code := Main(context.Background(), Env{Args: append([]string{"debug", "dump", "--patience", "10ms"}, args...),
			Stdout: &out, Stderr: &out})
		return code, out.String()
	}
	for _, test := range []struct {
		args []string
		code int
		says string
	}{
		{nil, exitUsage, "which server?"},
		{[]string{"--ops", "127.0.0.1:1", "--state", dir}, exitUsage, "cannot be combined"},
		{[]string{"--ops", "nowhere"}, exitUsage, "--ops"},
		{[]string{"--ops", "127.0.0.1:1"}, exitFailed, "127.0.0.1:1"},
		{[]string{"--state", dir}, exitFailed, "no server runs with the state directory " + dir},
		{[]string{"--root", dir}, exitFailed, "no server runs with the state directory " + filepath.Join(dir, ".packhorse")},
	} {
		if code, text := say(test.args...); code != test.code || !strings.Contains(text, test.says) {
			t.Errorf("%q: %d %s, want %d %s", test.args, code, text, test.code, test.says)
		}
	}

	stranger := exec.Command("sleep", "600")
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	defer stranger.Wait()
	defer stranger.Process.Kill()
	state, err := statedir.Open(filepath.Join(dir, "state"))
	if err != nil {
		t.Fatal(err)
	}
	defer state.Close()
	if _, err := os.Stat("/proc/self/fd"); err != nil {
		t.Skip("what processes have open is not told here")
	}
	for dumps, says := range map[string]string{"/nowhere": "does not have the state directory open",
		"": "a signal would end it"} {
		if err := state.Write(statedir.Server{PID: stranger.Process.Pid, Role: config.RoleServe, Dumps: dumps}); err != nil {
			t.Fatal(err)
		}
		if code, text := say("--state", filepath.Join(dir, "state")); code != exitFailed || !strings.Contains(text, says) {
			t.Errorf("%d %s, want %s", code, text, says)
		}
	}
	if err := stranger.Process.Signal(syscall.Signal(0)); err != nil {
		t.Error("the stranger is gone")
	}
}
