package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// proxyHeader describes a client in the PROXY protocol, as a load balancer does.
const proxyHeader = "PROXY TCP4 192.0.2.7 192.0.2.8 5555 80\r\n"

const sshToo = "[ssh]\naddress = \"127.0.0.1:0\"\nanonymous = true\n"

// sshBanner sends what a client of SSH begins with, and gives the lines that come back.
func (v *victim) sshBanner(begin string) string {
	v.t.Helper()
	at := regexp.MustCompile(`ssh://(127\.0\.0\.1:\d+)`).FindStringSubmatch(v.logged())
	if at == nil {
		v.t.Fatal("the log does not name the SSH listener")
	}
	c, err := net.Dial("tcp", at[1])
	if err != nil {
		v.t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	io.WriteString(c, begin+"SSH-2.0-test\r\nnonsense that ends it\r\n\r\n\r\n\r\n\r\n")
	got, _ := io.ReadAll(c)
	return string(got)
}

// TestProxyProtocol checks that HTTP and SSH see the client's address behind a load balancer, and that the kernel still
// copies packs.
func TestProxyProtocol(t *testing.T) {
	t.Parallel()
	v := attack(t, "trusted_proxies = [\"127.0.0.0/8\"]\n[http]\nproxy_protocol = true\n"+sshToo+"proxy_protocol = true\n",
		func(root string) {
			if err := os.CopyFS(filepath.Join(root, "blobs.git"), os.DirFS(blobs(t).Dir)); err != nil {
				t.Fatal(err)
			}
		})
	body := fetching("want "+v.idOf("blobs", "main"), "done")
	for range 2 { // made, and from the cache
		request := proxyHeader + fetchHead("blobs", "balanced", fmt.Sprintf("Content-Length: %d", len(body)),
			"X-Forwarded-For: 6.6.6.6") + string(body)
		if a := v.send(strings.NewReader(request)); a.status != 200 {
			t.Fatalf("a fetch behind a load balancer: %d %v %.200q", a.status, a.err, a.body)
		}
	}
	if n := v.metric(`packhorse_copy_bytes_total{path="kernel"}`); n < 2<<20 {
		t.Errorf("%v bytes went by the kernel", n)
	}
	if log := v.logged(); strings.Count(log, `"client":"192.0.2.7:5555"`) != 2 || strings.Contains(log, "6.6.6.6") {
		t.Errorf("the log does not name the client:\n%s", tail(log, 2000))
	}
	withoutHeader := "GET /good/info/refs?service=git-upload-pack HTTP/1.1\r\nHost: localhost\r\n\r\n"
	if a := v.send(strings.NewReader(withoutHeader)); a.status != 400 ||
		!strings.Contains(a.body, "has to begin with a header of the PROXY protocol") {
		t.Errorf("without a header: %d %v %q", a.status, a.err, a.body)
	}
	if got := v.sshBanner(proxyHeader); !strings.HasPrefix(got, "SSH-2.0-") {
		t.Errorf("SSH behind a load balancer: %q", got)
	}
	eventually(t, "SSH sees the client", func() bool {
		return regexp.MustCompile(`SSH login failed","client":"192\.0\.2\.7:5555"`).MatchString(v.logged())
	})
	if got := v.sshBanner(""); !strings.HasPrefix(got, "a connection from a trusted proxy has to begin") {
		t.Errorf("SSH without a header: %q", got)
	}
}

// TestForwardedFor: requests of git's count for the client that a trusted proxy names: in the log, and where guesses
// are counted.
func TestForwardedFor(t *testing.T) {
	t.Parallel()
	v := attack(t, "trusted_proxies = [\"127.0.0.0/8\"]\n[auth]\nguesses = 2\n"+sshToo, nil)
	guesses := 0
	ask := func(client string) int {
		guesses++ // the same wrong token does not count twice
		return v.get("/good/info/refs?service=git-upload-pack", "guesser",
			fmt.Sprintf("Authorization: Bearer phk_wrong%d", guesses),
			"X-Forwarded-For: 6.6.6.6, "+client).status
	}
	for i, want := range []int{401, 401, 429} {
		if got := ask("192.0.2.7"); got != want {
			t.Errorf("guess %d: %d, want %d", i, got, want)
		}
	}
	if got := ask("192.0.2.8"); got != 401 {
		t.Errorf("another client behind the same proxy: %d, want 401", got)
	}
	if log := v.logged(); !regexp.MustCompile(`"client":"192\.0\.2\.7",.*"proxy":"127\.0\.0\.1:\d+"`).MatchString(log) ||
		strings.Contains(log, "6.6.6.6") {
		t.Errorf("the log does not name client and proxy:\n%s", tail(log, 2000))
	}
	// Without proxy_protocol both ports refuse a header and report the reason.
	const why = "a PROXY protocol header from an address that may not send one"
	conn := v.connect()
	defer conn.Close()
	io.WriteString(conn, proxyHeader+"GET /good/info/refs?service=git-upload-pack HTTP/1.1\r\nHost: localhost\r\n\r\n")
	if a := readAnswer(bufio.NewReader(conn)); a.status != 400 || !strings.Contains(a.body, why) {
		t.Errorf("a header that is not expected: %d %v %q", a.status, a.err, a.body)
	}
	if got := v.sshBanner(proxyHeader); !strings.Contains(got, why) {
		t.Errorf("SSH with a header that is not expected: %q", got)
	}
	eventually(t, "the log has the reason for both", func() bool { return strings.Count(v.logged(), why) >= 2 })
}

// TestDescriptorLimits: at startup the soft limit of descriptors is raised to the hard one, and the limits of
// connections follow it.
func TestDescriptorLimits(t *testing.T) {
	t.Parallel()
	limits := func(ulimit string) (http float64, log string) {
		t.Helper()
		dir := t.TempDir()
		args := []string{
			"-c", ulimit + ` && exec "$0" "$@"`, filepath.Join(binDir, "packhorse"),
			"serve", "--root", dir, "--http", "127.0.0.1:0", "--ops", "127.0.0.1:0", "--log-format", "json",
		}
		p, err := startProcess("serve", exec.Command("sh", args...), dir, append(gittest.Env(), "GORACE=atexit_sleep_ms=0"))
		if err != nil {
			t.Fatal(err)
		}
		v := &victim{serverProcess: p, t: t}
		http = v.metric(`packhorse_connections_limit{listener="http"}`)
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		if err := p.wait(); err != nil {
			t.Errorf("the server ended with %v", err)
		}
		return http, p.logged()
	}
	const few = "few file descriptors limit the number of connections"
	if n, log := limits("ulimit -Sn 300 && ulimit -Hn 8000"); n < 3900 || n > 4000 || strings.Contains(log, few) {
		t.Errorf("with a hard limit of 8,000 descriptors: %v connections\n%s", n, log)
	}
	if n, log := limits("ulimit -n 300"); n != 150 || !strings.Contains(log, few) {
		t.Errorf("with 300 descriptors: %v connections, and the log:\n%s", n, log)
	}
}
