package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// activated starts packhorse with listening sockets, as systemd does: the descriptors from 3 on, and their names.
func activated(t *testing.T, names string, files []*os.File, args ...string) *serverProcess {
	t.Helper()
	script := fmt.Sprintf("LISTEN_PID=$$ LISTEN_FDS=%d LISTEN_FDNAMES=%s exec %s \"$@\"", len(files), names,
		filepath.Join(binDir, "packhorse"))
	cmd := exec.Command("sh", append([]string{"-c", script, "sh"}, args...)...)
	cmd.ExtraFiles = files
	p, err := startProcess(args[0], cmd, t.TempDir(), append(gittest.Env(), "GORACE=atexit_sleep_ms=0"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Log(p.logged())
		}
	})
	return p
}

// listening returns a listening socket that only the test owns.
func listening(t *testing.T) (file *os.File, address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if file, err = l.(*net.TCPListener).File(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	return file, l.Addr().String()
}

// TestRestartRefusesNoRequest replaces a server with inherited sockets again and again. Meanwhile clients fetch, push
// and send small requests, each on a new connection, and nothing fails. The next server starts while the previous one
// is still ending.
func TestRestartRefusesNoRequest(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	root := filepath.Join(dir, "root")
	if err := os.CopyFS(filepath.Join(root, "app.git"), os.DirFS(linear(t).Dir)); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "packhorse.toml")
	text := fmt.Sprintf("root = %q\nstate = %q\n[http]\npublic_read = true\n[push]\nenabled = true\n", root,
		filepath.Join(dir, "state"))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	token := createToken(t, "me", "--config", config)
	public, address := listening(t)
	private, ops := listening(t)
	files := []*os.File{public, private}
	server := activated(t, "http:ops", files, "serve", "--config", config, "--log-format", "json", "--ops", ops)

	ctx, stop := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	var done atomic.Int64
	work := filepath.Join(dir, "work")
	gittest.Run(t, dir, "", "clone", "-q", "http://"+address+"/app", work)
	each := func(what string, do func(i int) error) {
		clients.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				if err := do(i); err != nil {
					t.Errorf("%s %d: %v", what, i, err)
					return
				}
				done.Add(1)
			}
		})
	}
	fresh := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
	for range 4 {
		each("request", func(int) error {
			response, err := fresh.Get("http://" + address + "/app/info/refs?service=git-upload-pack")
			if err != nil {
				return err
			}
			defer response.Body.Close()
			if response.StatusCode != http.StatusOK {
				return fmt.Errorf("status %s", response.Status)
			}
			_, err = io.Copy(io.Discard, response.Body)
			return err
		})
	}
	git := func(args ...string) error {
		cmd := exec.Command("git", args...)
		cmd.Env = gittest.Env()
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("git %s: %w\n%s", strings.Join(args, " "), err, out)
		}
		return nil
	}
	each("clone", func(i int) error {
		return git("clone", "-q", "http://"+address+"/app", filepath.Join(dir, fmt.Sprint("clone-", i)))
	})
	each("push", func(i int) error {
		return git("-C", work, "push", "-q", "http://me:"+token+"@"+address+"/app",
			fmt.Sprint("HEAD:refs/heads/push-", i))
	})

	for range 3 {
		before := done.Load()
		for done.Load() < before+20 && !t.Failed() {
			time.Sleep(5 * time.Millisecond)
		}
		old := server
		old.cmd.Process.Signal(syscall.SIGTERM)
		server = activated(t, "http:ops", files, "serve", "--config", config, "--log-format", "json", "--ops", ops)
		if err := old.wait(); err != nil {
			t.Errorf("the old server ended: %v", err)
		}
	}
	stop()
	clients.Wait()
	server.cmd.Process.Signal(syscall.SIGTERM)
	if err := server.wait(); err != nil {
		t.Errorf("the last server ended: %v", err)
	}
}

// TestGatewaysOverlap: with inherited sockets a gateway takes over as soon as the one before it accepts no more, whose
// requests go on.
func TestGatewaysOverlap(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("the test has no way to see what a process waits for")
	}
	dir := t.TempDir()
	root := filepath.Join(dir, "root")
	if err := os.CopyFS(filepath.Join(root, "app.git"), os.DirFS(linear(t).Dir)); err != nil {
		t.Fatal(err)
	}
	sockets, err := os.MkdirTemp("", "ph") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(sockets)
	node := startRole(t, "storage", "--root", root, "--state", filepath.Join(dir, "node"), "--listen",
		"unix:"+filepath.Join(sockets, "s")).Listen
	config := filepath.Join(dir, "gateway.toml")
	if err := os.WriteFile(config, fmt.Appendf(nil, "state = %q\n[http]\npublic_read = true\n[[node]]\nname = "+
		"\"a\"\naddress = %q\n", filepath.Join(dir, "state"), node), 0o600); err != nil {
		t.Fatal(err)
	}
	public, address := listening(t)
	private, ops := listening(t)
	start := func() *serverProcess {
		return activated(t, "http:ops", []*os.File{public, private}, "gateway", "--config", config, "--log-format", "json",
			"--ops", ops)
	}
	ask := func(keep net.Conn) error {
		fmt.Fprint(keep, "GET /app/info/refs?service=git-upload-pack HTTP/1.1\r\nHost: localhost\r\n"+
			"Git-Protocol: version=2\r\n\r\n")
		response, err := http.ReadResponse(bufio.NewReader(keep), nil)
		if err == nil && response.StatusCode != http.StatusOK {
			err = fmt.Errorf("status %s", response.Status)
		}
		return err
	}
	old := start()
	// A request whose body is still to come: the old gateway has to wait for it.
	slow, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	const request = "0014command=ls-refs\n0000"
	fmt.Fprintf(slow, "POST /app/git-upload-pack HTTP/1.1\r\nHost: localhost\r\nContent-Type: "+
		"application/x-git-upload-pack-request\r\nGit-Protocol: version=2\r\nExpect: 100-continue\r\nContent-Length: "+
		"%d\r\n\r\n", len(request))
	in := bufio.NewReader(slow)
	if line, err := in.ReadString('\n'); err != nil || !strings.Contains(line, "100 Continue") {
		t.Fatalf("got %q, %v; want 100 Continue", line, err)
	}
	old.cmd.Process.Signal(syscall.SIGTERM)
	next := start() // serves while the old one still runs
	select {
	case <-old.ended:
		t.Error("the old gateway has ended before its request")
	default:
	}
	other, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := ask(other); err != nil {
		t.Errorf("the new gateway: %v", err)
	}
	io.WriteString(slow, request)
	_, _ = in.ReadString('\n')
	response, err := http.ReadResponse(in, nil)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Errorf("a request in progress at the old gateway: got %v, %v; want 200", response, err)
	} else if body, err := io.ReadAll(response.Body); err != nil || !strings.Contains(string(body), "refs/heads/main") {
		t.Errorf("got %q, %v; want refs with refs/heads/main", body, err)
	}
	if err := old.wait(); err != nil {
		t.Errorf("the old gateway ended: %v", err)
	}
	if out, err := exec.Command(filepath.Join(binDir, "packhorse"), "nodes", "--config",
		config).CombinedOutput(); err != nil {
		t.Errorf("the new gateway's admin socket: %v\n%s", err, out)
	}
	next.cmd.Process.Signal(syscall.SIGTERM)
	if err := next.wait(); err != nil {
		t.Errorf("the new gateway ended: %v", err)
	}
}
