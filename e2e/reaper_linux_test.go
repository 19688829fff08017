package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// leavingGit is a git whose pack-objects hangs and leaves processes behind. They are a child, one in its own session,
// an orphan of that session, one with its own environment, and one of that in another session. Each writes its process
// ID into a directory.
const leavingGit = `#!/bin/sh
case "$*" in *pack-objects*) ;; *) exec git "$@" ;; esac
stay() { "$@" sh -c 'trap "" TERM INT HUP PIPE; echo >DIR/$$; while :; do sleep 1000; done' & }
stay env
stay setsid
(stay setsid)
stay env -i PATH="$PATH"
stay env -i PATH="$PATH" setsid
echo >DIR/$$
while :; do sleep 1000; done
`

const leavingCount = 6

// TestReaper kills servers whose git commands run, and have left others.
func TestReaper(t *testing.T) {
	t.Parallel()
	users := map[string]*syscall.Credential{"own": nil}
	if os.Getuid() == 0 {
		users["another"] = &syscall.Credential{Uid: 65534, Gid: 65534}
	}
	for name, user := range users {
		for _, role := range []string{"serve", "storage"} {
			if role == "storage" && user != nil {
				continue // the same as the others, in one way each
			}
			t.Run(name+" user, "+role, func(t *testing.T) {
				t.Parallel()
				testReaper(t, role, user)
			})
		}
	}
}

func testReaper(t *testing.T, role string, user *syscall.Credential) {
	dir := t.TempDir()
	pids := filepath.Join(dir, "pids")
	if err := os.Mkdir(pids, 0o700); err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(dir, "root")
	gittest.Run(t, "", "", "init", "-q", "--bare", filepath.Join(root, "a.git"))
	tree := gittest.Run(t, "", "", "--git-dir="+filepath.Join(root, "a.git"), "hash-object", "-t", "tree", "-w", "--stdin")
	commit := gittest.Run(t, "", "", "--git-dir="+filepath.Join(root, "a.git"), "commit-tree", "-m", "one",
		strings.TrimSpace(tree))
	gittest.Run(t, "", "", "--git-dir="+filepath.Join(root, "a.git"), "update-ref", "HEAD", strings.TrimSpace(commit))
	program := filepath.Join(dir, "git")
	if err := os.WriteFile(program, []byte(strings.ReplaceAll(leavingGit, "DIR", pids)), 0o755); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "packhorse.toml")
	text := fmt.Appendf(nil, "[packs]\nsource = \"git\"\n[git]\nprogram = %q\nreaper = \"on\"\n", program)
	if err := os.WriteFile(config, text, 0o644); err != nil {
		t.Fatal(err)
	}
	if user != nil {
		for _, path := range []string{dir, filepath.Dir(dir)} {
			if err := os.Chmod(path, 0o711); err != nil {
				t.Fatal(err)
			}
		}
		if out, err := exec.Command("chown", "-R", fmt.Sprintf("%d:%d", user.Uid, user.Gid),
			dir).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	p, url := startLeaving(t, role, dir, user, "--root", root, "--config", config, "--ops", "127.0.0.1:0", "--log-format",
		"json")

	clone := exec.Command("git", "clone", "-q", url+"/a", filepath.Join(t.TempDir(), "clone"))
	clone.Env = gittest.Env()
	if err := clone.Start(); err != nil {
		t.Fatal(err)
	}
	defer clone.Wait()
	defer clone.Process.Kill()
	var left []int
	eventually(t, "git has left its processes", func() bool {
		names, _ := os.ReadDir(pids)
		left = left[:0]
		for _, name := range names {
			pid, _ := strconv.Atoi(name.Name())
			left = append(left, pid)
		}
		return len(left) == leavingCount
	})
	reaper := reaperOf(p.cmd.Process.Pid)
	if reaper == 0 {
		t.Fatal("there is no reaper")
	}

	// Without a reaper there is soon another, and that knows.
	if err := syscall.Kill(reaper, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "another reaper", func() bool {
		again := reaperOf(p.cmd.Process.Pid)
		return again != 0 && again != reaper
	})
	if !strings.Contains(p.logged(), "no reaper runs") {
		t.Errorf("the log does not tell of the reaper's end:\n%s", p.logged())
	}

	p.cmd.Process.Kill()
	p.wait() // the reaper writes to its log
	for _, pid := range left {
		if !gittest.Eventually(func() bool { return syscall.Kill(pid, 0) != nil || isZombie(pid) }) {
			t.Errorf("process %d outlived the server", pid)
			syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	if !strings.Contains(p.logged(), "killed the remaining processes of its git commands") {
		t.Errorf("the log does not tell what was killed:\n%s", p.logged())
	}
}

// startLeaving starts a server, with a gateway before it if it is a storage node, and returns what to kill and where to
// clone from.
func startLeaving(t *testing.T, role, dir string, user *syscall.Credential, args ...string) (p *serverProcess,
	url string) {
	t.Helper()
	program := filepath.Join(binDir, "packhorse")
	if user != nil { // with possibly no access to binDir
		program = filepath.Join(dir, "packhorse")
		for _, name := range []string{"packhorse", "packhorse-search"} {
			if err := os.Link(filepath.Join(binDir, name), filepath.Join(dir, name)); err != nil {
				t.Skipf("no hard link to %s in a directory of another user: %v", name, err)
			}
		}
	}
	listen := "--http"
	if role == "storage" {
		listen = "--listen"
	}
	cmd := exec.Command(program, append([]string{role, listen, "127.0.0.1:0"}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: user}
	p, err := startProcess(role, cmd, dir, append(gittest.Env(), "GORACE=atexit_sleep_ms=0"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.kill() })
	if role != "storage" {
		return p, p.http
	}
	gateway := startRole(t, "gateway", "--http", "127.0.0.1:0", "--node", "a="+p.listen, "--state",
		filepath.Join(dir, "gateway"))
	return p, gateway.HTTP
}

// reaperOf returns the PID of the reaper of a server's git commands, or 0 if there is none.
func reaperOf(server int) int {
	for _, pid := range allChildrenOf(server) {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if strings.Contains(string(text), "\x00reaper\x00") && !isZombie(pid) {
			return pid
		}
	}
	return 0
}

// TestReaperIsSmall checks that a reaper starts before the initialisation of large packages.
func TestReaperIsSmall(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(filepath.Join(binDir, "packhorse"), "reaper", "json", strings.Repeat("0", 32))
	cmd.Env = append(gittest.Env(), "GODEBUG=inittrace=1", "GORACE=atexit_sleep_ms=0")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var trace bytes.Buffer
	cmd.Stderr = &trace
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	in.Close() // its server has ended
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v: %s", err, &trace)
	}
	if !strings.Contains(trace.String(), "init os ") {
		t.Fatalf("no trace: %s", &trace)
	}
	for _, large := range []string{"client_golang", "chroma", "go-enry"} {
		if strings.Contains(trace.String(), large) {
			t.Errorf("%s is initialised before", large)
		}
	}
}
