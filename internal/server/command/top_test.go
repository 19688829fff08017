package command

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/operations/top"
	"github.com/packhorse-git/packhorse/internal/server/statedir"
)

func TestTop(t *testing.T) {
	t.Parallel()
	root := socketDir(t)
	app := gittest.InitAt(t, filepath.Join(root, "team/app.git"))
	app.Git("update-ref", "refs/heads/main", app.Commit("one").String())
	startServe(t, "--root", root, "--ops", "127.0.0.1:0")
	state := filepath.Join(root, ".packhorse")
	s, err := statedir.Running(state)
	if err != nil {
		t.Fatal(err)
	}
	gittest.Run(t, "", "", "clone", "-q", s.HTTP+"/team/app", filepath.Join(t.TempDir(), "clone"))
	code, out, errs := runMain("top", "--json", "--state", state)
	var said top.State
	if err := json.Unmarshal([]byte(out), &said); code != 0 || err != nil || said.Role != "serve" ||
		len(said.Git.Slots) < 5 || len(said.Lanes) < 5 || said.Cache == nil || len(said.Heavy.Repositories) == 0 {
		t.Fatalf("%d, %v, %s%s", code, err, out, errs)
	}
	for _, args := range [][]string{{"--ops", strings.TrimPrefix(s.Ops, "http://")},
		{"--ops", s.Ops, "--once", "--sort", "cpu"}} {
		code, out, errs := runMain(append([]string{"top"}, args...)...)
		if code != 0 || !strings.HasPrefix(out, "packhorse serve ") || !strings.Contains(out, "team/app") ||
			strings.Contains(out, "\x1b") {
			t.Errorf("%q: %d, %s%s", args, code, out, errs)
		}
	}
}

func TestTopThatCannotBe(t *testing.T) {
	t.Parallel()
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	odd := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("<html>"))
	}))
	defer odd.Close()
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"--ops", "127.0.0.1:1"}, exitFailed, "is the server running?"},
		{[]string{"--ops", "nothing"}, exitUsage, "is not HOST:PORT"},
		{[]string{"--ops", other.URL}, exitFailed, "is not the private listener of packhorse"},
		{[]string{"--ops", odd.URL}, exitFailed, "this version of packhorse does not understand the response"},
		{[]string{"--state", t.TempDir()}, exitFailed, "no server runs with the state directory"},
		{[]string{"--sort", "size"}, exitUsage, "--sort is one of age bytes cpu"},
		{[]string{"--interval", "1ms"}, exitUsage, "--interval has to be at least"},
		{[]string{"--most", "-1"}, exitUsage, "--most"},
	} {
		if code, out, errs := runMain(append([]string{"top"}, c.args...)...); code != c.code || out != "" ||
			!strings.Contains(errs, c.says) {
			t.Errorf("top %q = %d, %s%s, want %d and an error with %q", c.args, code, out, errs, c.code, c.says)
		}
	}
}
