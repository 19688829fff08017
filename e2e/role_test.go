package e2e

import (
	"encoding/json"
	"strings"
	"syscall"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// address is where a process says that it listens.
type address struct {
	HTTP, Listen string
	pid          int
}

// startRole starts a process of a role and holds it to a clean end with the test.
func startRole(t *testing.T, args ...string) (at address) {
	t.Helper()
	p, err := startServer(t.TempDir(), append(gittest.Env(), "GORACE=atexit_sleep_ms=0"),
		append(args, "--ops", "", "--log-format", "json"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.cmd.Process.Signal(syscall.SIGTERM)
		if err := p.wait(); err != nil || strings.Contains(p.logged(), "DATA RACE") || t.Failed() {
			t.Errorf("packhorse %s ended: %v\n%s", args[0], err, p.logged())
		}
	})
	for line := range strings.Lines(p.logged()) {
		if json.Unmarshal([]byte(line), &at) == nil && at != (address{}) {
			at.pid = p.cmd.Process.Pid
			return at
		}
	}
	t.Fatalf("the log does not tell where the process listens:\n%s", p.logged())
	return at
}
