package watchdog

import (
	"os"
	"strings"
	"syscall"
	"testing"
)

// TestProcesses: a git process that was stopped is seen as such.
func TestProcesses(t *testing.T) {
	t.Parallel()
	p, err := os.StartProcess("/bin/sh", []string{"sh", "-c", "kill -STOP $$; exit 0", "a\nline secret"}, &os.ProcAttr{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Wait()
	defer p.Signal(syscall.SIGKILL)
	var text strings.Builder
	eventually(t, "a stopped process in the tree", func() bool {
		text.Reset()
		if err := WriteProcesses(&text, os.Getpid()); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(text.String()) {
			if f := strings.Fields(line); len(f) > 5 && f[4] == "T" && strings.HasSuffix(line, "  \"sh\"\n") {
				return true
			}
		}
		return false
	})
	for _, want := range []string{" threads of ", "open files: ", "/proc/loadavg", "voluntary_ctxt_switches"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in\n%s", want, &text)
		}
	}
	text.Reset()
	if err := WriteCommands(&text, os.Getpid(),
		func(s string) string { return strings.ReplaceAll(s, "secret", "***") }); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(text.String(), `"a\nline ***"`) {
		t.Errorf("WriteProcesses wrote %s, want the tree of this process", text.String())
	}
	if err := WriteProcesses(&text, 1<<30); err == nil {
		t.Error("WriteProcesses of a missing process succeeded, want an error")
	}
}
