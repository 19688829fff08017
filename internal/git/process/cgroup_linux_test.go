package process

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/git/cgroup"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
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
		t.Skip("*** No cgroup v2 can be made here: starts in a real one are NOT tested. ***")
	}
	was, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	metrics := cgroup.NewMetrics()
	tree, err := cgroup.Open(cgroup.Options{Path: path, Metrics: metrics,
		Groups: map[string]cgroup.Limits{cgroup.Server: {}, "test": {}}})
	if err != nil {
		t.Skipf("*** This process may not be moved: starts in a real cgroup are NOT tested: %v ***", err)
	}
	defer func() {
		for line := range strings.Lines(string(was)) {
			if at, ok := strings.CutPrefix(line, "0::"); ok {
				os.WriteFile(filepath.Join(filepath.Dir(path), strings.TrimSpace(at), "cgroup.procs"), fmt.Append(nil, os.Getpid()),
					0)
			}
		}
	}()
	r, err := New(Options{Git: fakeGitPath, Classes: map[Class]Limits{"test": {Slots: 2}}, Cgroups: tree,
		Groups: map[Class]string{"test": "test"}})
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
	absent, notOne := script("echo"), script("echo")
	absent.Dir, notOne.Dir = filepath.Join(t.TempDir(), "none"), fakeGitPath
	for _, c := range []Command{absent, notOne} { // no fault of the group
		if _, err := r.Start(t.Context(), c); err == nil {
			t.Error("started a command in a directory that does not exist, want an error")
		}
	}

	// All processes of a command are in its group, and the kernel ends them at once.
	p, err := r.Start(t.Context(), script("setsid sh -c 'env -i setsid sleep 1000 & env -i sleep 1000' & sleep 1000"))
	if err != nil {
		t.Fatal(err)
	}
	procs := func() int {
		text, _ := os.ReadFile(filepath.Join(tree.Directories()[0], "cgroup.procs"))
		return strings.Count(string(text), "\n")
	}
	gittest.WaitFor(t, "the group has five processes", func() bool { return procs() >= 5 })
	if err := os.WriteFile(filepath.Join(tree.Directories()[0], "cgroup.kill"), []byte("1"), 0); err != nil {
		t.Errorf("no cgroup.kill: %v", err)
		p.Kill()
	}
	if u, err := p.Wait(); err == nil || u.Exit != "signal: killed" {
		t.Errorf("%+v, %v", u, err)
	}
	gittest.WaitFor(t, "the group is empty", func() bool { return procs() == 0 })

	if err := syscall.Rmdir(tree.Directories()[0]); err != nil {
		t.Fatal(err)
	}
	if n := refused(t, metrics); n != 0 {
		t.Errorf("%v commands were refused by a group that is there, want 0", n)
	}
	if at := where(); strings.Contains(at, "/test\n") {
		t.Errorf("a command is in %s, which has gone", at)
	}
	if n := refused(t, metrics); n != 1 {
		t.Errorf("%v commands were refused, want 1", n)
	}
	// An error of the command itself is returned, and is not retried.
	if _, err := r.Start(t.Context(), absent); err == nil || refused(t, metrics) != 1 {
		t.Errorf("%v, %v commands were refused", err, refused(t, metrics))
	}
}

// refused is how many commands a group did not take in.
func refused(t *testing.T, m *cgroup.Metrics) (n float64) {
	t.Helper()
	reg := prometheus.NewRegistry()
	reg.MustRegister(m.Collectors()...)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, metric := range f.Metric {
			if f.GetName() == "packhorse_cgroup_refused_total" {
				n += metric.GetCounter().GetValue()
			}
		}
	}
	return n
}

// TestRefusals checks that only errors that the group may cause are retried outside of it.
func TestRefusals(t *testing.T) {
	t.Parallel()
	here, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	there := filepath.Join(t.TempDir(), "group")
	if err := os.Mkdir(there, 0o755); err != nil {
		t.Fatal(err)
	}
	gone, err := os.Open(there)
	if err != nil {
		t.Fatal(err)
	}
	defer gone.Close()
	if err := os.Remove(there); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		dir  *os.File
		err  syscall.Errno
		want bool
	}{
		{here, syscall.ENOENT, false}, {gone, syscall.ENOENT, true}, {here, syscall.EACCES, true},
		{here, syscall.EBUSY, true}, {here, syscall.ENOSYS, true},
		{here, syscall.EAGAIN, false}, {here, syscall.ENOMEM, false}, {here, syscall.EMFILE, false},
		{here, syscall.ETXTBSY, false}, {here, syscall.ENOTDIR, false},
		{here, syscall.EIO, false}, {here, syscall.ENOEXEC, false}, {here, syscall.ESTALE, false},
	} {
		if got := refusedBy(test.dir, &os.PathError{Op: "fork/exec", Path: "/usr/bin/git", Err: test.err}); got != test.want {
			t.Errorf("%v: %v, want %v", test.err, got, test.want)
		}
	}
}
