package e2e

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

var update = flag.Bool("update", false, "write docs/reference/clients.md or testdata/previous from this run")

// driverLimit ends a client that hangs.
const driverLimit = 5 * time.Minute

// client is a git client, driven by a program with one interface for all of them:
//
//	version                  print the client's version
//	ls-remote URL            print "ID<tab>REF" for each ref
//	clone URL DIR            all branches (to refs/remotes/origin/) and all tags; nothing of this checks anything out
//	shallow URL DIR DEPTH    main alone, to that depth
//	branch URL DIR BRANCH    that branch alone, without tags
//	partial URL DIR          as clone, without blobs
//	fetch DIR                what is new in a clone's origin, with the tags of what comes
//	tags DIR                 all tags of origin
//	deepen DIR DEPTH         main to that depth
//	push DIR URL BRANCH      a branch; over SSH with the key in the file $KEY or as the ssh program and ~/.ssh/config say
type client struct {
	name     string
	program  string
	env      []string
	protocol string // what it speaks, for the page
	ssh      bool   // it runs the ssh program
	limits   map[string]string
	version  string
}

// operation is a column of the matrix. In its steps URL and DIR stand for themselves, GROW for a push into the
// repository, and FILL for a clone that fills the pack cache.
type operation struct {
	name  string
	repo  string
	steps []string
	refs  []string // compared, with all that they reach
	push  string   // it is a push over "HTTP" or "SSH", which has no steps
}

var operations = []operation{
	{"ls-remote", "random", []string{"ls-remote URL"}, nil, ""},
	{"clone", "random", []string{"clone URL DIR"}, []string{"refs/remotes", "refs/tags"}, ""},
	{"fetch", "random", []string{"clone URL DIR", "GROW", "fetch DIR"}, []string{"refs/remotes", "refs/tags"}, ""},
	{"after a push", "random", []string{"FILL", "GROW", "clone URL DIR"}, []string{"refs/remotes", "refs/tags"}, ""},
	{"30 pushes", "pushed", []string{"clone URL DIR"}, []string{"refs/remotes", "refs/tags"}, ""},
	{"shallow", "random", []string{"shallow URL DIR 3"}, []string{"refs/remotes"}, ""},
	{"deepen", "random", []string{"shallow URL DIR 3", "deepen DIR 7"}, []string{"refs/remotes"}, ""},
	{"partial", "random", []string{"partial URL DIR"}, []string{"refs/remotes", "refs/tags"}, ""},
	{"one branch", "random", []string{"branch URL DIR release/1.0"}, []string{"refs/remotes", "refs/tags"}, ""},
	{"tags", "linear", []string{"branch URL DIR main", "tags DIR"}, []string{"refs/tags"}, ""},
	{"empty", "empty", []string{"ls-remote URL", "clone URL DIR"}, []string{"refs/remotes", "refs/tags"}, ""},
	{"2,000 refs", "refs", []string{"ls-remote URL", "clone URL DIR"}, []string{"refs/remotes", "refs/tags"}, ""},
	{"SHA-256", "sha256", []string{"ls-remote URL", "clone URL DIR"}, []string{"refs/remotes", "refs/tags"}, ""},
	{name: "push", repo: "random", push: "HTTP"},
	{name: "push by SSH", repo: "random", push: "SSH"},
}

// clients are those that the matrix knows. Their limits are what they cannot do with any server: the reason by
// operation, held to the truth by trying the same with git http-backend.
func clients(installed string) []*client {
	bin := func(name string) string { return filepath.Join(installed, "bin", name) }
	gits := func(name, program string, protocols ...string) (list []*client) {
		for _, p := range protocols {
			list = append(list, &client{name: name, program: "clients/git/driver",
				env: []string{"GIT=" + program, "PROTOCOL=" + p}, protocol: p, ssh: true})
		}
		return list
	}
	protocols := []string{"2", "1", "0"}
	if testing.Short() { // version 1 is version 0 after a line with its number
		protocols = []string{"2", "0"}
	}
	list := gits("git, as installed", "git", protocols...)
	if installed == "" {
		return list
	}
	list = append(list, &client{name: "git, with git-lfs", program: bin("git-lfs"), env: []string{"PROTOCOL=2"},
		protocol: "2", ssh: true})
	list = append(list, gits("git, newer Debian", bin("git-newer"), "2", "0")...)
	old := gits("git, Debian 11", bin("git-bullseye"), "2", "0")
	old[1].limits = map[string]string{"SHA-256": "in protocol 0 it supports only SHA-1"}
	list = append(list, old...)
	const (
		noFilter  = "it does not support filters"
		sha1Alone = "it supports only SHA-1"
		noEmpty   = "it rejects empty repositories"
		wantsHEAD = "its clone needs HEAD, which protocol 0 does not advertise for an empty repository"
		noDepth   = "it does not support depths"
		noPush    = "it does not push"
	)
	return append(list,
		&client{name: "go-git", program: bin("go-git"), protocol: "0", limits: map[string]string{
			"deepen":  "it keeps the old boundary in addition to the new one",
			"partial": noFilter,
			"empty":   noEmpty,
			"SHA-256": sha1Alone,
		}},
		&client{name: "go-git, older", program: bin("go-git-old"), protocol: "0", limits: map[string]string{
			"deepen":  "it sends no request if it has the tip",
			"partial": noFilter,
			"empty":   noEmpty,
			"SHA-256": sha1Alone,
		}},
		&client{name: "dulwich", program: bin("dulwich"), env: []string{"PROTOCOL=2"}, protocol: "2", ssh: true},
		&client{name: "dulwich", program: bin("dulwich"), env: []string{"PROTOCOL=0"}, protocol: "0", ssh: true,
			limits: map[string]string{
				"partial": noFilter + " in protocol 0",
				"empty":   wantsHEAD,
			}},
		&client{name: "dulwich, older", program: bin("dulwich-old"), protocol: "0", ssh: true, limits: map[string]string{
			"partial": noFilter,
			"empty":   wantsHEAD,
			"SHA-256": sha1Alone,
		}},
		&client{name: "libgit2 (pygit2)", program: bin("pygit2"), protocol: "0", limits: map[string]string{
			"partial": noFilter,
			"SHA-256": sha1Alone + " unless it is built with SHA-256",
		}},
		&client{name: "libgit2 (pygit2), older", program: bin("pygit2-old"), protocol: "0", limits: map[string]string{
			"deepen":  "it does not move the boundary",
			"partial": noFilter,
			"SHA-256": sha1Alone,
		}},
		&client{name: "JGit", program: bin("jgit"), env: []string{"PROTOCOL=2"}, protocol: "2",
			limits: map[string]string{"SHA-256": sha1Alone}},
		&client{name: "JGit", program: bin("jgit"), env: []string{"PROTOCOL=0"}, protocol: "0",
			limits: map[string]string{"SHA-256": sha1Alone}},
		&client{name: "JGit, older", program: bin("jgit-old"), env: []string{"PROTOCOL=0"}, protocol: "0",
			limits: map[string]string{
				"shallow": noDepth,
				"deepen":  noDepth,
				"SHA-256": sha1Alone,
			}},
		&client{name: "isomorphic-git", program: bin("isomorphic-git"), protocol: "0, 2", limits: map[string]string{
			"partial":     noFilter,
			"SHA-256":     sha1Alone,
			"push by SSH": "it supports only HTTP",
		}},
		&client{name: "gitoxide", program: bin("gitoxide"), protocol: "2", ssh: true, limits: map[string]string{
			"partial":     noFilter,
			"SHA-256":     sha1Alone + " unless it is built with SHA-256",
			"push":        noPush,
			"push by SSH": noPush,
		}},
		&client{name: "gitoxide, older", program: bin("gitoxide-old"), protocol: "2", ssh: true, limits: map[string]string{
			"partial":     noFilter,
			"SHA-256":     sha1Alone,
			"push":        noPush,
			"push by SSH": noPush,
		}},
	)
}

// TestClients runs each operation with each client against Packhorse, and compares the result with that of git by file
// path. PACKHORSE_CLIENTS names the directory that .ci/clients filled. Without it git is the only client.
func TestClients(t *testing.T) {
	m, pushes := newMatrix(t), newPrivateMatrix(t)
	var mu sync.Mutex
	cells := map[*client]map[string]string{}
	var ran []*client
	t.Run("run", func(t *testing.T) {
		for _, c := range clients(os.Getenv("PACKHORSE_CLIENTS")) {
			out, err := m.drive(c, "version")
			if err != nil {
				if *update {
					t.Fatalf("%s does not run, and the page needs all: %v", c.name, err)
				}
				t.Logf("*** %s is not installed: NOT tested ***", c.name)
				continue
			}
			c.version = strings.TrimPrefix(strings.TrimPrefix(strings.TrimSpace(out), "v"), "git version ")
			ran = append(ran, c)
			cells[c] = map[string]string{}
			for _, op := range operations {
				t.Run(fmt.Sprintf("%s/%s/%s", c.name, c.protocol, op.name), func(t *testing.T) {
					t.Parallel()
					var cell string
					if op.push != "" {
						cell = pushes.push(t, c, op)
					} else {
						cell = m.cell(t, c, op)
					}
					mu.Lock()
					defer mu.Unlock()
					cells[c][op.name] = cell
				})
			}
		}
	})
	if t.Failed() {
		return
	}
	if slices.ContainsFunc(ran, func(c *client) bool { return cells[c]["after a push"] == "ok" }) {
		m.checkComposed(t)
	}
	// -run may leave cells out
	whole := slices.DeleteFunc(ran, func(c *client) bool { return len(cells[c]) < len(operations) })
	checkPage(t, whole, cells)
}

// matrix is what the cells share: two servers of the same directory.
type matrix struct {
	root       string // served
	work       string
	ours, gits string // URLs
	ops        string // URL of the private listener
	programs   string // a directory of those that clients are to find first; "": none
}

func newMatrix(t *testing.T) *matrix {
	m := &matrix{root: t.TempDir(), work: t.TempDir()}
	repos := makeTemplates(t)
	for _, name := range []string{"random", "linear", "sha256"} {
		if err := os.CopyFS(m.repo(name), os.DirFS(filepath.Join(repos, name))); err != nil {
			t.Fatal(err)
		}
	}
	gittest.At(t, m.repo("random")).Git("config", "uploadpack.allowFilter", "true") // for git by file path
	gittest.InitAt(t, m.repo("empty"))
	refs := gittest.InitAt(t, m.repo("refs"))
	tip := refs.Commit("tip", refs.Commit("root"))
	var lines strings.Builder
	fmt.Fprintf(&lines, "create refs/heads/main %s\n", tip)
	for i := range 1000 {
		fmt.Fprintf(&lines, "create refs/heads/topic/%d %s\ncreate refs/tags/t%d %s\n", i, tip, i, tip)
	}
	refs.GitIn(lines.String(), "update-ref", "--stdin")
	refs.Git("pack-refs", "--all")

	state := filepath.Join(m.work, "state")
	token := createToken(t, "ci", "--state", state)
	p, err := startServer(m.work, append(os.Environ(), "GORACE=atexit_sleep_ms=0"), []string{"serve", "--root", m.root,
		"--state", state, "--public-read", "--http", "127.0.0.1:0", "--ops", "127.0.0.1:0", "--log-format", "json"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.cmd.Process.Signal(os.Interrupt)
		if err := p.wait(); err != nil || strings.Contains(p.logged(), "DATA RACE") {
			t.Errorf("the server ended with %v; its log:\n%s", err, p.logged())
		}
	})
	m.ours, m.ops, m.gits = p.http, p.ops, httpBackend(t, m.root)
	m.receivePushes(t, token)
	return m
}

// receivePushes makes the repository "pushed" of 30 pushes by git over HTTP: thin packs, whose deltas have bases in the
// packs of earlier pushes. A clone follows each fifth push, and later each push except the last one. Its pack is
// composed from that of the clone before and from the packs of the pushes since.
func (m *matrix) receivePushes(t *testing.T, token string) {
	const pushes = 30
	gittest.InitAt(t, m.repo("pushed"))
	local := gittest.Init(t)
	lines := make([]string, 2000)
	for i := range lines {
		lines[i] = fmt.Sprintf("line %d %x\n", i, sha256.Sum256([]byte{byte(i), byte(i >> 8)}))
	}
	var in strings.Builder
	for i := range pushes {
		lines[i*71%len(lines)] = fmt.Sprintf("changed %d\n", i)
		data := strings.Join(lines, "")
		fmt.Fprintf(&in, "commit refs/heads/main\ncommitter C <c@example.com> %d +0000\ndata 4\npush\n", 1_700_000_000+i)
		fmt.Fprintf(&in, "M 100644 inline dir/large\ndata %d\n%s\n", len(data), data)
		fmt.Fprintf(&in, "M 100644 inline dir/%d\ndata 3\n%03d\n", i%10, i)
	}
	local.GitIn(in.String(), "fast-import", "--quiet")
	url := m.ours + "/pushed.git"
	for i, commit := range strings.Fields(local.Git("rev-list", "--reverse", "main")) {
		local.Git("-c", "http.extraHeader="+basicHeader("ci", token), "push", "-q", url, commit+":refs/heads/main")
		if i%5 == 2 || i >= pushes/2 && i < pushes-1 {
			local.Git("clone", "-q", "--bare", url, filepath.Join(t.TempDir(), "other"))
		}
	}
}

func (m *matrix) repo(name string) string { return filepath.Join(m.root, name+".git") }

// httpBackend serves root with git http-backend and returns its URL.
func httpBackend(t *testing.T, root string) string {
	path, err := exec.LookPath("git")
	if err != nil {
		t.Fatal(err)
	}
	var env []string
	for _, v := range gittest.Env() {
		if !strings.HasPrefix(v, "GIT_CONFIG_COUNT=") {
			env = append(env, v)
		}
	}
	server := httptest.NewServer(&cgi.Handler{Path: path, Args: []string{"http-backend"}, Stderr: io.Discard,
		Env: append(env,
			"GIT_PROJECT_ROOT="+root, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_COUNT=2", "GIT_CONFIG_KEY_0=uploadpack.allowFilter",
			"GIT_CONFIG_VALUE_0=true", "GIT_CONFIG_KEY_1=uploadpack.allowAnySHA1InWant", "GIT_CONFIG_VALUE_1=true")})
	t.Cleanup(server.Close)
	return server.URL
}

// cell returns the text of the page for a client and an operation: "ok", or the reason why the client cannot do it.
func (m *matrix) cell(t *testing.T, c *client, op operation) string {
	err := m.attempt(t, c, op, m.ours, "ours")
	reason := c.limits[op.name]
	switch {
	case err == nil && reason == "":
		return "ok"
	case err == nil:
		t.Errorf("%s can do it, other than its limits say: %s", c.name, reason)
		return "ok"
	}
	// The same operation against git's own server shows whether the fault is ours or the client's.
	onGits := m.attempt(t, c, op, m.gits, "gits")
	switch {
	case onGits == nil:
		t.Errorf("%s fails, and does not with git http-backend: %v", c.name, err)
	case reason == "":
		t.Errorf("%s fails with any server: add the reason to its limits: %v\nand with git http-backend: %v", c.name,
			err, onGits)
	}
	return reason
}

// attempt runs an operation against a server and compares with git by file path.
func (m *matrix) attempt(t *testing.T, c *client, op operation, server, who string) error {
	repo := op.repo
	if slices.Contains(op.steps, "GROW") { // one for this attempt alone
		repo = strings.NewReplacer(" ", "-", "(", "", ")",
			"").Replace(fmt.Sprintf("%s-%s-%s-%s", c.name, c.protocol[:1], op.name, who))
		if err := os.CopyFS(m.repo(repo), os.DirFS(m.repo(op.repo))); err != nil {
			t.Fatal(err)
		}
	}
	oracle := &client{name: "git by file path", program: "clients/git/driver"}
	dir, want := filepath.Join(t.TempDir(), "got"), filepath.Join(t.TempDir(), "want")
	for _, step := range op.steps {
		switch step {
		case "GROW":
			grow(t, m.repo(repo))
			continue
		case "FILL":
			if _, err := m.drive(oracle, "clone", server+"/"+repo+".git", filepath.Join(t.TempDir(), "other")); err != nil {
				t.Fatal(err)
			}
			continue
		}
		args := func(url, dir string) []string {
			return strings.Fields(strings.NewReplacer("URL", url+"/"+repo+".git", "DIR", dir).Replace(step))
		}
		list, err := m.drive(c, args(server, dir)...)
		if err != nil {
			return err
		}
		wanted, err := m.drive(oracle, args("file://"+m.root, want)...)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(step, "ls-remote") && listed(list) != listed(wanted) {
			return fmt.Errorf("%s lists\n%s\nand not\n%s", c.name, listed(list), listed(wanted))
		}
	}
	if op.refs == nil {
		return nil
	}
	return sameFetched(dir, want, op)
}

// checkComposed checks that packs were composed from earlier ones.
func (m *matrix) checkComposed(t *testing.T) {
	t.Helper()
	resp, err := http.Get(m.ops + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`(?m)^packhorse_pack_bytes_total\{representation="reused_cache"\} [1-9]`).Match(text) {
		t.Error("no pack was composed from an earlier one after a push")
	}
}

// listed brings a list of refs into one form, without peeled tags, which some clients do not show.
func listed(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); !strings.HasSuffix(line, "^{}") {
			lines = append(lines, line)
		}
	}
	return sorted(strings.Join(lines, "\n"))
}

// grow adds what a busy day adds: commits, a branch, tags.
func grow(t *testing.T, dir string) {
	r := gittest.At(t, dir)
	first := r.Commit("first of the day", r.ID("main"))
	second := r.Commit("second of the day", first, r.ID("release/1.0"))
	r.Git("update-ref", "refs/heads/main", second.String())
	r.Git("update-ref", "refs/heads/of-the-day", first.String())
	r.Git("tag", "-a", "-m", "annotated", "annotated-of-the-day", first.String())
	r.Git("tag", "light-of-the-day", second.String())
}

// sameFetched compares two repositories as far as an operation filled them: refs, objects, shallow boundary, a clean
// fsck.
func sameFetched(got, want string, op operation) error {
	partial := op.name == "partial"
	if _, err := tryGit(got, "fsck", "--full", "--no-dangling"); err != nil && !partial {
		return err
	}
	refs := func(dir string) ([]string, error) {
		out, err := tryGit(dir, append([]string{"for-each-ref", "--format=%(refname)"}, op.refs...)...)
		return slices.DeleteFunc(strings.Fields(out), func(r string) bool { return r == "refs/remotes/origin/HEAD" }), err
	}
	for _, what := range []struct {
		name string
		of   func(dir string) (string, error)
	}{
		{"refs", func(dir string) (string, error) {
			names, err := refs(dir)
			if err != nil || len(names) == 0 {
				return "", err
			}
			out, err := tryGit(dir, append([]string{"for-each-ref", "--format=%(objectname) %(refname)"}, names...)...)
			return sorted(out), err
		}},
		{"shallow boundary", func(dir string) (string, error) {
			text, err := os.ReadFile(filepath.Join(dir, ".git", "shallow"))
			if errors.Is(err, fs.ErrNotExist) {
				err = nil
			}
			return sorted(string(text)), err
		}},
		{"objects", func(dir string) (string, error) {
			if partial {
				out, err := tryGit(dir, "cat-file", "--batch-all-objects", "--batch-check=%(objectname)")
				return sorted(out), err
			}
			names, err := refs(dir)
			if err != nil || len(names) == 0 {
				return "", err
			}
			out, err := tryGit(dir, append([]string{"rev-list", "--objects", "--no-object-names"}, names...)...)
			return sorted(out), err
		}},
	} {
		x, err := what.of(got)
		if err != nil {
			return err
		}
		y, err := what.of(want)
		if err != nil {
			return err
		}
		if x != y {
			return fmt.Errorf("other %s than git's: only there %q, missing %q", what.name, without(x, y), without(y, x))
		}
	}
	return nil
}

// without lists a's lines that b has not, the first few.
func without(a, b string) []string {
	have := strings.Split(b, "\n")
	rest := slices.DeleteFunc(strings.Split(a, "\n"), func(line string) bool { return slices.Contains(have, line) })
	return rest[:min(len(rest), 5)]
}

func tryGit(dir string, args ...string) (string, error) {
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = append(gittest.Env(), "GIT_NO_LAZY_FETCH=1")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w\n%s%s", strings.Join(args, " "), err, out, &stderr)
	}
	return string(out), nil
}

// drive runs a client's driver, which finds nothing of the user's.
func (m *matrix) drive(c *client, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), driverLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.program, args...)
	cmd.Env = append(append(gittest.Env(), "HOME="+m.work, "XDG_CONFIG_HOME="+filepath.Join(m.work, "config")), c.env...)
	if m.programs != "" {
		cmd.Env = append(cmd.Env, "PATH="+m.programs+string(os.PathListSeparator)+os.Getenv("PATH"))
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", c.name, strings.Join(args, " "), cmp.Or(ctx.Err(), err), &stderr)
	}
	return string(out), nil
}
