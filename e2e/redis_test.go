package e2e

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// TestGatewaysShareRedis: what is pushed through one gateway is what the other one answers, from its node or a real
// Redis. When that is killed requests go on.
func TestGatewaysShareRedis(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("redis-server"); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("there is no redis-server; install it")
		}
		t.Skip("*** There is no redis-server: gateways that share one are NOT tested. ***")
	}
	p := &pair{T: t, dir: t.TempDir(), base: map[*serverProcess]int{}}
	if err := os.CopyFS(filepath.Join(p.dir, "repos", "app.git"), os.DirFS(linear(t).Dir)); err != nil {
		t.Fatal(err)
	}
	redis, socket := startRedis(t)
	p.node = p.start("storage", "--root", filepath.Join(p.dir, "repos"), "--state", filepath.Join(p.dir, "node"),
		"--listen", "127.0.0.1:0")
	config := p.write("gateway.toml", fmt.Sprintf("[auth]\ntokens = %q\n[http]\npublic_read = true\n[resolver]\nredis = "+
		"%q\nredis_timeout = \"30s\"\n",
		filepath.Join(p.dir, "tokens"), "unix://"+socket), 0o600)
	token := createToken(t, "ci", "--config", config)
	gateways := make([]*serverProcess, 2)
	for i := range gateways {
		gateways[i] = p.start("gateway", "--config", config, "--state", filepath.Join(p.dir, fmt.Sprint("gateway", i)),
			"--http", "127.0.0.1:0", "--node", "node="+p.node.listen)
	}
	u, err := url.Parse(gateways[0].http + "/app")
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword("ci", token)
	work := gittest.At(p, filepath.Join(p.dir, "work"))
	gittest.Run(t, p.dir, "", "clone", "--quiet", u.String(), work.Dir)
	push := func(text string) (id string) {
		t.Helper()
		work.Git("-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "--quiet", "--allow-empty", "-m", text)
		work.Git("push", "--quiet", "origin", "HEAD:refs/heads/main")
		return strings.TrimSpace(work.Git("rev-parse", "HEAD"))
	}
	answers := func(s *serverProcess, id string) bool { return strings.Contains(resolved(t, s), `"oid":"`+id+`"`) }
	for i := range 5 {
		id := push(fmt.Sprint(i))
		if !answers(gateways[0], id) {
			t.Fatal("the gateway that passed on the push returned the old commit, want the new one")
		}
		eventually(t, "the other gateway has heard of the push", func() bool { return answers(gateways[1], id) })
		for range 20 {
			for _, s := range gateways {
				if !answers(s, id) {
					t.Fatal("a gateway returned the old commit after the new one")
				}
			}
		}
	}
	eventually(t, "Redis has answers", func() bool {
		keys, err := exec.Command("redis-cli", "-s", socket, "dbsize").Output()
		return err == nil && strings.TrimSpace(string(keys)) != "0"
	})
	if err := redis.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = redis.Wait()
	id := push("without Redis")
	for _, s := range gateways {
		eventually(t, "a gateway answers without Redis", func() bool { return answers(s, id) })
		eventually(t, "it is bypassed", func() bool {
			return answers(s, id) &&
				p.metric(s, "packhorse_resolve_redis_bypassed") == 1
		})
	}
	gittest.Run(t, p.dir, "", "clone", "--quiet", gateways[1].http+"/app", filepath.Join(p.dir, "after"))
}

// resolved returns the value of main at a gateway, which has to respond.
func resolved(t *testing.T, s *serverProcess) string {
	t.Helper()
	response, err := http.Get(s.http + "/-/api/v1/resolve?repo=app&rev=refs/heads/main")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("got %s %s %v, want 200", response.Status, body, err)
	}
	return string(body)
}

// startRedis starts a Redis that listens at a socket.
func startRedis(t *testing.T) (redis *exec.Cmd, socket string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "redis") // the path of a socket has to be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket = filepath.Join(dir, "s")
	redis = exec.Command("redis-server", "--port", "0", "--unixsocket", socket, "--save", "", "--appendonly", "no",
		"--dir", dir)
	if err := redis.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = redis.Process.Kill()
		_ = redis.Wait()
	})
	eventually(t, "Redis listens", func() bool {
		_, err := os.Stat(socket)
		return err == nil
	})
	return redis, socket
}
