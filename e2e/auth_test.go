package e2e

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// TestAuth checks authentication and permissions with real git clients and their credential helpers. It does so for one
// process and, without -short, for a gateway and a node.
func TestAuth(t *testing.T) {
	templates := makeTemplates(t)
	scripts, err := filepath.Glob("testdata/auth/*.txtar")
	if err != nil || len(scripts) == 0 {
		t.Fatal(scripts, err)
	}
	for _, s := range []shape{{}, {between: "unix"}} {
		t.Run("between="+s.between, func(t *testing.T) {
			if s.between != "" {
				skipIfShort(t)
			}
			t.Parallel()
			runStoriesIn(t, s, "", templates, "", scripts...)
		})
	}
}

// cmdToken makes a token and sets a variable to it: token VARIABLE ARGUMENTS of "packhorse token create"...
func cmdToken(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: token VARIABLE NAME [FLAGS]")
	}
	cmd := exec.Command(filepath.Join(binDir, "packhorse"), append([]string{"token", "create"}, args[1:]...)...)
	cmd.Dir = ts.MkAbs(".")
	cmd.Env = []string{"HOME=" + ts.Getenv("HOME"), "GORACE=" + ts.Getenv("GORACE")}
	out, err := cmd.Output()
	ts.Check(err)
	ts.Setenv(args[0], strings.TrimSpace(string(out)))
}

// cmdStore replaces the credentials of git's helper "store" for $URL: store [USER PASSWORD].
func cmdStore(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 && len(args) != 2 {
		ts.Fatalf("usage: store [USER PASSWORD]")
	}
	home := ts.Getenv("HOME")
	ts.Check(os.MkdirAll(home, 0o755))
	line := ""
	if len(args) == 2 {
		u, err := url.Parse(ts.Getenv("URL"))
		ts.Check(err)
		u.User = url.UserPassword(args[0], args[1])
		line = fmt.Sprintln(u)
	}
	ts.Check(os.WriteFile(filepath.Join(home, ".git-credentials"), []byte(line), 0o600))
	ts.Setenv("GIT_TERMINAL_PROMPT", "0")
	ts.Setenv("GIT_CONFIG_PARAMETERS", "'credential.helper=store'")
}

// cmdHook starts an application that is asked who callers are and what they may do, and writes it as [auth.hook] at the
// end of a configuration file: hook FILE. alice's password is "right", and all that she may not do is to see "none" and
// to write "pub". Without a name one may read "pub". While the file hook-fails exists it fails.
func cmdHook(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: hook FILE")
	}
	fails := ts.MkAbs("hook-fails")
	application := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var q struct {
			Question, Repository, Operation string
			Credential                      struct{ Type, User, Secret, Key string }
			Identity                        *struct{ Name string }
		}
		if _, err := os.Stat(fails); err == nil || json.NewDecoder(r.Body).Decode(&q) != nil {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		allow := q.Credential.User == "alice" && q.Credential.Secret == "right"
		name := "alice"
		// of carol's, without what follows it
		if key, err := os.ReadFile(ts.MkAbs("hook-key")); err == nil && q.Credential.Type == "key" {
			allow, name = strings.HasPrefix(string(key), q.Credential.Key+" "), "carol"
		}
		if q.Question == "authorize" {
			public := q.Repository == "pub" && q.Operation == "read"
			allow = public || q.Identity != nil && q.Repository != "none" && q.Repository != "pub"
		}
		fmt.Fprintf(w, `{"allow": %v, "identity": %q}`, allow, name)
	}))
	ts.Defer(application.Close)
	file := ts.MkAbs(args[0])
	text, err := os.ReadFile(file)
	ts.Check(err)
	ts.Check(os.WriteFile(file, fmt.Appendf(text, "[auth.hook]\nurl = %q\nsecret_file = \"secret\"\n%s", application.URL,
		"timeout = \"1m\"\ncache_ttl = \"1ms\"\n"), 0o644))
}

// TestCredentialsStayAtTheGateway: nothing of what a caller proves who they are with goes on to a node.
func TestCredentialsStayAtTheGateway(t *testing.T) {
	t.Parallel()
	p := &pair{T: t, dir: t.TempDir(), base: map[*serverProcess]int{}}
	if err := os.CopyFS(filepath.Join(p.dir, "repos", "app.git"), os.DirFS(linear(t).Dir)); err != nil {
		t.Fatal(err)
	}
	p.node = p.start("storage", "--root", filepath.Join(p.dir, "repos"), "--state", filepath.Join(p.dir, "node"),
		"--listen", "127.0.0.1:0")
	between, seen := recordTo(t, p.node.listen)
	p.gateway = p.start("gateway", "--state", filepath.Join(p.dir, "gateway"), "--http", "127.0.0.1:0", "--node",
		"node="+between)
	token := createToken(t, "ci", "--state", filepath.Join(p.dir, "gateway"))
	u, err := url.Parse(p.gateway.http + "/app")
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword("somebody-unusual", token)
	for _, args := range [][]string{{"clone", "--quiet", u.String(), "a"},
		{"-C", "a", "push", "--quiet", "origin", "HEAD:refs/heads/new"}} {
		cmd := exec.Command("git", args...)
		cmd.Dir, cmd.Env = p.dir, gittest.Env()
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %s: %v\n%s", args, err, out)
		}
	}
	text := seen()
	if !strings.Contains(text, "app") {
		t.Error("the proxy recorded no bytes, want those of a request")
	}
	for _, secret := range []string{token, base64.StdEncoding.EncodeToString([]byte("somebody-unusual:" + token))[:40],
		"somebody-unusual"} {
		if strings.Contains(text, secret) {
			t.Errorf("%.8s... went to the node", secret)
		}
	}
}

// recordTo starts a proxy in front of an address. It passes bytes on in both directions, and records those to the
// address.
func recordTo(t *testing.T, address string) (at string, seen func() string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var all bytes.Buffer
	var running sync.WaitGroup
	var conns []net.Conn
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for _, c := range conns {
			c.Close()
		}
		mu.Unlock()
		running.Wait()
	})
	running.Go(func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("tcp", address)
			if err != nil {
				from.Close()
				continue
			}
			mu.Lock()
			conns = append(conns, from, to)
			mu.Unlock()
			running.Go(func() { io.Copy(from, to); from.Close() })
			running.Go(func() {
				io.Copy(to, io.TeeReader(from, writerFunc(func(p []byte) (int, error) {
					mu.Lock()
					defer mu.Unlock()
					return all.Write(p)
				})))
				to.Close()
			})
		}
	})
	return l.Addr().String(), func() string {
		mu.Lock()
		defer mu.Unlock()
		return all.String()
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
