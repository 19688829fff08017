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
	screen := onScreen(t, cmd)
	await, terminal := screen.await, screen.terminal
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
	<-screen.read
	if shown := screen.shown.String(); !strings.Contains(shown, "\x1b[?1049l") {
		t.Errorf("the terminal is not as it was: %q", shown)
	}
}

// screen is what a program shows on a terminal of 80 columns.
type screen struct {
	t        *testing.T
	cmd      *exec.Cmd
	terminal *os.File
	read     chan struct{} // closed when the program has ended
	mu       sync.Mutex
	shown    bytes.Buffer
}

// onScreen starts a program on a terminal.
func onScreen(t *testing.T, cmd *exec.Cmd) *screen {
	t.Helper()
	terminal, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 24, Cols: 80})
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skipf("no pseudo-terminal: %v", err)
	}
	t.Cleanup(func() { terminal.Close() })
	s := &screen{t: t, cmd: cmd, terminal: terminal, read: make(chan struct{})}
	go func() {
		defer close(s.read)
		buf := make([]byte, 4096)
		for {
			n, err := terminal.Read(buf)
			s.mu.Lock()
			s.shown.Write(buf[:n])
			s.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return s
}

// await waits for a text, and returns all that was shown.
func (s *screen) await(text string) string {
	s.t.Helper()
	shown := ""
	if !gittest.Eventually(func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		shown = s.shown.String()
		return strings.Contains(shown, text)
	}) {
		s.cmd.Process.Kill()
		s.t.Fatalf("the screen shows %q, want text with %q", shown, text)
	}
	return shown
}
