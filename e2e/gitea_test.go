package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// giteaDir is the environment variable that names the directory that .ci/gitea made.
const giteaDir = "PACKHORSE_TEST_GITEA"

// gitea is a real Gitea with three users: admin owns the repositories, bob and carol are others.
type gitea struct {
	*testing.T
	dir     string
	address string            // of Gitea itself
	url     string            // as users see it, without a slash at the end
	tokens  map[string]string // by user

	accessLog string // of nginx before it; "" without
}

const giteaConfig = `
RUN_USER = {user}
I_AM_BEING_UNSAFE_RUNNING_AS_ROOT = true
WORK_PATH = {dir}
[server]
HTTP_ADDR = 127.0.0.1
HTTP_PORT = {port}
ROOT_URL = {url}/
LOCAL_ROOT_URL = http://127.0.0.1:{port}/
STATIC_ROOT_PATH = {static}
OFFLINE_MODE = true
DISABLE_SSH = true
LFS_START_SERVER = true
LFS_JWT_SECRET = bzVAV6Va5OxwAHbvKZAsrxz7k3RlkEsJ5iOzFB7ItzQ
[lfs]
PATH = {dir}/lfs
[database]
DB_TYPE = sqlite3
PATH = {dir}/gitea.db
[security]
INSTALL_LOCK = true
SECRET_KEY = a-secret-of-this-test
[repository]
ROOT = {dir}/repositories
[webhook]
ALLOWED_HOST_LIST = *
[log]
LEVEL = Warn
[actions]
ENABLED = false
[indexer]
ISSUE_INDEXER_TYPE = db
`

// startGitea starts a Gitea behind the URL that users see. Without the program the test is skipped.
func startGitea(t *testing.T, address, url string) *gitea {
	t.Helper()
	static := os.Getenv(giteaDir)
	if static == "" {
		static = "../bin/gitea"
	}
	static, err := filepath.Abs(static)
	if err != nil {
		t.Fatal(err)
	}
	if real, err := filepath.EvalSymlinks(static); err == nil {
		static = real // Gitea finds no files below a symbolic link
	}
	program := filepath.Join(static, "gitea")
	if _, err := os.Stat(program); err != nil {
		t.Skipf("*** There is no Gitea: mirrors of a real forge are NOT tested (.ci/gitea bin/gitea builds one). *** (%v)",
			err)
	}
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	g := &gitea{T: t, dir: t.TempDir(), address: address, url: url, tokens: map[string]string{}}
	_, port, _ := net.SplitHostPort(address)
	config := filepath.Join(g.dir, "app.ini")
	text := strings.NewReplacer("{user}", me.Username, "{dir}", g.dir, "{port}", port, "{url}", url, "{static}", static).
		Replace(giteaConfig)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) string {
		t.Helper()
		cmd := exec.Command(program, append([]string{"--config", config}, args...)...)
		cmd.Env = append(os.Environ(), "HOME="+g.dir)
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("gitea %q: %v\n%s", args, err, out)
		}
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		return lines[len(lines)-1]
	}
	run("migrate")
	for _, name := range []string{"owner", "bob", "carol"} {
		args := []string{"admin", "user", "create", "--username", name, "--password", name + "-password", "--email",
			name + "@example.com", "--must-change-password=false"}
		if name == "owner" {
			args = append(args, "--admin")
		}
		run(args...)
		g.tokens[name] = run("admin", "user", "generate-access-token", "--username", name, "--scopes", "all", "--raw")
	}
	cmd := exec.Command(program, "--config", config, "web")
	cmd.Env = append(os.Environ(), "HOME="+g.dir)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { cmd.Wait(); close(ended) }()
	t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		<-ended
		if t.Failed() {
			t.Logf("the log of Gitea:\n%s", &log)
		}
	})
	healthy := false
	if !gittest.Eventually(func() bool {
		response, err := http.Get("http://" + address + "/api/healthz")
		if err == nil {
			response.Body.Close()
		}
		healthy = err == nil && response.StatusCode == http.StatusOK
		select {
		case <-ended:
			return true
		default:
			return healthy
		}
	}) || !healthy {
		t.Fatal("Gitea does not become healthy")
	}
	return g
}

// api calls Gitea's API as the owner.
func (g *gitea) api(method, path string, body any) map[string]any {
	g.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		g.Fatal(err)
	}
	request, err := http.NewRequest(method, "http://"+g.address+"/api/v1/"+path, bytes.NewReader(text))
	if err != nil {
		g.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Authorization", "token "+g.tokens["owner"])
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		g.Fatal(err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode >= 300 {
		g.Fatalf("%s %s: got %s, %v, want success: %s", method, path, response.Status, err, answer)
	}
	var value map[string]any
	_ = json.Unmarshal(answer, &value) // lists and empty answers are not needed
	return value
}

// create makes a repository of the owner with the history of another one.
func (g *gitea) create(name string, private bool, from *gittest.Repo) {
	g.Helper()
	g.api(http.MethodPost, "user/repos", map[string]any{"name": name, "private": private, "default_branch": "main"})
	from.Git("push", "--quiet", "--mirror", g.as("owner", g.url+"/owner/"+name))
}

// as returns a URL with the user's token as the password. Without a user it is the URL.
func (g *gitea) as(user, url string) string {
	if user == "" {
		return url
	}
	return strings.Replace(url, "://", fmt.Sprintf("://%s:%s@", user, g.tokens[user]), 1)
}

// lsRemote returns the output of git ls-remote as a user. With "" it has no credential.
func (g *gitea) lsRemote(user, url string) (string, error) {
	cmd := exec.Command("git", "ls-remote", g.as(user, url))
	cmd.Env = append(gittest.Env(), "GIT_TERMINAL_PROMPT=0")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// reads checks that a user gets the tip of main, and that others do not get any ref.
func (g *gitea) reads(what, url, tip string, allowed, refused []string) {
	g.Helper()
	for _, user := range allowed {
		if out, err := g.lsRemote(user, url); err != nil || !strings.Contains(out, tip+"\trefs/heads/main") {
			g.Errorf("%s: %q got %v and %s, want main at %s", what, user, err, out, tip)
		}
	}
	for _, user := range refused {
		if out, err := g.lsRemote(user, url); err == nil || strings.Contains(out, "refs/") {
			g.Errorf("%s: %q got %v and %s, want a refusal", what, user, err, out)
		}
	}
}
