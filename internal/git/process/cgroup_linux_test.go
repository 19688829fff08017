package process

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/reaper"
)

// TestCgroup starts commands in a group, and when it has gone, outside of it.
func TestCgroup(t *testing.T) {
	t.Parallel()
	path := ""
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		dir := filepath.Join(root, fmt.Sprintf("packhorse-test-process-%d", os.Getpid()))
		if _, err := os.Stat(filepath.Join(root, "cgroup.subtree_control")); err == nil && os.Mkdir(dir, 0o755) == nil {
			path = dir
			t.Cleanup(func() { syscall.Rmdir(dir) })
			break
		}
	}
	if path == "" {
		t.Skip("*** No cgroup v2 can be made here: starts in a real one are NOT tested. ***")
	}
	var log bytes.Buffer
	group, err := reaper.OpenGroup(path, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	dir := group.Directory().Name()
	r, err := New(Options{Git: fakeGitPath, Classes: map[Class]Limits{"test": {Slots: 2}}, Group: group})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	where := func() string {
		out, _, err := output(t, r, script("cat /proc/self/cgroup"))
		if err != nil {
			t.Error(err)
		}
		return out
	}
	if at := where(); !strings.Contains(at, "/packhorse.") {
		t.Errorf("a command is in %s", at)
	}
	absent := script("echo")
	absent.Dir = filepath.Join(t.TempDir(), "none")
	if _, err := r.Start(t.Context(), absent); err == nil || log.Len() > 0 { // no fault of the group
		t.Errorf("started a command in a directory that does not exist: %v; %s", err, &log)
	}

	// All processes of a command are in its group, and the kernel ends them at once.
	p, err := r.Start(t.Context(), script("setsid sh -c 'env -i setsid sleep 1000 & env -i sleep 1000' & sleep 1000"))
	if err != nil {
		t.Fatal(err)
	}
	procs := func() int {
		text, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		return strings.Count(string(text), "\n")
	}
	gittest.WaitFor(t, "the group has five processes", func() bool { return procs() >= 5 })
	if err := os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0); err != nil {
		t.Errorf("no cgroup.kill: %v", err)
		p.Kill()
	}
	if u, err := p.Wait(); err == nil || u.Exit != "signal: killed" {
		t.Errorf("%+v, %v", u, err)
	}
	gittest.WaitFor(t, "the group is empty", func() bool { return procs() == 0 })

	if err := syscall.Rmdir(dir); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if at := where(); strings.Contains(at, "/packhorse.") {
			t.Errorf("a command is in %s, which has gone", at)
		}
	}
	if n := strings.Count(log.String(), "cannot start a git command in its cgroup"); n != 1 {
		t.Errorf("log: %s", &log)
	}
}
