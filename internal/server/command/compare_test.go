package command

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/bench/compare"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/server/statedir"
)

// TestComparePoolsOfAServer compares the log of an application with two pools by pool, and expects all requests on the
// right side.
func TestComparePoolsOfAServer(t *testing.T) {
	t.Parallel()
	root := socketDir(t)
	appWorker(t, root+"/w0.sock")
	appWorker(t, root+"/w1.sock")
	config, log := filepath.Join(root, "config.toml"), filepath.Join(root, "log")
	text := "[app]\n[[app.pool]]\nname = \"puma\"\nshare = 50\nworkers = [\"unix:" + root + "/w0.sock\"]\n" +
		"[[app.pool]]\nname = \"falcon\"\nshare = 50\nworkers = [\"unix:" + root + "/w1.sock\"]\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := os.Create(log)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	go func() {
		ended <- Main(ctx, Env{Args: []string{"serve", "--root", root, "--config", config, "--http", "127.0.0.1:0", "--ops",
			""}, Stdout: out, Stderr: out})
	}()
	var s statedir.Server
	gittest.WaitFor(t, "the server writes serve.json", func() bool {
		text, _ := os.ReadFile(filepath.Join(root, ".packhorse", "serve.json"))
		return json.Unmarshal(text, &s) == nil && s.HTTP != ""
	})
	const requests = 200
	for i := range requests {
		answer, err := http.Get(fmt.Sprintf("%s/users/%d/avatar", s.HTTP, i))
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
	}
	end()
	if code := <-ended; code != exitOK {
		text, _ := os.ReadFile(log)
		t.Fatalf("the server ended with %d:\n%s", code, text)
	}
	report, err := compare.Run(t.Context(), compare.Options{A: []string{log}, Split: "pool", Rows: 30})
	if err != nil {
		t.Fatal(err)
	}
	a, b := report.Sides[0], report.Sides[1]
	if a.Name != "falcon" || b.Name != "puma" || a.Requests+b.Requests != requests || len(report.Rows) != 1 ||
		report.Rows[0].Route != "GET /users/{id}/avatar" {
		t.Errorf("%+v", report)
	}
}

func TestMovedCommands(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"bench fetch http://127.0.0.1:8080/demo --clients 3",
			`run "packhorse-bench fetch http://127.0.0.1:8080/demo --clients 3"`},
		{"bench", `run "packhorse-bench"`},
		{"compare a.log b.log", `run "packhorse-bench compare a.log b.log"`},
	} {
		if code, stdout, stderr := runMain(strings.Fields(c.args)...); code != exitUsage || stdout != "" ||
			!strings.Contains(stderr, c.want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("packhorse %s: got exit %d, %q, want exit %d and %q", c.args, code, stderr, exitUsage, c.want)
		}
	}
}
