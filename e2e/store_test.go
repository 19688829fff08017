package e2e

import (
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/store/bucket/buckettest"
)

// storeWorld is one store with any number of servers, and a user.
type storeWorld struct {
	t      *testing.T
	dir    string
	bucket *buckettest.Server
	table  string // [store] of the configuration
	key    string // the user's SSH key; "" without ssh
}

// storeServer is one server of a store.
type storeServer struct {
	*serverProcess
	w     *storeWorld
	name  string
	extra string // lines of [store]
	token string
}

func newStoreWorld(t *testing.T) *storeWorld {
	t.Helper()
	w := &storeWorld{t: t, dir: t.TempDir(), bucket: buckettest.Versitygw(t)}
	o := w.bucket.Options("git")
	w.table = fmt.Sprintf("[store]\nurl = %q\nendpoint = %q\ncredentials_file = %q\n", o.URL, o.Endpoint,
		o.CredentialsFile)
	runPackhorse(w.t, "", "store", "init", o.URL, "--endpoint", o.Endpoint, "--credentials-file", o.CredentialsFile)
	if _, err := exec.LookPath("ssh"); err == nil {
		w.key = filepath.Join(w.dir, "key")
		if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", w.key).CombinedOutput(); err != nil {
			t.Fatalf("ssh-keygen: %v\n%s", err, out)
		}
		keys := filepath.Join(w.dir, "keys")
		if err := os.Mkdir(keys, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(w.key+".pub", filepath.Join(keys, "alice")); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// serve starts a server with an empty cache. extra has lines of its table [store].
func (w *storeWorld) serve(name, extra string) *storeServer {
	w.t.Helper()
	s := &storeServer{w: w, name: name, extra: extra}
	s.start()
	s.token = createToken(w.t, "alice", "--config", s.config())
	return s
}

func (s *storeServer) root() string   { return filepath.Join(s.w.dir, s.name) }
func (s *storeServer) config() string { return s.root() + ".toml" }

// start starts the server, perhaps once more.
func (s *storeServer) start() {
	t := s.w.t
	t.Helper()
	text := fmt.Sprintf("root = %q\n%snode = %q\n%s\n[search]\nenabled = false\n", s.root(), s.w.table, s.name, s.extra)
	if err := os.WriteFile(s.config(), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"serve", "--config", s.config(), "--http", "127.0.0.1:0", "--ops", "127.0.0.1:0", "--log-format",
		"json", "--public-read"}
	if s.w.key != "" {
		args = append(args, "--ssh", "127.0.0.1:0", "--ssh-keys", filepath.Join(s.w.dir, "keys"))
	}
	p, err := startServer(s.w.dir, gittest.Env(), args)
	if err != nil {
		t.Fatal(err)
	}
	s.serverProcess = p
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("log of %s:\n%s", s.name, p.logged())
		}
	})
}

// stop ends the server cleanly.
func (s *storeServer) stop() {
	s.w.t.Helper()
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		s.w.t.Fatal(err)
	}
	if err := s.wait(); err != nil {
		s.w.t.Errorf("server %s ended: %v", s.name, err)
	}
}

// url returns the URL of a repository over HTTP, for the user.
func (s *storeServer) url(repo string) string {
	u, err := url.Parse(s.http)
	if err != nil {
		s.w.t.Fatal(err)
	}
	u.User, u.Path = url.UserPassword("alice", s.token), "/"+repo
	return u.String()
}

// refs returns the refs of a repository, as a client sees them.
func (s *storeServer) refs(repo string) string {
	s.w.t.Helper()
	return s.w.git("", "ls-remote", s.url(repo))
}

// metric returns the value of a metric without labels.
func (s *storeServer) metric(name string) float64 {
	s.w.t.Helper()
	response, err := http.Get(s.ops + "/metrics")
	if err != nil {
		s.w.t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		s.w.t.Fatal(err)
	}
	for line := range strings.Lines(string(body)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			f, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				s.w.t.Fatal(err)
			}
			return f
		}
	}
	s.w.t.Fatalf("server %s has no metric %s", s.name, name)
	return 0
}

func (w *storeWorld) git(dir string, args ...string) string {
	w.t.Helper()
	out, err := w.tryGit(dir, args...)
	if err != nil {
		w.t.Fatal(err)
	}
	return out
}

func (w *storeWorld) tryGit(dir string, args ...string) (string, error) {
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = append(gittest.Env(), "GIT_TERMINAL_PROMPT=0", "GIT_SSH_COMMAND=ssh -i "+w.key+
		" -o IdentitiesOnly=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile="+filepath.Join(w.dir, "hosts"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("git %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return string(out), err
}

// clone clones a repository and checks it, and returns its directory.
func (w *storeWorld) clone(from string) string {
	w.t.Helper()
	dir := filepath.Join(w.t.TempDir(), "clone")
	w.git("", "clone", "-q", "--mirror", from, dir)
	w.git(dir, "fsck", "--full")
	return dir
}

// TestStore has two servers on one bucket serve each other's pushes.
func TestStore(t *testing.T) {
	t.Parallel()
	w := newStoreWorld(t)
	a, b := w.serve("a", ""), w.serve("b", "")
	work := gittest.Init(t)
	head := work.Commit("one")
	work.Git("update-ref", "refs/heads/main", head.String())
	commit := func(text string) string {
		head = work.Commit(text, head)
		work.Git("update-ref", "refs/heads/main", head.String())
		return head.String()
	}

	runPackhorse(w.t, "", "repo", "create", "team/app", "--config", a.config())
	work.Git("tag", "-a", "-m", "v1", "v1", "main")
	w.git(work.Dir, "push", "-q", a.url("team/app"), "main", "v1")
	if got, want := b.refs("team/app"), a.refs("team/app"); got != want || !strings.Contains(got, "refs/tags/v1^{}") {
		t.Errorf("refs of the other server:\n%s\nwant\n%s", got, want)
	}
	w.clone(b.url("team/app"))

	tip := commit("two")
	to := b.url("team/app")
	if w.key != "" {
		to = b.ssh + "/team/app"
	}
	w.git(work.Dir, "push", "-q", "--atomic", to, "main", "main:topic")
	if got := a.refs("team/app"); strings.Count(got, tip) != 3 { // with HEAD
		t.Errorf("refs after an atomic push to the other server:\n%s\nwant %s three times", got, tip)
	}
	w.git(work.Dir, "push", "-q", a.url("team/app"), ":topic")
	if got := b.refs("team/app"); strings.Contains(got, "topic") {
		t.Errorf("refs after a deletion:\n%s\nwant no topic", got)
	}

	runPackhorse(w.t, "", "repo", "create", "team/gone", "--config", b.config())
	w.git(work.Dir, "push", "-q", a.url("team/gone"), "main")
	runPackhorse(w.t, "", "repo", "remove", "team/gone", "--yes", "--config", a.config())
	if out, err := w.tryGit("", "ls-remote", b.url("team/gone")); err == nil {
		t.Errorf("refs of a removed repository:\n%s\nwant an error", out)
	}
	runPackhorse(w.t, "", "repo", "create", "team/gone", "--config", b.config())
	if got := a.refs("team/gone"); got != "" {
		t.Errorf("refs of another repository under the same path:\n%s\nwant none", got)
	}

	want := a.refs("team/app")
	t.Run("kill", func(t *testing.T) {
		a.kill()
		if got := b.refs("team/app"); got != want {
			t.Errorf("refs after the other server was killed:\n%s\nwant\n%s", got, want)
		}
		a.start()
		w.git(work.Dir, "push", "-q", a.url("team/app"), "main:after")
		w.clone(a.url("team/app"))
		want = b.refs("team/app")
	})
	t.Run("empty", func(t *testing.T) {
		c := w.serve("c", "")
		if got := c.refs("team/app"); got != want {
			t.Errorf("refs of an empty server:\n%s\nwant\n%s", got, want)
		}
		w.clone(c.url("team/app"))
	})
	t.Run("evict", func(t *testing.T) {
		w.git(work.Dir, "push", "-q", a.url("team/gone"), "main")
		b.stop()
		b.extra = "cache = \"4KB\"" // for one of the two repositories
		b.start()
		for _, repo := range []string{"team/app", "team/gone", "team/app"} {
			w.git(work.Dir, "push", "-q", b.url(repo), "main:refs/heads/"+rand.Text())
			w.clone(b.url(repo))
		}
		if n := b.metric(`packhorse_store_evictions_total{kind="packs"}`); n < 2 {
			t.Errorf("%v evictions, want at least 2", n)
		}
		want = a.refs("team/app")
	})
	t.Run("outage", func(t *testing.T) {
		w.clone(a.url("team/app"))
		w.bucket.Kill()
		commit("three")
		for _, isRestarted := range []bool{false, true} {
			if isRestarted {
				a.stop()
				a.start()
			}
			for _, args := range [][]string{{"push", a.url("team/app"), "main"}, {"ls-remote", a.url("team/app")}} {
				out, err := w.tryGit(work.Dir, args...)
				if err == nil || !strings.Contains(err.Error(), "503") {
					t.Errorf("git %s without the object storage (restarted: %t): %v\n%s\nwant 503", args[0], isRestarted, err, out)
				}
			}
			into := gittest.Init(t)
			w.git(into.Dir, "fetch", "-q", "--no-tags", a.url("team/app"), tip) // without a list of refs
		}
		w.bucket.Start()
		if !gittest.Eventually(func() bool {
			_, err := w.tryGit(work.Dir, "push", "-q", a.url("team/app"), "main")
			return err == nil
		}) {
			t.Error("no push works after the end of an outage")
		}
	})
}
