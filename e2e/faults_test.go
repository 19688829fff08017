package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// The tests in faults*_test.go check a gateway and its node in separate processes. One of them, or the connection
// between them, fails before, during or after a transfer. Git gets an error or a complete response, the other process
// releases all resources of the transfer, and both find each other again.
//
// All timeouts that could end a transfer are far longer than a test waits. Therefore a transfer only ends because one
// side notices the silence of the other.

// pair is a gateway and a node, and mostly a faultProxy between them. Each of the repositories one to six is a pack of
// 3 MB of its own.
type pair struct {
	*testing.T
	dir           string
	node, gateway *serverProcess
	proxy         *faultProxy // nil: there is none
	nodeConfig    string
	gatewayConfig string
	namespace     string                 // the node's network namespace; "": none of its own
	base          map[*serverProcess]int // sockets of a process that has served and rests
}

// patient is the configuration of both: no limit of time but those for connections is of use to them.
const patient = "[http]\nstall = \"1h\"\n[cache]\ngrace = \"1ms\"\n[git]\nslots = 20\n"

// stuckGit is a git whose packs stop after two megabytes while a file "stuck" exists. It creates a file then.
const stuckGit = `#!/bin/sh
here=$(dirname "$0")
for arg; do
	if [ "$arg" = pack-objects ] && [ -e "$here/stuck" ]; then
		git "$@" | { head -c 2000000; : >"$here/making-$$"; while [ -e "$here/stuck" ]; do sleep 0.1; done; cat; }
		exit
	fi
done
exec git "$@"
`

// newPair starts a node and a gateway, and makes a clone through them.
func newPair(t *testing.T, proxied bool) *pair {
	t.Helper()
	p := &pair{T: t, dir: t.TempDir(), base: map[*serverProcess]int{}}
	origin := blobs(t)
	for _, name := range []string{"one", "two", "three", "four", "five", "six"} {
		if err := os.CopyFS(filepath.Join(p.dir, "repos", name+".git"), os.DirFS(origin.Dir)); err != nil {
			t.Fatal(err)
		}
	}
	p.write("git", stuckGit, 0o755)
	p.nodeConfig = p.write("node.toml", patient, 0o600)
	p.startNode("127.0.0.1:0")
	address := p.node.listen
	if proxied {
		p.proxy = newFaultProxy(t, address)
		address = p.proxy.at()
	}
	p.gatewayConfig = p.write("gateway.toml", fmt.Sprintf("%s\n[[node]]\nname = \"one\"\naddress = %q\n",
		patient, address), 0o600)
	p.startGateway()
	p.clone("six")
	p.rest()
	return p
}

func (p *pair) write(name, text string, mode os.FileMode) string {
	p.Helper()
	file := filepath.Join(p.dir, name)
	if err := os.WriteFile(file, []byte(text), mode); err != nil {
		p.Fatal(err)
	}
	return file
}

func (p *pair) start(args ...string) *serverProcess {
	p.Helper()
	args = append(args, "--ops", "127.0.0.1:0", "--log-format", "json")
	cmd := exec.Command(filepath.Join(binDir, "packhorse"), args...)
	if args[0] == "storage" && p.namespace != "" {
		cmd = exec.Command("ip", append([]string{"netns", "exec", p.namespace, cmd.Path}, args...)...) // becomes the process
	}
	s, err := startProcess(args[0], cmd, p.dir, append(gittest.Env(), "GORACE=atexit_sleep_ms=0"))
	if err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() {
		_ = s.cmd.Process.Signal(syscall.SIGCONT)
		_ = s.cmd.Process.Signal(syscall.SIGTERM)
		err := s.wait()
		killed := s.cmd.ProcessState != nil && !s.cmd.ProcessState.Exited()
		if log := s.logged(); err != nil && !killed || strings.Contains(log, "DATA RACE") || strings.Contains(log, "panic") {
			p.Errorf("packhorse %s ended: %v", args[0], err)
		}
		if p.Failed() {
			p.Logf("the log of packhorse %s ends:\n%s", args[0], tail(s.logged(), 8000))
		}
	})
	return s
}

func (p *pair) startNode(listen string) {
	p.Helper()
	p.node = p.start("storage", "--config", p.nodeConfig, "--root", filepath.Join(p.dir, "repos"), "--state",
		filepath.Join(p.dir, "node"),
		"--packs", "git", "--git", filepath.Join(p.dir, "git"), "--listen", listen)
}

func (p *pair) startGateway() {
	p.Helper()
	p.gateway = p.start("gateway", "--config", p.gatewayConfig, "--state", filepath.Join(p.dir, "gateway"), "--http",
		"127.0.0.1:0")
}

// kill kills a process.
func (p *pair) kill(s *serverProcess) {
	p.Helper()
	p.signal(s, syscall.SIGKILL)
	<-s.ended
}

func (p *pair) signal(s *serverProcess, signal syscall.Signal) {
	p.Helper()
	if err := s.cmd.Process.Signal(signal); err != nil {
		p.Fatal(err)
	}
}

// cloning is a git clone that runs.
type cloning struct {
	*pair
	dir   string
	cmd   *exec.Cmd
	out   bytes.Buffer
	ended chan struct{}
	err   error // valid once ended is closed
}

// begin starts a clone.
func (p *pair) begin(repo string) *cloning {
	p.Helper()
	c := &cloning{pair: p, dir: filepath.Join(p.TempDir(), repo), ended: make(chan struct{})}
	c.cmd = exec.Command("git", "clone", "--quiet", "--mirror", p.gateway.http+"/"+repo, c.dir)
	c.cmd.Env, c.cmd.Stdout, c.cmd.Stderr = gittest.Env(), &c.out, &c.out
	c.cmd.WaitDelay = time.Second // a git that is killed leaves processes that hold its output
	if err := c.cmd.Start(); err != nil {
		p.Fatal(err)
	}
	go func() {
		defer close(c.ended)
		c.err = c.cmd.Wait()
	}()
	p.Cleanup(func() {
		_ = c.cmd.Process.Kill()
		<-c.ended
	})
	return c
}

// wait waits for the end.
func (c *cloning) wait() error {
	c.Helper()
	select {
	case <-c.ended:
	case <-time.After(hostileLimit):
		c.Fatalf("after %s a clone still runs", hostileLimit)
	}
	return c.err
}

// fails holds a clone to ending with an error, and to leaving nothing that looks like a repository.
func (c *cloning) fails(what string) {
	c.Helper()
	if c.wait() == nil {
		c.Errorf("%s: a clone is said to be whole", what)
	}
	if _, err := os.Stat(c.dir); err == nil {
		c.Errorf("%s: a clone that failed has left a repository", what)
	}
}

// whole holds a clone to being whole.
func (c *cloning) whole(what string) {
	c.Helper()
	if err := c.wait(); err != nil {
		c.Errorf("%s: %v: %s", what, err, &c.out)
		return
	}
	if n := len(gittest.At(c, c.dir).Objects()); n != 30 {
		c.Errorf("%s: a clone has %d objects, and should have 30", what, n)
	}
}

// clone clones, and fails if that fails.
func (p *pair) clone(repo string) {
	p.Helper()
	p.begin(repo).whole(repo)
}

// refused holds a clone to being refused for a moment, with a sentence.
func (p *pair) refused(repo, says string) {
	p.Helper()
	c := p.begin(repo)
	c.fails(repo)
	if out := c.out.String(); !strings.Contains(out, "503") || !strings.Contains(out, says) {
		p.Errorf("git says %s; want error 503 and %q", out, says)
	}
}

// found waits until the gateway finds the node.
func (p *pair) found() {
	p.Helper()
	eventually(p.T, "the node is found again", func() bool {
		_, err := gittest.At(p, "").Try("ls-remote", p.gateway.http+"/one")
		return err == nil
	})
}

// stick begins a clone whose pack stops in its middle, once a part of it has arrived.
func (p *pair) stick(repo string) *cloning {
	p.Helper()
	p.write("stuck", "", 0o600)
	before, _ := filepath.Glob(filepath.Join(p.dir, "making-*"))
	c := p.begin(repo)
	eventually(p.T, "a clone is in its middle", func() bool {
		now, _ := filepath.Glob(filepath.Join(p.dir, "making-*"))
		parts, _ := filepath.Glob(filepath.Join(c.dir, "objects/pack/tmp_pack_*"))
		return len(now) > len(before) && len(parts) > 0
	})
	return c
}

// loosen lets packs go on.
func (p *pair) loosen() {
	p.Helper()
	if err := os.Remove(filepath.Join(p.dir, "stuck")); err != nil {
		p.Fatal(err)
	}
}

// metric sums the series of a process that a selector matches. It leaves no connection.
func (p *pair) metric(s *serverProcess, selector string) float64 {
	p.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: hostileLimit}
	resp, err := client.Get(s.ops + "/metrics")
	if err != nil {
		p.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		p.Fatal(err)
	}
	return sumSeries(string(text), selector)
}

// sockets are what a process has open, but for files, which stand for repositories, and pipes, which a gateway keeps
// for the next splice; empty where /proc does not tell.
func sockets(s *serverProcess) (list []string) {
	dir := fmt.Sprintf("/proc/%d/fd", s.cmd.Process.Pid)
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if to, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil && strings.HasPrefix(to, "socket:") {
			list = append(list, to)
		}
	}
	return list
}

// rest waits until both do nothing, and notes what they have open then.
func (p *pair) rest() {
	p.Helper()
	for _, s := range []*serverProcess{p.node, p.gateway} {
		p.idle(s)
		p.base[s] = len(sockets(s))
	}
}

// idle waits until a process has neither a transfer nor a git process.
func (p *pair) idle(s *serverProcess) {
	p.Helper()
	for _, what := range []string{`packhorse_channels{state="busy"}`, "packhorse_lane_running"} {
		eventually(p.T, s.name+": "+what+" is 0", func() bool { return p.metric(s, what) == 0 })
	}
	eventually(p.T, s.name+" has no process", func() bool { return len(childrenOf(s.cmd.Process.Pid)) == 0 })
}

// letsGo waits until a process has neither a transfer nor a git process, and no more sockets than before all began, but
// for so many.
func (p *pair) letsGo(s *serverProcess, but int) {
	p.Helper()
	p.idle(s)
	eventually(p.T, fmt.Sprintf("%s has no more than %d%+d sockets", s.name, p.base[s], but),
		func() bool { return len(sockets(s)) <= p.base[s]+but })
}

// gone waits until processes have ended.
func (p *pair) gone(pids []int) {
	p.Helper()
	if len(pids) == 0 {
		p.Error("there was no git process")
	}
	eventually(p.T, "git's processes end", func() bool {
		for _, pid := range pids {
			if syscall.Kill(pid, 0) == nil && !isZombie(pid) {
				return false
			}
		}
		return true
	})
}

// together runs tests at the same time, however many: they mostly wait.
func together(t *testing.T, tests map[string]func(t *testing.T)) {
	var group sync.WaitGroup
	for name, test := range tests {
		group.Go(func() { t.Run(name, test) })
	}
	group.Wait()
}
