package e2e

import (
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// demoIn returns the command packhorse demo with a directory for its temporary files.
func demoIn(temp string, env ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(binDir, "packhorse"), "demo")
	cmd.Env = append(gittest.Env(), append([]string{"TMPDIR=" + temp, "GORACE=atexit_sleep_ms=0"}, env...)...)
	return cmd
}

// demos returns the directories of demos.
func demos(t *testing.T, temp string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(temp, "packhorse-demo-*"))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestDemo follows what a demo prints: on a desktop, with a demo that was killed, and with quotes in a path.
func TestDemo(t *testing.T) {
	t.Parallel()
	dir, temp := t.TempDir(), filepath.Join(t.TempDir(), "it's temporary")
	browser := "#!/bin/sh\necho \"$1\" >'" + dir + "/opened'\n"
	for _, err := range []error{
		os.MkdirAll(filepath.Join(temp, "packhorse-demo-1"), 0o700),
		os.WriteFile(filepath.Join(temp, "packhorse-demo-1/made-by-packhorse-demo"), nil, 0o600),
		os.MkdirAll(filepath.Join(temp, "packhorse-demo-notes/of-somebody"), 0o700),
		os.WriteFile(filepath.Join(dir, "xdg-open"), []byte(browser), 0o700),
		os.WriteFile(filepath.Join(dir, "open"), []byte(browser), 0o700),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	cmd := demoIn(temp, "PATH="+dir+":"+os.Getenv("PATH"), "DISPLAY=:0", "TERM=xterm")
	shownOn := onScreen(t, cmd)
	shown := strings.ReplaceAll(shownOn.await("when you have signed in"), "\r", "")
	part := func(pattern string) string {
		t.Helper()
		match := regexp.MustCompile(pattern).FindStringSubmatch(shown)
		if match == nil {
			t.Fatalf("%q does not match\n%s", shown, pattern)
		}
		return match[1]
	}
	run := func(script string) {
		t.Helper()
		sh := exec.Command("sh", "-ec", script)
		sh.Dir, sh.Env = dir, gittest.Env()
		if out, err := sh.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", script, err, out)
		}
	}
	url := part(`pages +(http\S+)/demo\n`)
	if !gittest.Eventually(func() bool {
		opened, _ := os.ReadFile(filepath.Join(dir, "opened"))
		return string(opened) == url+"/demo\n"
	}) {
		t.Error("the page was not opened")
	}
	run(part(`clone +(.*)`) + "\ngit -C demo fsck --strict")
	run(part(`(?s)push +(.*?)\n  search`))
	run(`test "$(git -C demo rev-parse HEAD)" = "$(git ls-remote ` + url + `/demo HEAD | cut -f 1)"`)
	body := ""
	get := func(password string, path string) (status int) {
		request, err := http.NewRequest("GET", path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if password != "" {
			request.SetBasicAuth("x", password)
		}
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		text, _ := io.ReadAll(answer.Body)
		body = string(text)
		return answer.StatusCode
	}
	search := part(`search +(\S+)`)
	if !gittest.Eventually(func() bool { return get("", search) == 200 && strings.Contains(body, "tide/tide.go") }) {
		t.Errorf("a search shows %s", body)
	}
	if status := get(part(`(phk_\S+)`), part(`status +(\S+),`)); status != 200 {
		t.Errorf("the page of the status has status %d: %s", status, body)
	}

	other := onScreen(t, demoIn(temp))
	other.await("Ctrl-C")
	if found := demos(t, temp); len(found) != 3 || filepath.Base(found[0]) == "packhorse-demo-1" {
		t.Errorf("of two demos, a killed one and another directory there are %q", found)
	}
	for _, s := range []*screen{shownOn, other} {
		for range 3 {
			s.terminal.WriteString("\x03")
		}
		if err := s.cmd.Wait(); err != nil {
			t.Errorf("after Ctrl-C: %v", err)
		}
	}
	if found := demos(t, temp); len(found) != 1 || filepath.Base(found[0]) != "packhorse-demo-notes" {
		t.Errorf("demos left %q, want packhorse-demo-notes, which none has made", found)
	}
}

// TestDemoEnds ends demos by signals, and by a listener that fails. None leaves files.
func TestDemoEnds(t *testing.T) {
	t.Parallel()
	temp := t.TempDir()
	for _, signal := range []os.Signal{syscall.SIGTERM, syscall.SIGHUP, os.Interrupt} {
		cmd := demoIn(temp)
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		io.ReadFull(out, make([]byte, 100))
		out.Close() // the last line has no reader
		cmd.Process.Signal(signal)
		if err := cmd.Wait(); err != nil || len(demos(t, temp)) > 0 {
			t.Errorf("after %v: %v, with %q", signal, err, demos(t, temp))
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	cmd := demoIn(temp)
	cmd.Args = append(cmd.Args, "--http", l.Addr().String())
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "another one with --http") ||
		len(demos(t, temp)) > 0 {
		t.Errorf("with an address in use: %v, %q: %s", err, demos(t, temp), out)
	}
}
