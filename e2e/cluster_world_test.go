package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"

	api "github.com/packhorse-git/packhorse/client"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/store/bucket/buckettest"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// clusterNodes are the names of a cluster's storage nodes.
var clusterNodes = []string{"a", "b", "c"}

// cluster is three storage nodes of one object store behind two gateways. Each node reaches the store through a proxy.
type cluster struct {
	*testing.T
	dir     string // with a short path
	store   *buckettest.Server
	proxies map[string]*buckettest.Proxy // by node
	header  string                       // with a token
	env     []string

	mu       sync.Mutex
	isCut    bool // most connections to the store are cut
	nodes    map[string]*serverProcess
	gateways []*serverProcess
}

const clusterPrefix = "cluster"

func newCluster(t *testing.T) *cluster {
	t.Helper()
	return newClusterWith(t, false)
}

// newClusterWith makes a cluster whose gateways may share tokens and rules (auth.shared).
func newClusterWith(t *testing.T, sharesAccess bool) *cluster {
	t.Helper()
	dir, err := os.MkdirTemp("", "ph")
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{T: t, dir: dir, nodes: map[string]*serverProcess{}, proxies: map[string]*buckettest.Proxy{},
		env: append(gittest.Env(), "GORACE=atexit_sleep_ms=0")}
	t.Cleanup(func() {
		killAll(t, c.processes()...)
		os.RemoveAll(dir)
	})
	c.store = buckettest.Versitygw(t)
	options := c.store.Options(clusterPrefix)
	runPackhorse(t, c.dir, "store", "init", options.URL, "--endpoint", "http://"+c.store.Address, "--path-style",
		"--credentials-file", options.CredentialsFile)
	var gateway strings.Builder
	fmt.Fprintf(&gateway, "[auth]\ntokens = %q\n", c.path("tokens"))
	for _, name := range clusterNodes {
		c.proxies[name] = buckettest.Toxiproxy(t, c.store.Address)
		c.write(name+".toml", fmt.Sprintf("root = %q\nstate = %q\n[store]\nurl = %q\nendpoint = %q\npath_style = true\n"+
			"credentials_file = %q\nnode = %q\n", c.path("root-"+name), c.path("state-"+name), options.URL,
			"http://"+c.proxies[name].Address, options.CredentialsFile, name))
		fmt.Fprintf(&gateway, "[[node]]\nname = %q\naddress = %q\n", name, c.address(name))
	}
	c.write("gateway.toml", gateway.String())
	c.header = basicHeader("tester", createToken(t, "tester", "--config", c.path("gateway.toml"), "--state",
		c.path("gateway-0"), "--scope", "admin"))
	if sharesAccess {
		c.write("gateway.toml", strings.Replace(gateway.String(), "[auth]\n", "[auth]\nshared = true\n", 1))
	}
	var starts sync.WaitGroup
	for _, name := range clusterNodes {
		starts.Go(func() { c.startNode(name) })
	}
	starts.Wait()
	for i := range 2 {
		p, err := startServer(dir, c.env, []string{"gateway", "--config", c.path("gateway.toml"), "--state",
			c.path(fmt.Sprint("gateway-", i)), "--http", "127.0.0.1:0", "--ops", "127.0.0.1:0", "--log-format", "json"})
		if err != nil {
			t.Fatal(err)
		}
		c.gateways = append(c.gateways, p)
	}
	return c
}

func (c *cluster) path(name string) string { return filepath.Join(c.dir, name) }

func (c *cluster) address(node string) string { return "unix:" + c.path(node+".sock") }

func (c *cluster) write(name, text string) {
	c.Helper()
	if err := os.WriteFile(c.path(name), []byte(text), 0o600); err != nil {
		c.Fatal(err)
	}
}

func (c *cluster) processes() (list []*serverProcess) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.nodes {
		list = append(list, p)
	}
	return append(list, c.gateways...)
}

// startNode starts a node. Its connections are not cut before it serves: the test of the store at the start tolerates
// no errors.
func (c *cluster) startNode(name string) {
	c.Helper()
	p, err := startServer(c.dir, c.env, []string{"storage", "--config", c.path(name + ".toml"), "--listen",
		c.address(name), "--ops", "127.0.0.1:0", "--log-format", "json"})
	if err != nil {
		c.Errorf("start node %s: %v", name, err)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nodes[name] = p
	if c.isCut {
		c.cut(name)
	}
}

// cut lets six of ten connections of a node to the store end after a moment.
func (c *cluster) cut(name string) {
	c.proxies[name].Add("cut", "reset_peer", "downstream", 0.6, map[string]any{"timeout": 40})
}

// setCut cuts connections to the store, or stops that.
func (c *cluster) setCut(isCut bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.isCut = isCut
	for name, p := range c.proxies {
		if isCut {
			c.cut(name)
		} else {
			p.Remove("cut")
		}
	}
}

// killNode kills a node without warning. Its git processes end or not, as they like.
func (c *cluster) killNode(name string) {
	c.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.nodes[name]
	_ = p.cmd.Process.Signal(syscall.SIGKILL)
	<-p.ended
	if c.isCut {
		c.proxies[name].Remove("cut")
	}
}

// create creates a repository.
func (c *cluster) create(repo string) {
	c.Helper()
	node, err := api.New(c.address("a"), api.Options{})
	if err != nil {
		c.Fatal(err)
	}
	defer node.Close()
	ctx, cancel := context.WithTimeout(c.Context(), time.Minute)
	defer cancel()
	if _, err := node.Repositories().Create(ctx,
		connect.NewRequest(&packhorsev1.CreateRequest{Repository: repo})); err != nil {
		c.Fatalf("create %s: %v", repo, err)
	}
}

// url returns the URL of a repository at a gateway.
func (c *cluster) url(gateway int, repo string) string { return c.gateways[gateway].http + "/" + repo }

// git runs git as a client.
func (c *cluster) git(dir string, args ...string) (string, error) {
	return clientGit(c.T, c.header, dir, args...)
}

// gitUntil repeats git until it succeeds.
func (c *cluster) gitUntil(dir string, args ...string) string {
	c.Helper()
	var out string
	eventually(c.T, fmt.Sprintf("git %q succeeds", args), func() (ok bool) {
		var err error
		out, err = c.git(dir, args...)
		return err == nil
	})
	return out
}

// disturb kills nodes and the store at random, and starts them again, until stop is closed. It returns the number of
// kills.
func (c *cluster) disturb(random *rand.Rand, pause time.Duration, stop <-chan struct{}) (kills int) {
	for {
		select {
		case <-stop:
			return kills
		case <-time.After(pause/2 + time.Duration(random.Int64N(int64(pause)))):
		}
		kills++
		if random.IntN(4) == 0 { // no node starts meanwhile
			c.store.Kill()
			time.Sleep(time.Duration(random.IntN(500)) * time.Millisecond)
			c.store.Start()
			continue
		}
		name := clusterNodes[random.IntN(len(clusterNodes))]
		c.killNode(name)
		c.startNode(name)
	}
}
