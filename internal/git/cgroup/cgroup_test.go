package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// fake is a hierarchy in a directory, with files like those of the kernel, which keep the text written to them.
type fake struct {
	t           *testing.T
	dir         string
	controllers string
	proc        string
}

func newFake(t *testing.T, controllers string) *fake {
	f := &fake{t: t, dir: filepath.Join(t.TempDir(), "cgroup"), controllers: controllers, proc: t.TempDir()}
	if err := f.mkdir(f.dir); err != nil {
		t.Fatal(err)
	}
	f.put(f.dir, "cgroup.controllers", controllers)
	return f
}

func (f *fake) put(dir, name, text string) {
	f.t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
		f.t.Fatal(err)
	}
}

// putProcess writes a file of this process below proc.
func (f *fake) putProcess(proc, name, text string) {
	dir := filepath.Join(proc, strconv.Itoa(os.Getpid()))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		f.t.Fatal(err)
	}
	f.put(dir, name, text)
}

func (f *fake) get(names ...string) string {
	text, err := os.ReadFile(filepath.Join(append([]string{f.dir}, names...)...))
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(text))
}

// mkdir makes a control group. It has the files of a controller if the parent group passes the controller on. A later
// call adds missing files.
func (f *fake) mkdir(dir string) error {
	made := os.Mkdir(dir, 0o755)
	if made != nil && !errors.Is(made, fs.ErrExist) {
		return made
	}
	passed, _ := os.ReadFile(filepath.Join(filepath.Dir(dir), "cgroup.subtree_control"))
	have := strings.ReplaceAll(strings.Join(strings.Fields(string(passed)), " "), "+", "")
	files := map[string]string{"cgroup.procs": "", "cgroup.subtree_control": "", "cgroup.controllers": have,
		"cgroup.events": "populated 0\nfrozen 0\n", "cgroup.kill": ""}
	if strings.Contains(have, "memory") {
		files["memory.high"], files["memory.max"], files["memory.current"] = "", "", "4096\n"
		files["memory.stat"] = "anon 1024\nfile 3072\nfile_mapped 7\n"
		files["memory.events"] = "low 0\nhigh 5\nmax 2\noom 1\noom_kill 1\n"
	}
	if strings.Contains(have, "cpu") {
		files["cpu.weight"] = ""
	}
	files["cpu.stat"] = "usage_usec 1500000\nuser_usec 1\n"
	for name, text := range files {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			f.put(dir, name, text)
		}
	}
	return made
}

func (f *fake) options(log *bytes.Buffer) Options {
	return Options{
		Wanted: true,
		Path:   f.dir, mkdir: f.mkdir, proc: f.proc, Log: slog.New(slog.NewTextHandler(log, nil)),
		Groups: map[string]Limits{Server: {CPUWeight: 300}, "pack": {MemoryHigh: 1 << 30, MemoryMax: 2 << 30,
			CPUWeight: 100}, "other": {}},
	}
}

func TestFake(t *testing.T) {
	t.Parallel()
	f := newFake(t, "cpuset cpu io memory pids")
	var log bytes.Buffer
	o := f.options(&log)
	o.Metrics = NewMetrics()
	tree, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	pid := strconv.Itoa(os.Getpid())
	run := filepath.Base(tree.dir)
	if again := runName(); !strings.HasPrefix(run, "packhorse."+pid+".") || again == run || !isRun(run) {
		t.Errorf("the directory %s, and the next one %s", run, again)
	}
	for _, test := range [][3]string{
		{run, "server/cgroup.procs", pid}, {run, "server/cpu.weight", "300"}, {run, "server/memory.max", ""},
		{run, "pack/memory.high", "1073741824"}, {run, "pack/memory.max", "2147483648"}, {run, "pack/cpu.weight",
			"100"},
		{run, "other/memory.high", ""}, {run, "other/cpu.weight", ""},
		{"", "cgroup.subtree_control", "+cpu\n+memory"}, {run, "cgroup.subtree_control", "+cpu\n+memory"},
	} {
		if got := f.get(test[0], test[1]); got != test[2] {
			t.Errorf("%s/%s: %q, want %q", test[0], test[1], got, test[2])
		}
	}
	if log.Len() > 0 {
		t.Errorf("log: %s", &log)
	}
	if dir := tree.Directory("pack"); dir == nil || dir.Name() != filepath.Join(f.dir, run, "pack") {
		t.Errorf("directory %v", dir)
	}
	if tree.Directory("none") != nil {
		t.Error("Directory(none) is a directory, want nil")
	}
	if got := tree.Directories(); len(got) != 2 || !strings.HasSuffix(got[0], "/other") || !strings.HasSuffix(got[1],
		"/pack") {
		t.Errorf("directories %q", got)
	}
	tree.Refused("pack", os.ErrPermission)
	tree.Refused("pack", os.ErrPermission)
	if n := strings.Count(log.String(), "cannot start a git command in its cgroup"); n != 1 {
		t.Errorf("log: %s", &log)
	}
	got := values(t, o.Metrics)
	for name, want := range map[string]float64{
		"packhorse_cgroup_active groups": 1, "packhorse_cgroup_active cpu": 1, "packhorse_cgroup_active memory": 1,
		"packhorse_cgroup_memory_bytes pack": 4096, "packhorse_cgroup_page_cache_bytes pack": 3072,
		"packhorse_cgroup_cpu_seconds_total server":      1.5,
		"packhorse_cgroup_memory_events_total high pack": 5, "packhorse_cgroup_memory_events_total oom_kill pack": 1,
		"packhorse_cgroup_refused_total pack": 2,
	} {
		if got[name] != want {
			t.Errorf("%s: %v, want %v", name, got[name], want)
		}
	}
	if err := tree.Close(); err != nil || tree.Directory("pack") != nil {
		t.Errorf("closed: %v", err)
	}
	if got := values(t, o.Metrics); got["packhorse_cgroup_active groups"] != 0 || len(got) != 4 {
		t.Errorf("after the end: %v", got)
	}
}

func values(t *testing.T, m *Metrics) map[string]float64 {
	t.Helper()
	reg := prometheus.NewRegistry()
	reg.MustRegister(m.Collectors()...)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]float64)
	for _, f := range families {
		for _, metric := range f.Metric {
			name := f.GetName()
			for _, l := range metric.Label {
				name += " " + l.GetValue()
			}
			all[name] = metric.GetCounter().GetValue() + metric.GetGauge().GetValue()
		}
	}
	return all
}

// TestNoControllers has groups of which some, or all, cannot have limits.
func TestNoControllers(t *testing.T) {
	t.Parallel()
	for _, controllers := range []string{"", "memory hugetlb"} {
		f := newFake(t, controllers)
		var log bytes.Buffer
		tree, err := Open(f.options(&log))
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(log.String(), "\n"); n != 1 || !strings.Contains(log.String(), `the controller \"cpu\"`) {
			t.Errorf("controllers %q: log %s", controllers, &log)
		}
		want := "1073741824"
		if controllers == "" {
			want = "no such file or directory"
		}
		if got := f.get(filepath.Base(tree.dir), "pack", "memory.high"); !strings.HasSuffix(got, want) {
			t.Errorf("memory.high: %s", got)
		}
		if tree.Directory("pack") == nil {
			t.Error("no group")
		}
		tree.Close()
	}
}

// TestNone has no cgroup that Open could use.
func TestNone(t *testing.T) {
	t.Parallel()
	const v1 = "30 24 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu"
	for name, test := range map[string]struct {
		change            func(o *Options)
		cgroup, mountinfo string // of a process; DIR is the hierarchy
		want              string
	}{
		"not there":    {change: func(o *Options) { o.Path = "/nonexistent/a" }, want: "not a cgroup"},
		"not a cgroup": {change: func(o *Options) { o.Path = os.TempDir() }, want: "not a cgroup"},
		"no mkdir": {change: func(o *Options) { o.mkdir = func(string) error { return os.ErrPermission } },
			want: "permission denied"},
		"no proc": {change: func(o *Options) { o.Path, o.proc = "", "/nonexistent" },
			want: "no cgroup v2 hierarchy"},
		"version 1":   {cgroup: "4:memory:/a\n1:cpu:/a\n", mountinfo: v1, want: "no cgroup v2 hierarchy"},
		"not mounted": {cgroup: "0::/a\n", mountinfo: v1, want: "no cgroup v2 hierarchy"},
		"another part": {cgroup: "0::/a\n", mountinfo: "30 24 0:27 /b DIR rw - cgroup2 cgroup rw",
			want: "no cgroup v2 hierarchy"},
		"not delegated": {cgroup: "0::/\n", mountinfo: v1 +
			"\n30 24 0:27 / DIR rw,nosuid shared:9 - cgroup2 cgroup rw", want: "is not delegated"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log bytes.Buffer
			f := newFake(t, "cpu memory")
			o := f.options(&log)
			if test.change != nil {
				test.change(&o)
			} else {
				o.Path = ""
				f.putProcess(f.proc, "cgroup", test.cgroup)
				f.putProcess(f.proc, "mountinfo", strings.ReplaceAll(test.mountinfo, "DIR", f.dir)+"\n")
			}
			if _, err := Open(o); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v", err)
			}
		})
	}
}

// TestIsRun: only the directories of earlier runs are removed at the start.
func TestIsRun(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{
		"packhorse.7": true, "packhorse.7.0123456789abcdef": true, "packhorse.": false, "packhorse.slice": false,
		"packhorse.7.service": false, "packhorse.7.": false,
	} {
		if isRun(name) != want {
			t.Errorf("%q: %v", name, !want)
		}
	}
}

// TestOwn finds where a process is.
func TestOwn(t *testing.T) {
	t.Parallel()
	for _, test := range [][3]string{ // path, root and point of the mount
		{"/system.slice/packhorse.service", "/", "/sys/fs/cgroup"}, {"/", "/", "/sys/fs/cgroup"}, {"/a/b", "/a",
			"/mnt/cgroup"},
	} {
		proc := t.TempDir()
		f := &fake{t: t}
		f.putProcess(proc, "cgroup", "3:cpu:/x\n0::"+test[0]+"\n")
		f.putProcess(proc, "mountinfo",
			fmt.Sprintf("30 24 0:27 %s %s rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n", test[1], test[2]))
		want := filepath.Join(test[2], strings.TrimPrefix(test[0], strings.TrimSuffix(test[1], "/")))
		if dir, path, err := Own(proc, os.Getpid()); dir != want || path != test[0] || err != nil {
			t.Errorf("%q: %s, %s, %v; want %s", test, dir, path, err, want)
		}
	}
}

// TestDelegated has a user's own directory: of a service, and of a terminal.
func TestDelegated(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" || os.Geteuid() == 0 {
		t.Skip("root owns every group")
	}
	f := newFake(t, "")
	f.put(f.dir, "cgroup.procs", fmt.Sprintf("%d\n", os.Getpid()))
	if !delegated(f.dir, "/a") {
		t.Error("delegated = false for the group of a service, want true")
	}
	f.put(f.dir, "cgroup.procs", fmt.Sprintf("1\n%d\n", os.Getpid()))
	if delegated(f.dir, "/a") {
		t.Error("delegated = true for the group of a terminal, want false")
	}
}
