package cgroup

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// hierarchy returns the mount of the kernel's hierarchy. It skips the test if the hierarchy is not writable.
func hierarchy(t *testing.T) string {
	t.Helper()
	for _, dir := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		if isCgroup(dir) != nil {
			continue
		}
		path := filepath.Join(dir, fmt.Sprintf("packhorse-test-%d", os.Getpid()))
		if err := os.Mkdir(path, 0o755); err != nil {
			t.Skipf("*** No cgroup can be made here: a real one is NOT tested: %v ***", err)
		}
		t.Cleanup(func() { remove(path) })
		return path
	}
	t.Skip("*** There is no cgroup v2 here: a real one is NOT tested. ***")
	return ""
}

// TestReal moves this process, starts others in groups, and lets the kernel end them. It is not parallel, because a
// process is in only one group.
func TestReal(t *testing.T) {
	path := hierarchy(t)
	was, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	stale := filepath.Join(path, "packhorse.1073741824.0123456789abcdef")
	for _, dir := range []string{stale, filepath.Join(stale, Server), filepath.Join(stale, "pack")} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var log bytes.Buffer
	tree, err := Open(Options{Wanted: true, Path: path, Groups: map[string]Limits{Server: {CPUWeight: 300},
		"pack": {MemoryMax: 1 << 30}}, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Skipf("this process may not be moved: %v", err)
	}
	defer func() { // to where it was, wherever it is
		tree.Close()
		for line := range strings.Lines(string(was)) {
			if at, ok := strings.CutPrefix(line, "0::"); ok {
				write(filepath.Join(filepath.Dir(path), strings.TrimSpace(at)), "cgroup.procs", fmt.Sprint(os.Getpid()))
			}
		}
	}()
	if _, err := os.Stat(stale); err == nil {
		t.Error("the group of an earlier run still exists, want it removed")
	}
	now, err := os.ReadFile("/proc/self/cgroup")
	if err != nil || !strings.Contains(string(now), "/"+filepath.Base(tree.dir)+"/server\n") {
		t.Errorf("this process is in %s, %v", now, err)
	}

	// If the controllers are delegated, the limits hold. Otherwise the log has a message.
	have, err := os.ReadFile(filepath.Join(tree.dir, "cgroup.subtree_control"))
	if err != nil {
		t.Fatal(err)
	}
	for controller, file := range map[string][3]string{"memory": {"pack", "memory.max", "1073741824"}, "cpu": {Server,
		"cpu.weight", "300"}} {
		got, err := os.ReadFile(filepath.Join(tree.dir, file[0], file[1]))
		if passed := slices.Contains(strings.Fields(string(have)), controller); passed &&
			strings.TrimSpace(string(got)) != file[2] {
			t.Errorf("%s: %q, %v", file, got, err)
		} else if !passed && !strings.Contains(log.String(), controller) {
			t.Errorf("the log does not tell that %s is missing: %s", controller, &log)
		}
	}

	cmd := exec.Command("sh", "-c", "setsid sleep 1000 & sleep 1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, UseCgroupFD: true, CgroupFD: int(tree.Directory("pack").Fd())}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	group := tree.Directories()[0]
	pids := func() int {
		text, _ := os.ReadFile(filepath.Join(group, "cgroup.procs"))
		return strings.Count(string(text), "\n")
	}
	eventually(t, "three processes in the group", func() bool { return pids() == 3 })
	if err := write(group, "cgroup.kill", "1"); err != nil {
		t.Errorf("no cgroup.kill: %v", err)
		cmd.Process.Kill()
	}
	cmd.Wait()
	eventually(t, "nobody in the group", func() bool { return !populated(group) })
	if text, _ := os.ReadFile(filepath.Join(path, "cgroup.controllers")); len(bytes.TrimSpace(text)) == 0 &&
		strings.Count(log.String(), "\n") != 1 {
		t.Errorf("log: %s", &log)
	}
	if err := tree.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(group); err == nil {
		t.Error("the group still exists, want it removed")
	}
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	gittest.WaitFor(t, what, is)
}
