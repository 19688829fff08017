package process

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git/cgroup"
)

// TestCgroup starts commands in a group, and when it has gone, outside of it.
func TestCgroup(t *testing.T) {
	path := ""
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		dir := filepath.Join(root, fmt.Sprintf("packhorse-test-process-%d", os.Getpid()))
		if _, err := os.Stat(filepath.Join(root, "cgroup.subtree_control")); err == nil && os.Mkdir(dir, 0o755) == nil {
			path = dir
			defer syscall.Rmdir(dir)
			break
		}
	}
	if path == "" {
		t.Skip("no cgroup v2 can be made here")
	}
	was, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	tree, err := cgroup.Open(cgroup.Options{Path: path, Groups: map[string]cgroup.Limits{cgroup.Server: {}, "test": {}}})
	if err != nil {
		t.Skipf("this process may not be moved: %v", err)
	}
	defer func() {
		for line := range strings.Lines(string(was)) {
			if at, ok := strings.CutPrefix(line, "0::"); ok {
				os.WriteFile(filepath.Join(filepath.Dir(path), strings.TrimSpace(at), "cgroup.procs"), fmt.Append(nil, os.Getpid()), 0)
			}
		}
	}()
	r, err := New(Options{Git: fakeGitPath, Classes: map[Class]Limits{"test": {Slots: 2}}, Cgroups: tree, Groups: map[Class]string{"test": "test"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := r.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	where := func() string {
		out, _, err := output(t, r, script("cat /proc/self/cgroup"))
		if err != nil {
			t.Error(err)
		}
		return out
	}
	if at := where(); !strings.Contains(at, "/test\n") {
		t.Errorf("a command is in %s", at)
	}
	if err := syscall.Rmdir(tree.Directories()[0]); err != nil {
		t.Fatal(err)
	}
	if at := where(); strings.Contains(at, "/test\n") {
		t.Errorf("a command is in %s, which has gone", at)
	}
}
