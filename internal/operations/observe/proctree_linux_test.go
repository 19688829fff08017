package observe

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// TestMain lets this program be a worker of itself.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "test-worker" {
		io.Copy(io.Discard, os.Stdin)
		return
	}
	os.Exit(m.Run())
}

// values gathers the metrics of a tree: "name label label" to value.
func values(t *testing.T, tree *ProcessTree) map[string]float64 {
	t.Helper()
	tree.looking.Lock()
	tree.at = time.Time{}
	tree.looking.Unlock()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(tree)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			key := strings.TrimPrefix(f.GetName(), "packhorse_tree_")
			for _, name := range []string{"part", "mode", "kind", "direction", "state", "resource", "device", "of"} {
				if labels[name] != "" {
					key += " " + labels[name]
				}
			}
			all[key] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return all
}

// until looks until something holds.
func until(t *testing.T, tree *ProcessTree, what string, holds func(map[string]float64) bool) map[string]float64 {
	t.Helper()
	var v map[string]float64
	if !gittest.Eventually(func() bool {
		v = values(t, tree)
		return holds(v)
	}) {
		t.Fatalf("got %v, want %s", v, what)
	}
	return v
}

// start starts a program in a separate group, as git is, and ends it with the test.
func start(t *testing.T, name string, args ...string) (*exec.Cmd, io.WriteCloser) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			cmd.Wait()
		}
	})
	return cmd, stdin
}

func end(t *testing.T, tree *ProcessTree, part string, cmd *exec.Cmd) {
	t.Helper()
	syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	cmd.Wait()
	tree.Ended(part, cmd.ProcessState)
}

// TestChildrenCountWhileTheyRun: grandchildren included; and what they used still counts when they are gone.
func TestChildrenCountWhileTheyRun(t *testing.T) {
	tree := NewProcessTree(TreeOptions{})
	const spin = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done"
	// Without a redirection, a command in the background reads from /dev/null and would end at once.
	cmd, _ := start(t, "/bin/sh", "-c", "exec 3<&0; /bin/sh -c '"+spin+"; read x' <&3 & "+spin+"; read x")
	before := until(t, tree, "two processes that worked", func(v map[string]float64) bool {
		return v["processes git"] == 2 && v["cpu_seconds_total git user"] >= .1
	})
	if before["memory_bytes git anonymous"] == 0 || before["memory_bytes git file"] == 0 ||
		before["processes server"] != 1 || before["memory_bytes server anonymous"] < 1<<20 {
		t.Errorf("while it runs: %v", before)
	}
	end(t, tree, PartGit, cmd)
	after := until(t, tree, "without processes", func(v map[string]float64) bool { return v["processes git"] == 0 })
	if after["cpu_seconds_total git user"] < before["cpu_seconds_total git user"] ||
		after["memory_bytes git anonymous"] != 0 {
		t.Errorf("when it has ended: %v, before: %v", after, before)
	}
}

// TestUnreportedExits is counted from the kernel's account.
func TestUnreportedExits(t *testing.T) {
	tree := NewProcessTree(TreeOptions{})
	before := values(t, tree)
	cmd, stdin := start(t, "/bin/sh", "-c", "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done")
	stdin.Close()
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	until(t, tree, "more of other", func(v map[string]float64) bool {
		return v["cpu_seconds_total other user"] > before["cpu_seconds_total other user"]
	})
}

// TestOwnWorkersAreNotGit, and a child that has not become another program yet is nothing.
func TestOwnWorkersAreNotGit(t *testing.T) {
	tree := NewProcessTree(TreeOptions{Workers: map[string]string{"test-worker": "search"}})
	cmd, _ := start(t, os.Args[0], "test-worker", "index")
	until(t, tree, "a worker", func(v map[string]float64) bool {
		return v["processes search"] == 1 &&
			v["processes git"] == 0
	})
	stranger := NewProcessTree(TreeOptions{Workers: map[string]string{"something": "search"}})
	until(t, stranger, "nothing", func(v map[string]float64) bool {
		return v["processes search"] == 0 &&
			v["processes git"] == 0
	})
	end(t, tree, "search", cmd)
	until(t, tree, "no worker", func(v map[string]float64) bool {
		return v["processes search"] == 0 && v["cpu_seconds_total search system"] >= 0
	})
}

// TestOtherPrograms checks that a program is identified by its name, of which the kernel has the first 15 bytes.
func TestOtherPrograms(t *testing.T) {
	program := filepath.Join(t.TempDir(), "packhorse-search")
	if err := os.Symlink(os.Args[0], program); err != nil {
		t.Fatal(err)
	}
	tree := NewProcessTree(TreeOptions{Programs: map[string]string{"packhorse-search": "search"}})
	start(t, program, "test-worker")
	until(t, tree, "a program", func(v map[string]float64) bool {
		return v["processes search"] == 1 && v["processes git"] == 0
	})
}

// TestWorkerLikeTheReaper checks a worker that is started from the running program, even if its file was replaced, and
// in a separate session.
func TestWorkerLikeTheReaper(t *testing.T) {
	tree := NewProcessTree(TreeOptions{Workers: map[string]string{"test-worker": "reaper"}})
	cmd := exec.Command("/proc/self/exe", "test-worker")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		cmd.Process.Kill()
		cmd.Wait()
	}()
	until(t, tree, "a worker", func(v map[string]float64) bool {
		return v["processes reaper"] == 1 && v["processes git"] == 0 && v["memory_bytes reaper anonymous"] > 0
	})
}

// TestNamesOfPrograms: one can be called so that its line in /proc looks like another's.
func TestNamesOfPrograms(t *testing.T) {
	tree := NewProcessTree(TreeOptions{})
	program, err := os.ReadFile("/bin/sleep")
	if err != nil {
		t.Skip(err)
	}
	file := filepath.Join(t.TempDir(), "x) R 1 1 (y")
	if err := os.WriteFile(file, program, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd, _ := start(t, file, "1000")
	until(t, tree, "seen", func(v map[string]float64) bool { return v["processes git"] == 1 })
	end(t, tree, PartGit, cmd)
}

// TestDisk checks that written bytes count, also when the process has ended.
func TestDisk(t *testing.T) {
	dir := t.TempDir()
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil || fs.Type == unix.TMPFS_MAGIC {
		t.Skip("the directory for temporary files is on no disk: ", err)
	}
	tree := NewProcessTree(TreeOptions{})
	cmd, _ := start(t, "/bin/sh", "-c", fmt.Sprintf(
		"cd '%s'; while :; do dd if=/dev/zero of=f bs=65536 count=64 conv=notrunc 2>/dev/null; rm f; done", dir))
	before := until(t, tree, "written", func(v map[string]float64) bool {
		return v["disk_bytes_total git written"] >= 8<<20
	})
	end(t, tree, PartGit, cmd)
	after := values(t, tree)
	if after["disk_bytes_total git written"] < before["disk_bytes_total git written"] {
		t.Errorf("the sums went back: %v, %v", before, after)
	}
}

func TestSurroundings(t *testing.T) {
	v := values(t, NewProcessTree(TreeOptions{Log: slog.New(slog.DiscardHandler)}))
	_, err := os.Stat("/proc/pressure/cpu")
	if _, has := v["pressure_seconds_total some cpu machine"]; has != (err == nil) {
		t.Errorf("pressure is told of: %v; there is some: %v", has, err == nil)
	}
	for key, n := range v {
		if n < 0 {
			t.Errorf("%s is %v", key, n)
		}
	}
}

func BenchmarkCollect(b *testing.B) {
	tree := NewProcessTree(TreeOptions{})
	for b.Loop() {
		tree.at = time.Time{}
		tree.look()
	}
}

// TestEndedDuringCheck: a process that hangs may keep a look waiting, and that must not keep the slot of one that has
// ended.
func TestEndedDuringCheck(t *testing.T) {
	tree := NewProcessTree(TreeOptions{})
	cmd := exec.Command("true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	tree.looking.Lock()
	told := make(chan struct{})
	go func() {
		tree.Ended(PartGit, cmd.ProcessState)
		close(told)
	}()
	select {
	case <-told:
	case <-time.After(time.Minute):
		t.Error("a process that has ended waits for a look")
	}
	tree.looking.Unlock()
}
