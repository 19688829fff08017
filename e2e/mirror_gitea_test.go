package e2e

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// behindNginx starts a Gitea behind nginx, which front starts before the address of the Gitea.
func behindNginx(t *testing.T, front func(dir, forge string) (*nginx, error)) *gitea {
	t.Helper()
	if nginxProgram() == "" {
		t.Skip("*** There is no nginx: mirrors of a real forge are NOT tested. ***")
	}
	address, err := freeAddress()
	if err != nil {
		t.Fatal(err)
	}
	n, err := front(filepath.Join(t.TempDir(), "nginx"), address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.stop)
	g := startGitea(t, address, "http://"+n.address)
	g.accessLog = filepath.Join(n.dir, "access.log")
	return g
}

// lfsSent matches an access to an object of Git LFS that Gitea sent, in the access log of nginx.
var lfsSent = regexp.MustCompile(`"GET [^" ]*/info/lfs/objects/([0-9a-f]{64})[^"]*" 20[06] `)

// lfsDownloads returns how often Gitea sent each object, by ID.
func (g *gitea) lfsDownloads() map[string]int {
	g.Helper()
	text, err := os.ReadFile(g.accessLog)
	if err != nil {
		g.Fatal(err)
	}
	sent := make(map[string]int)
	for _, match := range lfsSent.FindAllSubmatch(text, -1) {
		sent[string(match[1])]++
	}
	return sent
}

// giteaMirror is a mirror of a Gitea.
type giteaMirror struct {
	*gitea
	p     *serverProcess
	root  string
	clone *gittest.Repo // a repository with the history of owner/app
}

func (m *giteaMirror) at(repository string) string { return m.p.http + "/gitea/" + repository }

// TestMirrorOfGitea puts a mirror in front of a real Gitea behind nginx.
func TestMirrorOfGitea(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	g := behindNginx(t, func(dir, forge string) (*nginx, error) {
		return startNginx(dir, "location / { proxy_pass http://"+forge+"; }")
	})
	m := &giteaMirror{gitea: g, root: filepath.Join(g.dir, "mirror"), clone: linear(t)}
	g.create("app", false, m.clone)
	g.create("secret", true, m.clone)
	write := func(name, text string) string {
		t.Helper()
		if err := os.WriteFile(filepath.Join(g.dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return filepath.Join(g.dir, name)
	}
	config := write("mirror.toml", fmt.Sprintf(`
[[mirror]]
from = "%s/"
to = "gitea"
refs = ["refs/heads/*", "refs/tags/*", "refs/pull/*/head"]
webhook_secret_file = %q
[auth]
ttl = "1s"
`, g.url, write("hook-secret", "a-secret-of-the-webhook\n")))
	var err error
	m.p, err = startServer(g.dir, gittest.Env(), []string{"mirror", "--config", config, "--root", m.root, "--state",
		filepath.Join(g.dir, "state"), "--http", "127.0.0.1:0", "--ops", "127.0.0.1:0", "--log-format", "json"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		m.p.cmd.Process.Signal(syscall.SIGTERM)
		if err := m.p.wait(); err != nil || t.Failed() {
			t.Errorf("the mirror ended: %v\n%s", err, m.p.logged())
		}
	})
	m.access()
	m.push()
	m.pullRequest()
	m.webhook()
	m.lfs()
	m.rename()
	for user, token := range g.tokens {
		if strings.Contains(m.p.logged(), token) {
			t.Errorf("the log contains the token of %s", user)
		}
	}
}

// access: the forge's answer is the mirror's, within a second.
func (m *giteaMirror) access() {
	tip := m.clone.Git("rev-parse", "main")
	all := []string{"", "owner", "bob", "carol"}
	m.reads("public", m.at("owner/app"), tip, all, nil)
	m.reads("private", m.at("owner/secret"), tip, []string{"owner"}, []string{"", "bob", "carol"})
	m.api(http.MethodPut, "repos/owner/secret/collaborators/bob", map[string]any{"permission": "read"})
	if !gittest.Eventually(func() bool { _, err := m.lsRemote("bob", m.at("owner/secret")); return err == nil }) {
		m.Error("bob is a collaborator and cannot read owner/secret")
	}
	m.reads("shared", m.at("owner/secret"), tip, []string{"owner", "bob"}, []string{"", "carol"})
	m.api(http.MethodDelete, "repos/owner/secret/collaborators/bob", nil)
	revoked := time.Now()
	if !gittest.Eventually(func() bool { _, err := m.lsRemote("bob", m.at("owner/secret")); return err != nil }) {
		m.Error("bob is no collaborator any more and can read owner/secret")
	}
	m.Logf("revoked access was effective after %v, with auth.ttl = 1s", time.Since(revoked).Round(time.Millisecond))
	if out, err := m.lsRemote("owner", m.at("owner/missing")); err == nil {
		m.Errorf("a missing repository: got %s, want an error", out)
	}
}

// push: a push reaches the forge with the caller's credential, its report is unchanged, and the mirror is fresh.
func (m *giteaMirror) push() {
	m.Helper()
	work := filepath.Join(m.TempDir(), "work")
	gittest.Run(m, "", "", "clone", "--quiet", m.at("owner/app"), work)
	at := gittest.At(m, work)
	at.Git("commit", "--quiet", "--allow-empty", "-m", "pushed")
	push := func(user, ref string) (string, error) {
		cmd := exec.Command("git", "push", m.as(user, m.at("owner/app")), "HEAD:"+ref)
		cmd.Dir, cmd.Env = work, append(gittest.Env(), "GIT_TERMINAL_PROMPT=0")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := push("owner", "refs/heads/topic"); err != nil ||
		!strings.Contains(out, "remote: Create a new pull request for 'topic'") {
		m.Errorf("push: got %v and %s, want Gitea's invitation to make a pull request", err, out)
	}
	if out, err := m.lsRemote("", m.at("owner/app")); err != nil ||
		!strings.Contains(out, at.Git("rev-parse", "HEAD")+"\trefs/heads/topic") {
		m.Errorf("after the push the mirror has %v and %s, want topic", err, out)
	}
	for _, user := range []string{"", "bob"} {
		if out, err := push(user, "refs/heads/never"); err == nil {
			m.Errorf("a push of %q: got success, want a refusal: %s", user, out)
		}
	}
	m.clone.Git("fetch", "--quiet", work, "HEAD:refs/heads/topic")
}

// pullRequest: the refs of pull requests are there by refspec.
func (m *giteaMirror) pullRequest() {
	m.Helper()
	m.api(http.MethodPost, "repos/owner/app/pulls", map[string]any{"head": "topic", "base": "main", "title": "A title"})
	want := m.clone.Git("rev-parse", "topic") + "\trefs/pull/1/head"
	var out string
	if !gittest.Eventually(func() bool {
		out, _ = m.lsRemote("", m.at("owner/app"))
		return strings.Contains(out,
			want)
	}) {
		m.Errorf("the mirror has %s, want %s", out, want)
	}
}

// webhook: the forge's webhook makes a commit visible in the mirror without a client's question.
func (m *giteaMirror) webhook() {
	m.Helper()
	m.api(http.MethodPost, "repos/owner/app/hooks", map[string]any{"type": "gitea", "active": true,
		"events": []string{"push"},
		"config": map[string]any{"url": m.p.http + "/-/hooks/gitea", "content_type": "json",
			"secret": "a-secret-of-the-webhook"}})
	id := m.clone.Commit("webhook", m.clone.ID("main"))
	m.clone.Git("push", "--quiet", m.as("owner", m.url+"/owner/app"), id.String()+":refs/heads/main")
	pushed := time.Now()
	mirror := gittest.At(m, filepath.Join(m.root, "gitea", "owner", "app.git"))
	if !gittest.Eventually(func() bool {
		at, _ := mirror.Try("rev-parse",
			"main")
		return strings.TrimSpace(at) == id.String()
	}) {
		m.Fatalf("the mirror's main is not at %v after a webhook", id)
	}
	m.clone.Git("update-ref", "refs/heads/main", id.String())
	m.Logf("a push was visible %v after its end, Gitea's own queue included", time.Since(pushed).Round(time.Millisecond))
}

// lfs: objects go to the forge with the caller's credential, and come from it once.
func (m *giteaMirror) lfs() {
	m.Helper()
	if _, err := exec.LookPath("git-lfs"); err != nil {
		m.Logf("*** There is no git-lfs: Git LFS of a real forge is NOT tested. *** (%v)", err)
		return
	}
	m.create("media", true, m.clone)
	dir := m.TempDir()
	git := func(in string, args ...string) (string, error) {
		cmd := exec.Command("git", args...)
		cmd.Dir = in
		cmd.Env = append(gittest.Env(), "GIT_CONFIG_GLOBAL="+filepath.Join(dir, "config"))
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	must := func(in string, args ...string) string {
		m.Helper()
		out, err := git(in, args...)
		if err != nil {
			m.Fatalf("git %q: %v\n%s", args, err, out)
		}
		return out
	}
	work, content := filepath.Join(dir, "work"), bytes.Repeat([]byte("a line of a large file\n"), 100_000)
	must(dir, "lfs", "install", "--skip-repo")
	must(dir, "clone", "--quiet", m.as("owner", m.at("owner/media")), work)
	must(work, "lfs", "track", "*.bin")
	if err := os.WriteFile(filepath.Join(work, "large.bin"), content, 0o600); err != nil {
		m.Fatal(err)
	}
	must(work, "add", ".")
	must(work, "commit", "--quiet", "-m", "a large file")
	must(work, "push", "--quiet", "origin", "HEAD:main")
	for i, url := range []string{m.url + "/owner/media", m.at("owner/media"), m.at("owner/media")} {
		clone := filepath.Join(dir, fmt.Sprint("clone", i))
		must(dir, "clone", "--quiet", m.as("owner", url), clone)
		if got, err := os.ReadFile(filepath.Join(clone, "large.bin")); err != nil || !bytes.Equal(got, content) {
			m.Errorf("a clone of %s: large.bin has %d bytes, %v, want %d", url, len(got), err, len(content))
		}
	}
	m.lfsOnce(git)
	if out, err := git(dir, "clone", "--quiet", m.as("bob", m.at("owner/media")), "denied"); err == nil {
		m.Errorf("a clone by bob, who may not read: got success: %s", out)
	}
	must(work, "lfs", "lock", "large.bin")
	if out := must(work, "lfs", "locks"); !strings.Contains(out, "large.bin") || !strings.Contains(out, "owner") {
		m.Errorf("git lfs locks: got %s, want the owner's lock of large.bin", out)
	}
	must(work, "lfs", "unlock", "large.bin")
}

// lfsOnce: many clones through the mirror at the same time, and later ones, cost one download of each object.
func (m *giteaMirror) lfsOnce(git func(dir string, args ...string) (string, error)) {
	m.Helper()
	must := func(in string, args ...string) string {
		m.Helper()
		out, err := git(in, args...)
		if err != nil {
			m.Fatalf("git %q: %v\n%s", args, err, out)
		}
		return out
	}
	const files, clones = 5, 8
	dir := m.TempDir()
	m.create("many", true, m.clone)
	work := filepath.Join(dir, "work")
	must(dir, "clone", "--quiet", m.as("owner", m.url+"/owner/many"), work)
	must(work, "lfs", "track", "*.bin")
	for i := range files {
		content := bytes.Repeat(fmt.Appendf(nil, "a line of file %d\n", i), 200_000)
		if err := os.WriteFile(filepath.Join(work, fmt.Sprint(i, ".bin")), content, 0o600); err != nil {
			m.Fatal(err)
		}
	}
	must(work, "add", ".")
	must(work, "commit", "--quiet", "-m", "large files")
	must(work, "push", "--quiet", "origin", "HEAD:main")
	ids := strings.Fields(must(work, "lfs", "ls-files", "--long"))
	before := m.lfsDownloads()
	var running sync.WaitGroup
	for i := range clones {
		running.Go(func() {
			clone := filepath.Join(dir, fmt.Sprint("clone", i))
			out, err := git(dir, "clone", "--quiet", m.as("owner", m.at("owner/many")), clone)
			if err == nil {
				out, err = git(clone, "lfs", "fsck")
			}
			if err != nil {
				m.Errorf("clone %d: %v\n%s", i, err, out)
			}
		})
	}
	running.Wait()
	must(dir, "clone", "--quiet", m.as("owner", m.at("owner/many")), filepath.Join(dir, "later"))
	counted := 0
	for id, n := range m.lfsDownloads() {
		if slices.Contains(ids, id) {
			counted++
			if n -= before[id]; n != 1 {
				m.Errorf("Gitea sent object %s %d times for %d clones, want once", id, n, clones+1)
			}
		}
	}
	if counted != files {
		m.Errorf("Gitea sent %d of the objects %q, want %d", counted, ids, files)
	}
}

// rename: the forge redirects the old name, and the mirror follows.
func (m *giteaMirror) rename() {
	m.Helper()
	m.api(http.MethodPatch, "repos/owner/app", map[string]any{"name": "renamed"})
	id := m.clone.Commit("renamed", m.clone.ID("main"))
	m.clone.Git("push", "--quiet", m.as("owner", m.url+"/owner/renamed"), id.String()+":refs/heads/main")
	var out string
	if !gittest.Eventually(func() bool {
		out, _ = m.lsRemote("", m.at("owner/app"))
		return strings.Contains(out, id.String()+"\trefs/heads/main")
	}) {
		m.Errorf("after the rename the mirror of the old name has %s, want main at %v", out, id)
	}
	m.reads("new name", m.at("owner/renamed"), id.String(), []string{"", "owner"}, nil)
}

// TestSidecarOfGitea serves fetches from the disk of a real Gitea, which decides about readers.
func TestSidecarOfGitea(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	address, err := freeAddress()
	if err != nil {
		t.Fatal(err)
	}
	g := behindNginx(t, func(dir, forge string) (*nginx, error) { return startFront(dir, forge, address) })
	repo := linear(t)
	g.create("App", false, repo)
	g.create("secret", true, repo)
	config := filepath.Join(g.dir, "sidecar.toml")
	text := fmt.Sprintf("trusted_proxies = [\"127.0.0.1\"]\n[auth]\nttl = \"1s\"\n[auth.origin]\nurl = "+
		"\"http://%s/\"\nfold_case = true\n"+
		"[push]\nenabled = false\n[maintenance]\nenabled = false\n[search]\nenabled = false\n", g.address)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := startServer(g.dir, gittest.Env(), []string{"serve", "--config", config, "--root",
		filepath.Join(g.dir, "repositories"), "--state", filepath.Join(g.dir, "state"), "--http", address, "--ops",
		"127.0.0.1:0", "--log-format", "json"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.cmd.Process.Signal(syscall.SIGTERM)
		if err := p.wait(); err != nil || t.Failed() {
			t.Errorf("the sidecar ended: %v\n%s", err, p.logged())
		}
	})
	tip := repo.Git("rev-parse", "main")
	g.reads("public", g.url+"/owner/App", tip, []string{"", "owner", "bob"}, nil)
	g.reads("private", g.url+"/owner/secret", tip, []string{"owner"}, []string{"", "bob", "carol"})
	g.api(http.MethodPut, "repos/owner/secret/collaborators/bob", map[string]any{"permission": "read"})
	if !gittest.Eventually(func() bool { _, err := g.lsRemote("bob", g.url+"/owner/secret"); return err == nil }) {
		t.Error("bob is a collaborator and cannot read owner/secret")
	}
	g.api(http.MethodDelete, "repos/owner/secret/collaborators/bob", nil)
	if !gittest.Eventually(func() bool { _, err := g.lsRemote("bob", g.url+"/owner/secret"); return err != nil }) {
		t.Error("bob is no collaborator any more and can read owner/secret")
	}

	// A push goes to Gitea, through nginx, and the next fetch has it.
	id := repo.Commit("pushed", repo.ID("main"))
	repo.Git("push", "--quiet", g.as("owner", g.url+"/owner/secret"), id.String()+":refs/heads/main")
	g.reads("after a push", g.url+"/owner/secret", id.String(), []string{"owner"}, []string{"", "bob"})
	clone := filepath.Join(g.dir, "clone.git")
	gittest.Run(t, "", "", "clone", "--quiet", "--mirror", g.as("owner", g.url+"/owner/secret"), clone)
	gittest.At(t, clone).Git("fsck", "--strict")
	if !strings.Contains(p.logged(), `"operation":"fetch","result":"ok","repository":"owner/secret"`) {
		t.Error("no fetch went to Packhorse")
	}
}
