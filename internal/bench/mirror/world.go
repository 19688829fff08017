package mirror

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/packhorse-git/packhorse/internal/bench/gitload"
	"github.com/packhorse-git/packhorse/internal/bench/link"
	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
)

// origin is a Git host: git http-backend behind a slow link. It counts requests by kind.
type origin struct {
	root    string
	server  *httptest.Server
	link    *link.Link
	backend http.Handler

	mu      sync.Mutex
	asked   map[string]int
	answers map[string][]byte // of repeated requests for refs, if replay
	replay  bool              // the repositories do not change, and requests for refs cost no process
}

// settings is git's configuration at the origin.
var settings = []string{"GIT_CONFIG_COUNT=2", "GIT_CONFIG_KEY_0=uploadpack.allowFilter", "GIT_CONFIG_VALUE_0=true",
	"GIT_CONFIG_KEY_1=uploadpack.allowAnySHA1InWant", "GIT_CONFIG_VALUE_1=true"}

func newOrigin(ctx context.Context, root string) (*origin, error) {
	o := &origin{root: root, asked: map[string]int{}, answers: map[string][]byte{}}
	var err error
	if o.backend, err = gitload.BackendHandler(ctx, root, settings...); err != nil {
		return nil, err
	}
	o.server = httptest.NewServer(o)
	if o.link, err = link.New(o.server.Listener.Addr().String()); err != nil {
		o.server.Close()
		return nil, err
	}
	return o, nil
}

func (o *origin) close() {
	o.link.Close()
	o.server.Close()
}

func (o *origin) url() string { return "http://" + o.link.Addr() }

func (o *origin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	kind := gitload.RequestKind(r)
	o.mu.Lock()
	o.asked[kind]++
	replay := o.replay && (kind == "info" || kind == "ls-refs")
	o.mu.Unlock()
	if !replay {
		o.backend.ServeHTTP(w, r)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	key := kind + r.Header.Get("Git-Protocol") + string(body)
	o.mu.Lock()
	answer := o.answers[key]
	o.mu.Unlock()
	if answer == nil {
		r.Body = io.NopCloser(bytes.NewReader(body))
		recorder := httptest.NewRecorder()
		o.backend.ServeHTTP(recorder, r)
		answer = recorder.Body.Bytes()
		if recorder.Code == http.StatusOK {
			o.mu.Lock()
			o.answers[key] = answer
			o.mu.Unlock()
		}
	}
	contentType := "application/x-git-upload-pack-result"
	if kind == "info" {
		contentType = "application/x-git-upload-pack-advertisement"
	}
	w.Header().Set("Content-Type", contentType)
	_, _ = w.Write(answer)
}

// reset sets the counts to zero.
func (o *origin) reset() {
	o.mu.Lock()
	defer o.mu.Unlock()
	clear(o.asked)
}

func (o *origin) count(kind string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.asked[kind]
}

// add makes a repository of the origin from another one, with all its refs.
func (o *origin) add(ctx context.Context, name, from string) error {
	return gitload.Mirror(ctx, from, filepath.Join(o.root, name+".git"))
}

// server is a mirror of the origin, with the URLs of its mirrors.
type server struct {
	*loadgen.Child
	url, ops string
	secret   string
}

// webhookSecret signs the webhooks of the measurement.
const webhookSecret = "secret-of-a-measurement"

// start starts a mirror of the origin, with an empty root. Its files are in dir.
func start(ctx context.Context, o *origin, dir, program, fresh string) (*server, error) {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, err
	}
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte(webhookSecret+"\n"), 0o600); err != nil {
		return nil, err
	}
	config := filepath.Join(dir, "mirror.toml")
	text := fmt.Sprintf("[search]\nenabled = false\n[[mirror]]\nfrom = %q\nto = \"origin\"\nrefs = [\"refs/*\"]\n"+
		"fresh = %q\nwebhook_secret_file = %q\n", o.url()+"/", fresh, secret)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, err
	}
	state := filepath.Join(dir, "state")
	child, err := loadgen.StartChild(ctx, "the mirror", program, []string{"mirror", "--config", config, "--root",
		filepath.Join(dir, "repositories"), "--state", state, "--http", "127.0.0.1:0", "--ops", "127.0.0.1:0",
		"--log-format", "json"}, filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	a, err := child.Addresses(ctx, state)
	if err != nil {
		return nil, errors.Join(err, child.Stop())
	}
	return &server{Child: child, url: a.HTTP + "/origin", ops: a.Ops, secret: webhookSecret}, nil
}

// childrenCPU returns the CPU time of child processes that have ended: of git at the origin, and of git clients.
func childrenCPU() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_CHILDREN, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// commit adds an empty commit to main of a repository by file path, and returns its ID.
func commit(ctx context.Context, repo, message string) (string, error) {
	env := []string{"GIT_AUTHOR_NAME=B", "GIT_AUTHOR_EMAIL=b@localhost", "GIT_COMMITTER_NAME=B",
		"GIT_COMMITTER_EMAIL=b@localhost"}
	id, err := gitload.RunGitWith(ctx, env, repo, nil, "commit-tree", "-p", "HEAD", "-m", message, "HEAD^{tree}")
	if err != nil {
		return "", err
	}
	id = strings.TrimSpace(id)
	_, err = gitload.RunGit(ctx, repo, nil, "update-ref", "HEAD", id)
	return id, err
}
