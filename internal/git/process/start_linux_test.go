package process

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestStartsByVfork checks the system calls of a process that runs git. A call that copies the page tables would take
// longer in a larger process.
func TestStartsByVfork(t *testing.T) {
	t.Parallel()
	strace, err := exec.LookPath("strace")
	if err == nil {
		err = exec.CommandContext(t.Context(), strace, "-f", "-o", os.DevNull, "true").Run()
	}
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip("how processes are started is NOT looked at: it takes strace, and to be allowed to trace: ", err)
	}
	file := filepath.Join(t.TempDir(), "trace")
	helper(t, "run", strace, "-f", "-e", "trace=fork,vfork,clone,clone3", "-o", file)
	trace, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	started := 0
	for line := range strings.Lines(string(trace)) {
		if !strings.Contains(line, "clone") && !strings.Contains(line, "fork(") || strings.Contains(line, "CLONE_THREAD") ||
			strings.Contains(line, "resumed>") {
			continue
		}
		started++
		if !strings.Contains(line, "CLONE_VM|") || !strings.Contains(line, "CLONE_VFORK") {
			t.Error("a start copies our memory: ", line)
		}
	}
	if started == 0 {
		t.Errorf("no start was seen in\n%s", trace)
	}
}

// TestNoThreadPerChild: commands that run cost no thread each.
func TestNoThreadPerChild(t *testing.T) {
	t.Parallel()
	const commands = 150
	r := newRunner(t, "", Limits{Slots: commands})
	before := threadsOf(t)
	for range commands {
		p, err := r.Start(t.Context(), Command{Class: "test", Subcommand: "sleep", Program: "/bin/sleep",
			Args: []string{"1000"}})
		if err != nil {
			t.Fatal(err)
		}
		if p.exit.fd < 0 {
			p.Kill()
			t.Skip("this kernel gives no descriptors of processes: each command costs a thread")
		}
		defer p.Kill()
	}
	if n := threadsOf(t) - before; n > commands/2 {
		t.Errorf("%d threads more for %d commands", n, commands)
	}
}

func threadsOf(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := bytes.Cut(status, []byte("\nThreads:"))
	n, _ := strconv.Atoi(string(bytes.Fields(rest)[0]))
	return n
}
