package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/bench/world"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// split is a gateway and its node, with a repository team/app.
type split struct {
	node, gateway address
	secret        string // file
}

func startSplit(t *testing.T) split {
	t.Helper()
	dir := t.TempDir()
	repo, root, secret := linear(t), filepath.Join(dir, "root"), filepath.Join(dir, "secret")
	if err := os.CopyFS(filepath.Join(root, "team/app.git"), os.DirFS(repo.Dir)); err != nil {
		t.Fatal(err)
	}
	config := fmt.Sprintf("[storage]\nlisten = %q\nsecret_file = %q\n",
		"unix:"+filepath.Join(dir, "node.sock"), secret)
	table := fmt.Sprintf("[http]\naddress = \"127.0.0.1:0\"\n[[node]]\nname = \"a\"\naddress = %q\nsecret_file = %q\n",
		"unix:"+filepath.Join(dir, "node.sock"), secret)
	for name, text := range map[string]string{"secret": strings.Repeat("5", 32), "node.toml": config,
		"gateway.toml": table} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return split{
		node: startRole(t, "storage", "--root", root, "--config", filepath.Join(dir, "node.toml")),
		gateway: startRole(t, "gateway", "--state", filepath.Join(dir, "gateway"), "--config",
			filepath.Join(dir, "gateway.toml")),
		secret: secret,
	}
}

// TestBenchNeighbour sends the small request of `bench neighbour` through a gateway, and to its node by the control
// API.
func TestBenchNeighbour(t *testing.T) {
	t.Parallel()
	s := startSplit(t)
	for _, more := range [][]string{nil, {"--rpc", s.node.Listen, "--secret-file", s.secret}} {
		args := append([]string{"neighbour", s.gateway.HTTP + "/team/app", "--clients", "2", "--duration", "300ms", "--json"},
			more...)
		out, err := exec.Command(filepath.Join(binDir, "packhorse-bench"), args...).CombinedOutput()
		if err != nil || !strings.Contains(string(out), `"errors": 0`) {
			t.Errorf("%q: %v\n%s", args, err, out)
		}
	}
}

// TestBenchLFS runs all parts of `bench lfs` with small objects. Only bytes have a meaning in such a run.
func TestBenchLFS(t *testing.T) {
	t.Parallel()
	needGitLFS(t)
	if runtime.GOOS != "linux" {
		t.Skip("CPU times need Linux")
	}
	cmd := exec.Command(filepath.Join(binDir, "packhorse-bench"), "lfs", "--mb", "8", "--upload-mb", "8", "--runners", "3",
		"--rounds", "1", "--transfers", "4", "--objects", "20", "--cuts", "2", "--json")
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	var report struct {
		Figures []world.Figure `json:"figures"`
	}
	if err == nil {
		err = json.Unmarshal(out, &report)
	}
	if err != nil || len(report.Figures) != 11 || !report.Figures[0].Reached || report.Figures[0].Part != "cold" {
		t.Errorf("%v, want 11 figures, and all of the object's bytes once from the origin:\n%s%s", err, out, &errs)
	}
}

// TestBenchWrites runs each part of `packhorse-bench writes` with little work.
func TestBenchWrites(t *testing.T) {
	t.Parallel()
	repo := gittest.Init(t)
	base := repo.Commit("base")
	merged := repo.Commit("merge", repo.Commit("ours", base), repo.Commit("theirs", base))
	repo.Git("update-ref", "refs/heads/main", merged.String())
	cmd := exec.Command(filepath.Join(binDir, "packhorse-bench"), "writes", "--repo", repo.Dir, "--rounds", "1",
		"--commits", "2", "--callers", "3", "--clients", "2", "--branches", "3", "--duration", "300ms", "--json")
	var errors strings.Builder
	cmd.Stderr = &errors
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, &errors)
	}
	var report struct {
		Figures []struct {
			Part  string
			Value float64
		}
	}
	if err := json.Unmarshal(out, &report); err != nil {
		t.Fatal(err)
	}
	if len(report.Figures) < 10 {
		t.Errorf("got %d figures, want one or more of each part: %s", len(report.Figures), out)
	}
}
