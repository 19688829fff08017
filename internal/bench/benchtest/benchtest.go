// Package benchtest runs the commands of packhorse-bench in tests, and serves repositories to them with git
// http-backend.
package benchtest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/cobra"
	"go.uber.org/goleak"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/server/cli"
)

// Run runs a command and returns its output.
func Run(t *testing.T, ctx context.Context, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, errs bytes.Buffer
	root := Program(loadgen.Env{Stdout: &out, Stderr: &errs})
	root.SetArgs(args)
	root.SetOut(&out)
	root.SetErr(&errs)
	err = root.ExecuteContext(ctx)
	return out.String(), errs.String(), err
}

// JSON runs the command with --json, which must succeed, and checks that its output has exactly these keys.
func JSON(t *testing.T, keys string, args ...string) map[string]any {
	t.Helper()
	out, errs, err := Run(t, t.Context(), append(args, "--json")...)
	if err != nil {
		t.Fatalf("bench %q: %v\n%s", args, err, errs)
	}
	var got map[string]any
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatalf("%v in\n%s", err, out)
	}
	want := strings.Fields(keys)
	for _, k := range want {
		if _, ok := got[k]; !ok {
			t.Errorf("key %s is missing in\n%s", k, out)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d keys, want %d:\n%s", len(got), len(want), out)
	}
	return got
}

func Number(t *testing.T, m map[string]any, key string) float64 {
	t.Helper()
	v, ok := m[key].(float64)
	if !ok {
		t.Fatalf("%s is %v, want a number", key, m[key])
	}
	return v
}

// Backend serves a directory of repositories with git http-backend.
func Backend(t *testing.T, root string, tls bool) *httptest.Server {
	t.Helper()
	path, err := exec.Command("git", "--exec-path").Output()
	if err != nil {
		t.Fatal(err)
	}
	h := &cgi.Handler{
		Path: filepath.Join(strings.TrimSpace(string(path)), "git-http-backend"),
		Env: []string{"GIT_PROJECT_ROOT=" + root, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_GLOBAL=/dev/null",
			"GIT_CONFIG_SYSTEM=/dev/null"},
		InheritEnv: []string{"PATH"},
		Stderr:     io.Discard,
	}
	wrapped := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if v := r.Header.Get("Git-Protocol"); v != "" {
			one := *h
			one.Env = append(one.Env[:len(one.Env):len(one.Env)], "GIT_PROTOCOL="+v)
			one.ServeHTTP(w, r)
			return
		}
		h.ServeHTTP(w, r)
	})
	s := httptest.NewUnstartedServer(wrapped)
	if tls {
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	return s
}

// History makes a repository with a linear history, side branches and tags, and returns the directory above it.
func History(t *testing.T, commits int) (root string, repo *gittest.Repo) {
	t.Helper()
	root = t.TempDir()
	repo = gittest.InitAt(t, filepath.Join(root, "demo.git"))
	repo.Git("config", "pack.threads", "1") // the same pack each time
	tip := repo.Commit("first")
	for i := range commits {
		next := repo.Commit(fmt.Sprintf("commit %d %s", i, strings.Repeat("text ", 50*i)), tip)
		if i%2 == 0 {
			repo.Git("update-ref", fmt.Sprintf("refs/heads/side%d", i), repo.Commit(fmt.Sprint("side ", i), tip).String())
		}
		tip = next
	}
	repo.Git("update-ref", "refs/heads/main", tip.String())
	repo.Git("tag", "-a", "-m", "a tag", "v1", "main~1")
	return root, repo
}

// commands returns the commands of the package under test, and those that they start as child processes.
var commands func(loadgen.Env) []*cobra.Command

// Program returns a packhorse-bench with only these commands.
func Program(env loadgen.Env) *cobra.Command {
	root := &cobra.Command{Use: "packhorse-bench", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(commands(env)...)
	return root
}

// Main runs the tests of a package with these commands. If the first argument is a command, the test binary runs it,
// because benchmarks start themselves for parts of their work.
func Main(m *testing.M, all func(loadgen.Env) []*cobra.Command) {
	commands = all
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-") {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		os.Exit(cli.Run(ctx, Program(loadgen.Env{Stdout: os.Stdout, Stderr: os.Stderr}), os.Args[1:], os.Stdin, os.Stdout,
			os.Stderr))
	}
	goleak.VerifyTestMain(m)
}
