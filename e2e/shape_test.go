package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/store/bucket/buckettest"
)

// shape is what serve starts in a story: one process, or a gateway and a storage node.
type shape struct {
	between string // how gateway and node talk: "unix", or "tcp" with a shared secret; "": they are one process
	noCache bool
	noIndex bool               // one process: it does not index what it serves
	search  bool               // between processes: one more searches
	ssh     bool               // $URL is one of SSH
	store   *buckettest.Server // one process: its repositories are in a store here; nil: they are not
	lfs     string             // directory of the git-lfs that clients use; "": the installed one
}

// inAllShapes are stories that are the same in every shape.
var inAllShapes = []string{"incremental", "negotiation", "partial", "shallow"}

// withSplit are stories about the connections between the processes, or about the savings of the cache.
var withSplit = []string{"clone", "drain", "drain-cut", "hangup", "http", "killed", "lsremote", "policy", "resolve",
	"sharing", "tls", "wait", "wants"}

// TestShapes repeats stories of TestFetch in every shape.
func TestShapes(t *testing.T) {
	skipIfShort(t)
	templates := makeTemplates(t)
	for _, test := range []struct {
		name    string
		shape   shape
		stories []string
	}{
		{"serve-without-cache", shape{noCache: true, noIndex: true}, inAllShapes},
		{"unix", shape{between: "unix"}, slices.Concat(inAllShapes, withSplit)},
		{"unix-without-cache", shape{between: "unix", noCache: true}, append([]string{"nocache"}, inAllShapes...)},
		{"tcp-and-secret", shape{between: "tcp"}, append([]string{"hangup", "killed", "sharing"}, inAllShapes...)},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var scripts []string
			for _, name := range test.stories {
				scripts = append(scripts, filepath.Join("testdata/fetch", name+".txtar"))
			}
			if test.shape == (shape{between: "unix"}) {
				scripts = append(scripts, "testdata/ci/actions.txtar")
			}
			runStoriesIn(t, test.shape, "", templates, "2", scripts...)
		})
	}
}

// TestSplit runs stories about gateways and storage nodes.
func TestSplit(t *testing.T) { runStories(t, "testdata/split") }

// start starts packhorse in a story. The map defaults has the values of flags that args does not contain.
func (s *story) start(ts *testscript.TestScript, args []string, defaults map[string]string) (*serverProcess, error) {
	given := func(flag string) bool {
		return slices.ContainsFunc(args, func(a string) bool { return a == flag || strings.HasPrefix(a, flag+"=") })
	}
	all := []string{args[0]}
	for flag, value := range defaults {
		if !given(flag) {
			all = append(all, flag, value)
		}
	}
	if given("--ssh") {
		state := filepath.Join(ts.Getenv("REPOS"), ".packhorse")
		if i := slices.Index(args, "--state"); i >= 0 {
			state = ts.MkAbs(args[i+1])
		} else if defaults["--state"] != "" {
			state = defaults["--state"]
		}
		shareHostKey(ts, state)
	}
	env := []string{"GORACE=" + ts.Getenv("GORACE")}
	for _, name := range []string{"PATH", "HOME", "TMPDIR"} {
		env = append(env, name+"="+ts.Getenv(name))
	}
	return startServer(ts.MkAbs("."), env, append(all, args[1:]...))
}

// cmdServe starts a server on free ports for $REPOS, unless flags differ, and sets $URL, $OPS and $STATE. In shapes of
// two processes it starts a storage node named "node" and a gateway. $STATE is then the node's.
func cmdServe(ts *testscript.TestScript, neg bool, args []string) {
	s := storyOf(ts)
	if s.running != nil {
		ts.Fatalf("a server runs already; use terminate")
	}
	if s.shape.noCache && !slices.Contains(args, "--no-cache") {
		args = append(args, "--no-cache")
	}
	if s.shape.ssh {
		args = append(args, s.overSSH(ts)...)
	}
	if s.shape.store != nil {
		args = s.intoStore(ts, args)
	}
	if s.shape.between != "" {
		s.serveSplit(ts, neg, args)
		s.setSSH(ts)
		return
	}
	defaults := map[string]string{
		"--root": ts.Getenv("REPOS"), "--http": "127.0.0.1:0", "--ops": "127.0.0.1:0", "--log-format": "json",
	}
	if s.shape.noIndex {
		defaults["--config"] = s.write(ts, "index.toml", "[search]\nenabled = false\n")
	}
	p, err := s.start(ts, append([]string{"serve"}, args...), defaults)
	if neg {
		if err == nil {
			s.running = p
			ts.Fatalf("packhorse serves, and should not")
		}
		ts.Logf("%v", err)
		return
	}
	ts.Check(err)
	s.running = p
	p.state = filepath.Join(ts.Getenv("REPOS"), ".packhorse")
	if i := slices.Index(args, "--state"); i >= 0 {
		p.state = ts.MkAbs(args[i+1])
	}
	ts.Setenv("URL", p.http)
	ts.Setenv("OPS", p.ops)
	ts.Setenv("STATE", p.state)
	ts.Setenv("STATE_search", p.state)
	s.setSSH(ts)
}

// Flags of serve that are for one of the two processes; others are for both.
var (
	nodeFlags = []string{"--root", "--state", "--cache-dir", "--cache-max-bytes", "--no-cache", "--packs", "--git",
		"--git-slots", "--wants"}
	gatewayFlags = []string{"--http", "--public-read", "--tls-cert", "--tls-key", "--ssh", "--ssh-keys", "--search"}
)

func (s *story) serveSplit(ts *testscript.TestScript, neg bool, args []string) {
	if neg {
		ts.Fatalf("what does not serve is for one process")
	}
	toNode, toGateway := []string{"node"}, []string{}
	config := ""
	for i := 0; i < len(args); i++ {
		flag, one := args[i], args[i:i+1]
		if !strings.Contains(flag, "=") && i+1 < len(args) && !strings.HasPrefix(args[i+1], "--") {
			i++
			one = args[i-1 : i+1]
		}
		name, _, _ := strings.Cut(flag, "=")
		if name == "--config" {
			text, err := os.ReadFile(ts.MkAbs(one[1]))
			ts.Check(err)
			config = string(text)
			continue
		}
		if !slices.Contains(gatewayFlags, name) {
			toNode = append(toNode, one...)
		}
		if !slices.Contains(nodeFlags, name) {
			toGateway = append(toGateway, one...)
		}
	}
	secret := ""
	if s.shape.between == "tcp" {
		secret = filepath.Join(s.sockets, "secret")
		ts.Check(os.WriteFile(secret, []byte("a-secret-of-more-than-sixteen-bytes\n"), 0o600))
		toNode = append(toNode, "--listen", "127.0.0.1:0", "--config",
			s.write(ts, "node.toml", config+"\n[storage]\nsecret_file = "+fmt.Sprintf("%q\n", secret)))
	} else if config != "" {
		toNode = append(toNode, "--config", s.write(ts, "node.toml", config))
	}
	cmdStorage(ts, false, toNode)
	table := fmt.Sprintf("\n[[node]]\nname = \"node\"\naddress = %q\n", s.nodes["node"].listen)
	if secret != "" {
		table += fmt.Sprintf("secret_file = %q\n", secret)
	}
	if s.shape.search {
		toSearch := []string{}
		if secret != "" {
			toSearch = []string{"--listen", "127.0.0.1:0"}
			table += fmt.Sprintf("\n[search]\nsecret_file = %q\n", secret)
		}
		cmdSearcher(ts, false, append(toSearch, "--config", s.write(ts, "search.toml", table)))
		toGateway = append(toGateway, "--search", s.nodes["search"].listen)
	}
	cmdGateway(ts, false, append(toGateway, "--config", s.write(ts, "gateway.toml", config+table)))
	ts.Setenv("STATE", s.nodes["node"].state)
}

func (s *story) write(ts *testscript.TestScript, name, text string) string {
	file := filepath.Join(s.sockets, name)
	ts.Check(os.WriteFile(file, []byte(text), 0o600))
	return file
}

// cmdStorage starts a storage node for $REPOS at a Unix socket, unless flags differ: storage NAME [FLAGS]. It sets
// $NODE_NAME to its address and $STATE_NAME to its state directory. A node of a name has the same socket each time.
func cmdStorage(ts *testscript.TestScript, neg bool, args []string) {
	s := storyOf(ts)
	if len(args) == 0 || s.nodes[args[0]] != nil {
		ts.Fatalf("usage: [!] storage NAME [FLAGS], where no node of that name runs")
	}
	name, state := args[0], filepath.Join(ts.Getenv("REPOS"), ".packhorse")
	if name != "node" {
		state = filepath.Join(s.sockets, "state-"+name)
	}
	if i := slices.Index(args, "--state"); i >= 0 {
		state = ts.MkAbs(args[i+1])
	}
	p, err := s.start(ts, append([]string{"storage"}, args[1:]...), map[string]string{
		"--root": ts.Getenv("REPOS"), "--listen": "unix:" + filepath.Join(s.sockets, name+".sock"), "--state": state,
		"--ops": "127.0.0.1:0", "--log-format": "json",
	})
	if neg {
		if err == nil {
			s.nodes[name] = p
			ts.Fatalf("the node runs, and should not")
		}
		ts.Logf("%v", err)
		return
	}
	ts.Check(err)
	p.name, p.state = name, state
	s.nodes[name] = p
	ts.Setenv("NODE_"+name, p.listen)
	ts.Setenv("STATE_"+name, state)
}

// cmdGateway starts a gateway and sets $URL, $OPS and $GATEWAY, its state directory: gateway [FLAGS].
func cmdGateway(ts *testscript.TestScript, neg bool, args []string) {
	s := storyOf(ts)
	if s.running != nil {
		ts.Fatalf("a server runs already; use terminate")
	}
	state := filepath.Join(s.sockets, "gateway")
	p, err := s.start(ts, append([]string{"gateway"}, args...), map[string]string{
		"--http": "127.0.0.1:0", "--state": state, "--ops": "127.0.0.1:0", "--log-format": "json",
	})
	if neg {
		if err == nil {
			s.running = p
			ts.Fatalf("the gateway runs, and should not")
		}
		ts.Logf("%v", err)
		return
	}
	ts.Check(err)
	p.state = state
	s.running = p
	ts.Setenv("URL", p.http)
	ts.Setenv("OPS", p.ops)
	ts.Setenv("GATEWAY", state)
}

// cmdEnd ends the gateway or a storage node with SIGTERM and holds it to a clean end, or kills it: end [-kill] NAME.
func cmdEnd(ts *testscript.TestScript, neg bool, args []string) {
	s := storyOf(ts)
	if neg || len(args) == 0 || len(args) == 2 && args[0] != "-kill" {
		ts.Fatalf("usage: end [-kill] NAME")
	}
	name := args[len(args)-1]
	p := s.process(ts, name)
	if len(args) == 2 {
		s.orphans = append(s.orphans, childrenOf(p.cmd.Process.Pid)...)
		p.cmd.Process.Kill()
		p.wait()
	} else {
		p.stop(ts, false, syscall.SIGTERM, false, func() {})
	}
	if name == "gateway" {
		s.running = nil
	}
	delete(s.nodes, name)
}

// cmdOrphanless waits until the processes have ended that killed nodes had started.
func cmdOrphanless(ts *testscript.TestScript, neg bool, args []string) {
	for _, pid := range storyOf(ts).orphans {
		if !gittest.Eventually(func() bool { return syscall.Kill(pid, 0) != nil || isZombie(pid) }) {
			ts.Fatalf("process %d of a killed node still runs", pid)
		}
	}
}

// cmdRoutes writes a gateway's configuration, with a node and a route for each NAME=PREFIX: routes FILE NAME=PREFIX...
func cmdRoutes(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: routes FILE NAME=PREFIX...")
	}
	var text strings.Builder
	for _, arg := range args[1:] {
		name, prefix, _ := strings.Cut(arg, "=")
		fmt.Fprintf(&text, "[[node]]\nname = %q\naddress = %q\n[[route]]\nprefix = %q\nnodes = [%q]\n", name,
			ts.Getenv("NODE_"+name), prefix, name)
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(text.String()), 0o600))
}

// cmdTrusted writes a gateway's configuration for one node with further settings: trusted FILE NAME KEY=VALUE...
func cmdTrusted(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: trusted FILE NAME KEY=VALUE...")
	}
	text := fmt.Sprintf("[[node]]\nname = %q\naddress = %q\n", args[1], ts.Getenv("NODE_"+args[1]))
	for _, arg := range args[2:] {
		key, value, _ := strings.Cut(arg, "=")
		text += fmt.Sprintf("%s = %q\n", key, value)
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(text), 0o600))
}

// cmdSignal sends a signal to the gateway or a storage node: signal NAME HUP|STOP|CONT.
func cmdSignal(ts *testscript.TestScript, neg bool, args []string) {
	signals := map[string]syscall.Signal{"HUP": syscall.SIGHUP, "STOP": syscall.SIGSTOP, "CONT": syscall.SIGCONT}
	if neg || len(args) != 2 || signals[args[1]] == 0 {
		ts.Fatalf("usage: signal NAME HUP|STOP|CONT")
	}
	ts.Check(storyOf(ts).process(ts, args[0]).cmd.Process.Signal(signals[args[1]]))
}

// cmdUntil runs a command again and again until it succeeds, or with ! fails, and with -says prints what matches: [!]
// until [-says REGEXP] COMMAND...
func cmdUntil(ts *testscript.TestScript, neg bool, args []string) {
	says := regexp.MustCompile("")
	if len(args) > 2 && args[0] == "-says" {
		var err error
		says, err = regexp.Compile(args[1])
		ts.Check(err)
		args = args[2:]
	}
	if len(args) == 0 {
		ts.Fatalf("usage: [!] until [-says REGEXP] COMMAND...")
	}
	var out bytes.Buffer
	var failure error
	if !gittest.Eventually(func() bool {
		cmd := exec.Command(args[0], args[1:]...)
		if program := filepath.Join(binDir, args[0]); args[0] == "packhorse" {
			cmd = exec.Command(program, args[1:]...)
		}
		cmd.Dir = ts.MkAbs(".")
		cmd.Env = append(os.Environ(), "HOME="+ts.Getenv("HOME"), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1",
			"GIT_TERMINAL_PROMPT=0", "LC_ALL=C",
			"GORACE="+ts.Getenv("GORACE"))
		out.Reset()
		cmd.Stdout, cmd.Stderr = &out, &out
		failure = cmd.Run()
		return (failure != nil) == neg && says.Match(out.Bytes())
	}) {
		ts.Fatalf("until %q: got %v, want failure=%v and output that matches %q:\n%s", args, failure, neg, says, &out)
	}
}
