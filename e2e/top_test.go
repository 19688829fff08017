package e2e

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/creack/pty"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// TestTop runs the command top in a terminal of 80 columns and with JSON output.
func TestTop(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	repo := gittest.InitAt(t, filepath.Join(dir, "root", "team", "app.git"))
	repo.Git("update-ref", "refs/heads/main", repo.Commit("one").String())
	server, err := startServer(dir, gittest.Env(), []string{"serve", "--root", filepath.Join(dir, "root"), "--http",
		"127.0.0.1:0", "--ops", "127.0.0.1:0", "--log-format", "json"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		server.cmd.Process.Signal(syscall.SIGTERM)
		if err := server.wait(); err != nil || t.Failed() {
			t.Errorf("the server ended: %v\n%s", err, server.logged())
		}
	})
	gittest.Run(t, "", "", "clone", "-q", server.http+"/team/app", filepath.Join(dir, "clone"))
	ops := strings.TrimPrefix(server.ops, "http://")

	out, err := exec.Command(filepath.Join(binDir, "packhorse"), "top", "--json", "--state",
		filepath.Join(dir, "root", ".packhorse")).Output()
	var said struct {
		Role  string
		Heavy struct{ Repositories, Callers []struct{ Name string } }
	}
	if err != nil || json.Unmarshal(out, &said) != nil || said.Role != "serve" || len(said.Heavy.Repositories) != 1 ||
		said.Heavy.Repositories[0].Name != "team/app" ||
		len(said.Heavy.Callers) != 1 || said.Heavy.Callers[0].Name != "127.0.0.1" {
		t.Errorf("%v: %s", err, out)
	}

	cmd := exec.Command(filepath.Join(binDir, "packhorse"), "top", "--ops", ops)
	cmd.Env = append(gittest.Env(), "TERM=xterm-256color")
	terminal, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 24, Cols: 80})
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skipf("no pseudo-terminal: %v", err)
	}
	defer terminal.Close()
	var mu sync.Mutex
	var screen bytes.Buffer
	read := make(chan struct{})
	go func() {
		defer close(read)
		buf := make([]byte, 4096)
		for {
			n, err := terminal.Read(buf)
			mu.Lock()
			screen.Write(buf[:n])
			mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	await := func(text string) {
		t.Helper()
		shown := ""
		if !gittest.Eventually(func() bool {
			mu.Lock()
			defer mu.Unlock()
			shown = screen.String()
			return strings.Contains(shown, text)
		}) {
			cmd.Process.Kill()
			t.Fatalf("the screen shows %q, want text with %q", shown, text)
		}
	}
	await("packhorse serve")
	await("q quit")
	if _, err := terminal.WriteString("3"); err != nil {
		t.Fatal(err)
	}
	await("REPOSITORY      ")
	await("team/app")
	if _, err := terminal.WriteString("q"); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("top ended: %v", err)
	}
	<-read
	if !strings.Contains(screen.String(), "\x1b[?1049l") {
		t.Errorf("the terminal is not as it was: %q", screen.String())
	}
}
