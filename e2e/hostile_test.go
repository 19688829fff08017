package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// The tests in hostile*_test.go check the built binary over a socket: its responses to hostile input, its memory, its
// log, and that it still serves other clients. docs/reference/limits.md lists the limits.

// hostileLimit is how long anything may take that must happen, on the slowest of machines.
const hostileLimit = 2 * time.Minute

// scaled returns n, or a twentieth of it with -short and with the race detector, which is several times slower.
func scaled(n int) int {
	if raceDetector || testing.Short() {
		return n / 20
	}
	return n
}

// victim is a server under attack.
type victim struct {
	*serverProcess
	t    *testing.T
	root string

	errorsLogged bool // errors in the log are part of the test
}

// attack starts a server for the repositories that prepare makes below root; "good.git" is always there, and has to be
// served whatever happens. Config is TOML. At the test's end the server has to end cleanly.
func attack(t *testing.T, config string, prepare func(root string)) *victim {
	t.Helper()
	return attackIn(t, nil, config, prepare)
}

// attackIn is attack with more in the server's environment.
func attackIn(t *testing.T, more []string, config string, prepare func(root string)) *victim {
	t.Helper()
	dir := t.TempDir()
	v := &victim{t: t, root: filepath.Join(dir, "repos")}
	for _, d := range []string{v.root, filepath.Join(dir, "home"), filepath.Join(dir, "tmp")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.CopyFS(filepath.Join(v.root, "good.git"), os.DirFS(linear(t).Dir)); err != nil {
		t.Fatal(err)
	}
	if prepare != nil {
		prepare(v.root)
	}
	// what is counted of a victim (commits visited, descriptors, memory) is an attack's, and not an index's
	if !strings.Contains(config, "[search]") {
		config += "[search]\nenabled = false\n"
	}
	if !strings.Contains(config, "[watchdog]") { // nor its own probes'
		config += "[watchdog]\nenabled = false\n"
	}
	toml := filepath.Join(dir, "packhorse.toml")
	if err := os.WriteFile(toml, []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	env := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + filepath.Join(dir, "home"),
		"TMPDIR=" + filepath.Join(dir, "tmp"), "GORACE=atexit_sleep_ms=0"}
	p, err := startServer(dir, append(env, more...), []string{
		"serve", "--root", v.root, "--state", filepath.Join(dir, "state"), "--config", toml,
		"--http", "127.0.0.1:0", "--ops", "127.0.0.1:0", "--log-format", "json",
	})
	if err != nil {
		t.Fatal(err)
	}
	v.serverProcess = p
	v.state = filepath.Join(dir, "state")
	t.Cleanup(v.end)
	return v
}

// end holds the server to a clean end.
func (v *victim) end() {
	if v.t.Failed() {
		defer func() { v.t.Logf("the server's log ends:\n%s", tail(v.logged(), 8000)) }()
	}
	children := childrenOf(v.cmd.Process.Pid)
	_ = v.cmd.Process.Signal(syscall.SIGTERM)
	if err := v.wait(); err != nil {
		v.t.Errorf("the server ended with %v", err)
	}
	for _, pid := range children {
		if syscall.Kill(pid, 0) == nil && !isZombie(pid) {
			v.t.Errorf("process %d outlived the server", pid)
		}
	}
	v.leftNothing()
	log := v.logged()
	for _, bad := range []string{"DATA RACE", "panic", "goroutine "} {
		if strings.Contains(log, bad) {
			v.t.Errorf("the log has a race or a panic (%s)", bad)
		}
	}
	for line := range strings.Lines(log) {
		if !json.Valid([]byte(line)) || len(line) > 32<<10 {
			v.t.Errorf("a line of the log is no JSON, or longer than any should be: %.300q", line)
		}
	}
	if !v.errorsLogged && strings.Contains(log, `"level":"ERROR"`) {
		v.t.Errorf("the log has errors, want none:\n%s", v.logged())
	}
}

func tail(s string, n int) string { return s[max(0, len(s)-n):] }

// leftNothing finds temporary files.
func (v *victim) leftNothing() {
	v.t.Helper()
	for _, pattern := range []string{"cache/tmp/*", "scratch/tags-*", "scratch/*/objects/*", "scratch/*/refs/*",
		"../tmp/*"} {
		if left, _ := filepath.Glob(filepath.Join(v.state, pattern)); len(left) > 0 {
			v.t.Errorf("left behind: %q", left)
		}
	}
}

// unharmed checks that the server serves the good repository and has no child process for clients that have left. Its
// memory since the last call of fresh must be at most so many bytes.
func (v *victim) unharmed(memory int64) {
	v.t.Helper()
	v.serves("good")
	eventually(v.t, "the server's processes end", func() bool { return len(childrenOf(v.cmd.Process.Pid)) == 0 })
	eventually(v.t, "requests end", func() bool {
		return v.metric("packhorse_lane_running") == 0 && v.metric("packhorse_request_memory_bytes") == 0
	})
	v.took("all in all", memory)
}

// took holds the server to having had at most so many bytes of memory at any time since fresh.
func (v *victim) took(what string, memory int64) {
	v.t.Helper()
	if serverHasRaceDetector() {
		memory *= 8
	}
	peak := v.memory("VmHWM")
	if peak > memory {
		v.t.Errorf("%s: the server took up to %d bytes of memory; more than %d are too many", what, peak, memory)
	}
	if testing.Verbose() {
		v.t.Logf("%s: up to %d MB", what, peak>>20)
	}
}

// fresh forgets how much memory the server took until now.
func (v *victim) fresh() {
	// 5: reset the peak (proc(5), "/proc/pid/clear_refs"). Where that is not allowed, the bounds hold for all that came
	// before.
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", v.cmd.Process.Pid), []byte("5"), 0o200)
}

// memory reads one of the sizes in /proc/PID/status, in bytes; 0 where there is none.
func (v *victim) memory(name string) int64 {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", v.cmd.Process.Pid))
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			n, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return n << 10
		}
	}
	return 0
}

// serves clones a repository, in several attempts if need be, and holds the clone to one by file path.
func (v *victim) serves(name string) {
	v.t.Helper()
	dir := filepath.Join(v.t.TempDir(), "clone")
	eventually(v.t, name+" can be cloned", func() bool {
		_, err := gittest.At(v.t, "").Try("clone", "--quiet", "--mirror", v.http+"/"+name, dir)
		if err != nil {
			v.t.Log(err)
		}
		return err == nil
	})
	got, want := gittest.At(v.t, dir), gittest.At(v.t, filepath.Join(v.root, name+".git"))
	got.Git("fsck", "--full")
	if a, b := got.Git("for-each-ref"), want.Git("for-each-ref"); a != b {
		v.t.Errorf("a clone of %s has other refs:\n%s\n\n%s", name, a, b)
	}
	if err := os.RemoveAll(dir); err != nil {
		v.t.Error(err)
	}
}

// metric sums the series that a selector matches, as in the stories.
func (v *victim) metric(selector string) float64 {
	v.t.Helper()
	resp, err := http.Get(v.ops + "/metrics")
	if err != nil {
		v.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		v.t.Fatal(err)
	}
	return sumSeries(string(text), selector)
}

// record waits for the log's line about the request whose client called itself agent.
func (v *victim) record(agent string) (record logRecord) {
	v.t.Helper()
	eventually(v.t, "the log tells of the request by "+agent, func() bool {
		for line := range strings.Lines(v.logged()) {
			if strings.Contains(line, agent) && json.Unmarshal([]byte(line), &record) == nil && record.Msg == "request" &&
				record.Agent == agent {
				return true
			}
		}
		return false
	})
	return record
}

// logRecord is a line of the log about a request.
type logRecord struct {
	Msg, Operation, Result, Repository, Client, Agent, Error string
	Status                                                   int
}

// eventually fails the test if a condition does not become true; what describes it.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	if !gittest.Eventually(is) {
		t.Fatalf("timed out waiting for this: %s", what)
	}
}

// connect opens a connection that writes what it likes.
func (v *victim) connect() *net.TCPConn {
	v.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(v.http, "http://"))
	if err != nil {
		v.t.Fatal(err)
	}
	v.t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(hostileLimit))
	return conn.(*net.TCPConn)
}

// answered is a response.
type answered struct {
	status int // 0: nothing that is HTTP
	header http.Header
	body   string
	err    error // the answer is not whole
}

// send writes a request, however long, and reads one response, which may arrive before the end of the request.
func (v *victim) send(request ...io.Reader) answered {
	v.t.Helper()
	conn := v.connect()
	defer conn.Close()
	go io.Copy(conn, io.MultiReader(request...))
	return readAnswer(bufio.NewReader(conn))
}

func readAnswer(r *bufio.Reader) answered {
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		return answered{err: err}
	}
	body, err := io.ReadAll(resp.Body)
	return answered{resp.StatusCode, resp.Header, string(body), err}
}

// fetchHead is the head of a request of protocol version 2, up to and with the blank line.
func fetchHead(repo, agent string, headers ...string) string {
	return "POST /" + repo + "/git-upload-pack HTTP/1.1\r\nHost: localhost\r\nGit-Protocol: version=2\r\n" +
		"Content-Type: application/x-git-upload-pack-request\r\nUser-Agent: " + agent + "\r\n" +
		strings.Join(append(headers, "", ""), "\r\n")
}

// post sends the body of a request of protocol version 2.
func (v *victim) post(repo, agent string, body []byte, headers ...string) answered {
	v.t.Helper()
	headers = append(headers, fmt.Sprintf("Content-Length: %d", len(body)))
	return v.send(strings.NewReader(fetchHead(repo, agent, headers...)), bytes.NewReader(body))
}

// get sends a request for the advertisement, with the target as it is.
func (v *victim) get(target, agent string, headers ...string) answered {
	v.t.Helper()
	headers = append(headers, "Git-Protocol: version=2", "User-Agent: "+agent, "", "")
	return v.send(strings.NewReader("GET " + target + " HTTP/1.1\r\nHost: localhost\r\n" +
		strings.Join(headers, "\r\n")))
}

// packets makes a request of lines; "" is a flush, "|" a delimiter.
func packets(lines ...string) []byte {
	var b bytes.Buffer
	for _, line := range lines {
		switch line {
		case "":
			b.WriteString("0000")
		case "|":
			b.WriteString("0001")
		default:
			fmt.Fprintf(&b, "%04x%s\n", len(line)+5, line)
		}
	}
	return b.Bytes()
}

// fetching is a fetch command with the given arguments.
func fetching(arguments ...string) []byte {
	return packets(append(append([]string{"command=fetch", "object-format=sha1", "|"}, arguments...), "")...)
}

// many repeats what line gives for 0 to n-1 as a text of packets.
func many(n int, line func(i int) string) []byte {
	var b bytes.Buffer
	for i := range n {
		text := line(i)
		fmt.Fprintf(&b, "%04x%s\n", len(text)+5, text)
	}
	return b.Bytes()
}

// fakeID is an object ID that no object has.
func fakeID(i int) string { return fmt.Sprintf("%032x%08x", 0xbad, i) }

// idOf resolves a revision of a repository below the root.
func (v *victim) idOf(repo, revision string) string {
	v.t.Helper()
	return gittest.At(v.t, filepath.Join(v.root, repo+".git")).ID(revision).String()
}

// wantsError holds an answer to being an ERR packet with a text, and the log to telling the same.
func (v *victim) wantsError(agent string, a answered, text string) {
	v.t.Helper()
	if a.err != nil || a.status != http.StatusOK || !strings.Contains(a.body, "ERR ") || !strings.Contains(a.body, text) {
		v.t.Errorf("%s: status %d (%v): %.300q; want an ERR packet with %q", agent, a.status, a.err, a.body, text)
		return
	}
	if r := v.record(agent); !strings.Contains(r.Error, text) || r.Result == "ok" || r.Result == "internal" ||
		!strings.HasPrefix(r.Client, "127.0.0.1:") {
		v.t.Errorf("%s: the log says %+v; want the error %q", agent, r, text)
	}
}

// wantsStatus holds an answer to a status and a text.
func (v *victim) wantsStatus(agent string, a answered, status int, text string) {
	v.t.Helper()
	if a.err != nil || a.status != status || !strings.Contains(a.body, text) {
		v.t.Errorf("%s: status %d (%v): %.300q; want %d with %q", agent, a.status, a.err, a.body, status, text)
	}
}

// wantsPack holds an answer to having a pack and its end.
func (v *victim) wantsPack(agent string, a answered) {
	v.t.Helper()
	if a.err != nil || a.status != http.StatusOK || !strings.Contains(a.body, "packfile\n") ||
		!strings.HasSuffix(a.body, "0000") || strings.Contains(a.body, "ERR ") {
		v.t.Errorf("%s: status %d (%v): %.300q; want a pack", agent, a.status, a.err, a.body)
	}
}

// parallel runs fn n times at once.
func parallel(n int, fn func(i int)) {
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() { fn(i) })
	}
	group.Wait()
}
