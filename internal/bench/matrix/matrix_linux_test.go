package matrix

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/bench/benchtest"
	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	"github.com/packhorse-git/packhorse/internal/bench/world"
)

func TestMatrix(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	t.Parallel()
	_, repo := benchtest.History(t, 3)
	got := benchtest.JSON(t, "clients duration_s cpus socket files tls rows references ratios", "matrix", "--packhorse",
		os.Args[0], "--repo", repo.Dir, "--clients", "2", "--duration", "150ms")
	var cells []string
	for _, v := range append(got["rows"].([]any), got["references"].([]any)...) {
		r := v.(map[string]any)
		cells = append(cells, fmt.Sprint(r["repo"], " ", r["transport"], " ", r["cache"]))
		for _, key := range []string{"mb_per_s", "elapsed_s", "requests"} {
			if benchtest.Number(t, r, key) <= 0 {
				t.Errorf("%v: %s is not positive", r, key)
			}
		}
		if benchtest.Number(t, r, "errors") != 0 || benchtest.Number(t, r, "load") < 0 ||
			benchtest.Number(t, r, "cpu_percent") < 0 || benchtest.Number(t, r, "cpu_s_per_gb") < 0 {
			t.Error(r)
		}
		// of no CPU time to speak of there is no share
		if _, ok := r["gc_cpu_percent"]; !ok || benchtest.Number(t, r, "alloc_mb_per_gb") <= 0 {
			t.Error(r)
		}
		for _, p := range r["processes"].([]any) {
			if p := p.(map[string]any); p["name"] == "" || benchtest.Number(t, p, "alloc_mb_per_gb") <= 0 ||
				benchtest.Number(t, p, "kernel_share") != 1 {
				t.Error(p)
			}
		}
	}
	want := "demo channel on,demo inband on,demo channel off,demo inband off,demo serve on"
	if s := strings.Join(cells, ","); s != want {
		t.Errorf("cells are\n%s, want\n%s", s, want)
	}
	ratios := got["ratios"].([]any)
	for _, key := range []string{"channel_to_inband", "channel_cpu_to_one"} {
		if len(ratios) != 1 || benchtest.Number(t, ratios[0].(map[string]any), key) <= 0 {
			t.Errorf("ratios: %v", ratios)
		}
	}
}

// TestMatrixPrints has two repositories of the same name, one of them not bare.
func TestMatrixPrints(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	t.Parallel()
	_, repo := benchtest.History(t, 2)
	checkout := filepath.Join(t.TempDir(), "demo")
	repo.Git("clone", "-q", repo.Dir, checkout)
	out, errs, err := benchtest.Run(t, t.Context(), "matrix", "--packhorse", os.Args[0], "--repo", repo.Dir, "--repo",
		filepath.Join(checkout, ".git"), "--clients", "1", "--duration", "1ms", "--tcp")
	if err != nil {
		t.Fatal(err, errs)
	}
	for _, want := range []string{`(?m)^ *demo +channel +on +[\d.]+ `, `(?m)^ *` + checkout + ` +inband +off `,
		`(?m)^ *demo +\(one process\) +on +server `,
		`(?m)^ *demo +inband +off +node +[\d.]+ +[\d.]+ `,
		`channel to inband, MB/s +(-|\d)`, `, gateway and node over TCP on the loopback\n`} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("there is no %s in\n%s", want, out)
		}
	}
}

func TestMatrixMisuse(t *testing.T) {
	t.Parallel()
	_, repo := benchtest.History(t, 1)
	broken := filepath.Join(t.TempDir(), "broken")
	repo.Git("clone", "-q", "--bare", repo.Dir, filepath.Join(broken, "demo.git"))
	for want, args := range map[string][]string{
		"no repository":         nil,
		"no such file":          {"--repo", "/none/such"},
		"not a bare repository": {"--repo", t.TempDir()},
		"given twice":           {"--repo", repo.Dir, "--repo", repo.Dir, "--repo", repo.Dir},
		"--clients 0":           {"--repo", repo.Dir, "--clients", "0"},
		"the server did not start; the end of its log: fake: the root is broken": {"--repo",
			filepath.Join(broken, "demo.git")},
	} {
		if _, _, err := benchtest.Run(t, t.Context(), append([]string{"matrix", "--packhorse", os.Args[0]},
			args...)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", args, err, want)
		}
	}
}

// TestMatrixLosesAProcess kills a process during a cell.
func TestMatrixLosesAProcess(t *testing.T) {
	t.Parallel()
	_, repo := benchtest.History(t, 1)
	subjects, err := findSubjects([]string{repo.Dir})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	killed := make(chan bool)
	go func() {
		defer close(killed)
		for loadgen.Sleep(ctx, 20*time.Millisecond) {
			if _, err := os.Stat(filepath.Join(dir, "cell/gateway/state/gateway.json")); err != nil {
				continue
			}
			for _, pid := range loadgen.Pids() {
				b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
				if err == nil && strings.Contains(string(b), filepath.Join(dir, "cell/node/packhorse.toml")) {
					syscall.Kill(pid, syscall.SIGKILL)
					return
				}
			}
		}
	}()
	o := &matrixOptions{program: world.Program{Path: os.Args[0]},
		Common: loadgen.Common{Clients: 1, Duration: time.Hour, Timeout: time.Minute}}
	_, err = o.cell(t.Context(), loadgen.Env{Stderr: io.Discard}, cell{subjects[0], channel, true},
		filepath.Join(dir, "cell"))
	cancel()
	<-killed
	if err == nil || !strings.Contains(err.Error(), "the node ended before the cell did") {
		t.Errorf("%v", err)
	}
}

// TestMatrixInterrupted searches for remaining processes. It is not parallel, so that all of them are its own.
func TestMatrixInterrupted(t *testing.T) {
	_, repo := benchtest.History(t, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	_, errs, err := benchtest.Run(t, ctx, "matrix", "--packhorse", os.Args[0], "--repo", repo.Dir, "--duration", "1h",
		"--clients", "2")
	if err == nil || !strings.Contains(err.Error(), "interrupted") {
		t.Errorf("%v %s", err, errs)
	}
	for _, pid := range loadgen.Pids() {
		if p := loadgen.ReadStat(pid); p != nil && p.Parent == os.Getpid() {
			t.Errorf("process %d is left", pid)
		}
	}
}
