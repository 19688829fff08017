package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// quick is a watchdog that has little patience, so that a test needs little, too.
const quick = "[watchdog]\nstall = \"500ms\"\n"

// dumps lists the dumps below a state directory, with those that are being written.
func dumps(state string) []string {
	list, _ := filepath.Glob(filepath.Join(state, "dumps", "*Z-*"))
	return list
}

// tellDumps logs what the dumps below a state directory say, should the test fail.
func tellDumps(t *testing.T, state string) {
	t.Cleanup(func() {
		if t.Failed() {
			for _, dump := range dumps(state) {
				t.Logf("%s:\n%s%s%.8000s", dump, dumpFile(dump, "why.txt"), dumpFile(dump, "notes.txt"),
					dumpFile(dump, "goroutines.txt"))
			}
		}
	})
}

// dumpFile reads the existing part of a file of a dump.
func dumpFile(dump, file string) string {
	text, err := os.ReadFile(filepath.Join(dump, file))
	if err != nil {
		text, _ = os.ReadFile(filepath.Join(strings.TrimSuffix(dump, ".part"), file)) // it became whole meanwhile
	}
	return string(text)
}

// TestWatchdogLockUp does not read the server's log, so that the goroutine that writes a line holds the log's lock and
// 1,400 requests wait for it. The watchdog writes down which goroutine holds it. A dump on demand still works.
func TestWatchdogLockUp(t *testing.T) {
	t.Parallel()
	const clients = 1400
	dir := t.TempDir()
	root, state, config := filepath.Join(dir, "repos"), filepath.Join(dir, "state"), filepath.Join(dir, "packhorse.toml")
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(config, []byte(quick+"[search]\nenabled = false\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	tellDumps(t, state)
	log, stderr, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	if _, err := unix.FcntlInt(log.Fd(), unix.F_SETPIPE_SZ, 4096); err != nil {
		t.Fatal(err)
	}
	server := exec.Command(filepath.Join(binDir, "packhorse"), "serve", "--root", root, "--state", state, "--config",
		config,
		"--http", "127.0.0.1:0", "--ops", "127.0.0.1:0", "--log-format", "json")
	server.Stderr = stderr
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	stderr.Close()
	lines := bufio.NewReader(log)
	defer func() {
		server.Process.Signal(syscall.SIGTERM)
		var rest bytes.Buffer
		io.Copy(&rest, lines)
		if err := server.Wait(); err != nil {
			t.Errorf("the server ended with %v: %s", err, tail(rest.String(), 4000))
		}
	}()
	var at struct{ Msg, HTTP string }
	for at.Msg != "serving" {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(line, &at); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
	}
	to, err := url.Parse(at.HTTP)
	if err != nil {
		t.Fatal(err)
	}
	for range clients {
		conn, err := net.Dial("tcp", to.Host)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn,
			"GET /none.git/info/refs?service=git-upload-pack HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "a dump that tells who holds the log's lock", func() bool {
		for _, dump := range dumps(state) {
			stacks := dumpFile(dump, "stacks.txt")
			if strings.Contains(dumpFile(dump, "why.txt"), `the probe "log" has had no answer`) &&
				strings.Contains(stacks, "os.(*File).Write") && strings.Contains(stacks, "slog.(*commonHandler).handle") &&
				strings.Count(stacks, "[sync.Mutex.Lock") >= 1000 {
				return true
			}
		}
		return false
	})
	out, err := exec.Command(filepath.Join(binDir, "packhorse"), "debug", "dump", "--state", state).Output()
	if err != nil || !strings.HasPrefix(string(out), filepath.Join(state, "dumps")) {
		t.Errorf("packhorse debug dump: %v, %s", err, out)
	}
}

// TestWatchdogStoppedDisk stops the disk of the repositories. A dump contains the goroutines that wait for it.
func TestWatchdogStoppedDisk(t *testing.T) {
	t.Parallel()
	disk := gittest.NewDisk(t)
	dir := t.TempDir()
	state, config := filepath.Join(dir, "state"), filepath.Join(dir, "packhorse.toml")
	if err := os.WriteFile(config, []byte(quick+"[search]\nenabled = false\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	p, err := startServer(dir, os.Environ(), []string{"serve", "--root", disk.Dir, "--state", state, "--config", config,
		"--public-read",
		"--http", "127.0.0.1:0", "--ops", "127.0.0.1:0", "--log-format", "json"})
	if err != nil {
		t.Fatal(err)
	}
	defer p.kill()
	tellDumps(t, state)
	disk.Stop()
	conn, err := net.Dial("tcp", strings.TrimPrefix(p.http, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn,
		"GET /none.git/info/refs?service=git-upload-pack HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a dump that tells who waits for the disk", func() bool {
		for _, dump := range dumps(state) {
			if strings.Contains(dump, "-probe-") && strings.Contains(dumpFile(dump, "why.txt"),
				`the probe "repositories" has had no answer`) &&
				strings.Contains(dumpFile(dump, "stacks.txt"), "internal/node/storage.") {
				return true
			}
		}
		return false
	})
	disk.Release()
}

// TestWatchdogStoppedGit stops a git process, so that another one cannot start. A dump on demand names the process.
func TestWatchdogStoppedGit(t *testing.T) {
	t.Parallel()
	git, err := exec.LookPath("git")
	if err != nil {
		t.Fatal(err)
	}
	script := filepath.Join(t.TempDir(), "git")
	text := fmt.Sprintf("#!/bin/sh\ncase \"$*\" in *pack-objects*) kill -STOP $$;; esac\nexec %s \"$@\"\n", git)
	if err := os.WriteFile(script, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	v := attack(t, fmt.Sprintf("[packs]\nsource = \"git\"\n[git]\nprogram = %q\n[watchdog]\n", script), nil)
	var clone sync.WaitGroup
	defer clone.Wait()
	into := filepath.Join(t.TempDir(), "clone")
	clone.Go(func() { _ = exec.Command("git", "clone", "--quiet", v.http+"/good", into).Run() })
	stopped := 0
	eventually(t, "git to be stopped", func() bool {
		for _, child := range childrenOf(v.cmd.Process.Pid) {
			stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", child))
			if strings.Contains(string(stat), ") T ") {
				stopped = child
			}
		}
		return stopped != 0
	})
	out, err := exec.Command(filepath.Join(binDir, "packhorse"), "debug", "dump", "--state", v.state).Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	dump := strings.TrimSpace(string(out))
	for file, want := range map[string]string{"processes.txt": fmt.Sprintf("\n%d ", stopped), "top.json": `"good"`,
		"commands.txt": "pack-objects"} {
		if !strings.Contains(dumpFile(dump, file), want) {
			t.Errorf("%s does not tell of %q:\n%.2000s", file, want, dumpFile(dump, file))
		}
	}
	for line := range strings.Lines(dumpFile(dump, "processes.txt")) {
		if f := strings.Fields(line); len(f) > 4 && f[0] == fmt.Sprint(stopped) && f[4] != "T" {
			t.Errorf("it does not say that the process is stopped: %s", line)
		}
	}
	if err := syscall.Kill(stopped, syscall.SIGCONT); err != nil {
		t.Error(err)
	}
}

// TestQuit sends SIGQUIT: the first one writes a dump, and the second one ends the process as it does any Go program. A
// stopped process is examined from outside.
func TestQuit(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "repos"), 0o755); err != nil {
		t.Fatal(err)
	}
	state := filepath.Join(dir, "state")
	p, err := startServer(dir, os.Environ(), []string{"serve", "--root", filepath.Join(dir, "repos"), "--state", state,
		"--http", "127.0.0.1:0", "--ops", "127.0.0.1:0", "--log-format", "json"})
	if err != nil {
		t.Fatal(err)
	}
	defer p.kill()
	tellDumps(t, state)
	pid := p.cmd.Process.Pid
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(binDir, "packhorse"), "debug", "dump", "--state", state, "--patience", "100ms")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err == nil || !strings.Contains(stderr.String(), fmt.Sprintf("kill -ABRT %d", pid)) ||
		!strings.Contains(string(out), fmt.Sprintf("\n%d ", pid)) {
		t.Errorf("of a stopped process: %v\n%s\n%.2000s", err, &stderr, out)
	}
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGQUIT); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a dump for the signal", func() bool {
		for _, dump := range dumps(state) {
			if strings.Contains(dumpFile(dump, "stacks.txt"), "followQuits") {
				return true
			}
		}
		return false
	})
	for ended := false; !ended; { // however long the machine takes, two of them come soon after each other
		_ = syscall.Kill(pid, syscall.SIGQUIT)
		select {
		case <-p.ended:
			ended = true
		case <-time.After(time.Second):
		}
	}
	if log := p.logged(); !strings.Contains(log, "SIGQUIT: quit") {
		t.Errorf("the end of the log: %s", tail(log, 2000))
	}
}
