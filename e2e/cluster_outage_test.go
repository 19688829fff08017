package e2e

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	gitnames "github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// TestClusterOutages kills the node that takes the pushes of a repository, and then takes the store away, while clients
// clone and fetch.
//
//   - After the kill no clone fails that another node can still answer, and pushes are accepted within two seconds.
//   - Without the store, fetches of commits that clients know succeed, and pushes are refused before a byte of the
//     pack.
//
// PACKHORSE_OUTAGE is the time without the store.
func TestClusterOutages(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it needs half a minute of CPU time")
	}
	outage := 30 * time.Second
	if d, err := time.ParseDuration(os.Getenv("PACKHORSE_OUTAGE")); err == nil {
		outage = d
	}
	c := newCluster(t)
	c.create("r")
	work := gittest.InitAt(t, c.path("work"))
	tip := work.Commit("one")
	push := func(gateway int, id gitnames.ObjectID, branch string) (string, error) {
		return c.git(work.Dir, "push", "-q", c.url(gateway, "r"), id.String()+":refs/heads/"+branch)
	}
	if out, err := push(0, tip, "main"); err != nil {
		t.Fatalf("push: %v %s", err, out)
	}
	clone := func(l *load) (string, error) {
		return c.git(c.dir, "clone", "-q", "--bare", c.url(l.next()%2, "r"), l.dir())
	}
	l := c.startLoad(clone)
	l.await(8)
	first := c.nodeOf("main")
	var commits []gitnames.ObjectID
	for gateway := range c.gateways {
		commits = append(commits, work.Commit(fmt.Sprint("after the kill ", gateway), tip))
	}
	killed := time.Now()
	c.killNode(first)
	var pushes sync.WaitGroup
	for gateway, id := range commits {
		pushes.Go(func() {
			ok := gittest.Eventually(func() bool {
				_, err := push(gateway, id, fmt.Sprint("after-", gateway))
				return err == nil
			})
			took := time.Since(killed)
			t.Logf("gateway %d accepted a push %v after the kill of node %s", gateway, took, first)
			if !ok || took > killLimit {
				t.Errorf("time until gateway %d accepted a push = %v, want at most %v", gateway, took, killLimit)
			}
		})
	}
	pushes.Wait()
	l.await(8)
	l.end(t, "while a node was killed")
	c.startNode(first)

	for gateway := range c.gateways { // both know a node that has the repository
		if out, err := clone(&load{cluster: c, number: 1_000_000 + gateway}); err != nil {
			t.Fatalf("clone: %v %s", err, out)
		}
	}
	if out := runPackhorse(t, c.dir, "nodes", "--state", c.path("gateway-0")); !strings.Contains(out, "STORE") ||
		!regexp.MustCompile(`(?m) [a-z2-7]{26} +1 +all$`).MatchString(out) {
		t.Errorf("packhorse nodes = %s, want a node that holds a repository", out)
	}
	c.store.Kill()
	fetch := func(l *load) (string, error) {
		n := l.next()
		dir := l.dir()
		gittest.InitAt(t, dir)
		return c.git(dir, "-c", "protocol.version=2", "fetch", "-q", "--no-tags", c.url(n%2, "r"), tip.String())
	}
	l = c.startLoad(fetch)
	for end := time.Now().Add(outage); time.Now().Before(end); {
		c.refusedPush(0)
		time.Sleep(200 * time.Millisecond)
	}
	l.await(4)
	l.end(t, "without the store")
	c.store.Start()
	tip = work.Commit("after the outage", tip)
	eventually(t, "a push is accepted again", func() bool { _, err := push(1, tip, "main"); return err == nil })
}

// killLimit is the maximum time until pushes are accepted after a kill. It is two seconds on a machine with nothing
// else to do.
const killLimit = 10 * time.Second

// nodeOf returns the name of the node that took the last push.
func (c *cluster) nodeOf(ref string) string {
	c.Helper()
	for _, gateway := range c.gateways {
		for line := range strings.Lines(gateway.logged()) {
			if !strings.Contains(line, `"operation":"push"`) || !strings.Contains(line, "refs/heads/"+ref) {
				continue
			}
			_, rest, _ := strings.Cut(line, `"node":"`)
			name, _, _ := strings.Cut(rest, `"`)
			return name
		}
	}
	c.Fatal("no gateway has logged a push")
	return ""
}

// refusedPush begins a push of which it does not send the body, and checks that it is refused.
func (c *cluster) refusedPush(gateway int) {
	c.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(c.gateways[gateway].http, "http://"))
	if err != nil {
		c.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	fmt.Fprintf(conn, "POST /r/git-receive-pack HTTP/1.1\r\nHost: localhost\r\n%s\r\nContent-Length: 100000000\r\n"+
		"Content-Type: application/x-git-receive-pack-request\r\n\r\n", c.header)
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		c.Errorf("a push without the store: %v, want an answer before the body is sent", err)
		return
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusServiceUnavailable || response.Header.Get("Retry-After") == "" {
		c.Errorf("a push without the store: %s, Retry-After %q, want 503 with Retry-After", response.Status,
			response.Header.Get("Retry-After"))
	}
}

// load is clients that do one thing again and again.
type load struct {
	*cluster
	stop    chan struct{}
	clients sync.WaitGroup

	mu     sync.Mutex
	number int // of the last request
	done   int
	failed []string // outputs of git
}

const loadClients = 3

func (c *cluster) startLoad(do func(*load) (string, error)) *load {
	l := &load{cluster: c, stop: make(chan struct{})}
	for range loadClients {
		l.clients.Go(func() {
			for {
				select {
				case <-l.stop:
					return
				default:
				}
				out, err := do(l)
				l.mu.Lock()
				if l.done++; err != nil {
					l.failed = append(l.failed, out)
				}
				l.mu.Unlock()
			}
		})
	}
	return l
}

func (l *load) next() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.number++
	return l.number
}

// dir returns a directory that does not exist.
func (l *load) dir() string {
	l.Helper()
	dir, err := os.MkdirTemp(l.cluster.dir, "load")
	if err != nil {
		l.Fatal(err)
	}
	return filepath.Join(dir, "repo")
}

// await waits for n more requests.
func (l *load) await(n int) {
	l.Helper()
	count := func() int {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.done
	}
	end := count() + n
	eventually(l.T, "more requests end", func() bool { return count() >= end })
}

// end ends the load and checks that no request has failed.
func (l *load) end(t *testing.T, when string) {
	t.Helper()
	close(l.stop)
	l.clients.Wait()
	t.Logf("%d requests %s, %d failed", l.done, when, len(l.failed))
	for _, out := range l.failed {
		t.Errorf("a request failed %s: %s", when, out)
	}
}
