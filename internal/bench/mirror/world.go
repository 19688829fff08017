package mirror

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"

	"github.com/packhorse-git/packhorse/internal/bench/gitload"
	"github.com/packhorse-git/packhorse/internal/bench/world"
)

// origin is a Git host: git http-backend behind a slow link. It counts requests by kind.
type origin struct {
	link    *world.Link
	backend http.Handler

	mu      sync.Mutex
	asked   map[string]int
	answers map[string][]byte // of repeated requests for refs, if replay
	replay  bool              // the repositories do not change, and requests for refs cost no process
}

// settings is git's configuration at the origin.
var settings = []string{"GIT_CONFIG_COUNT=2", "GIT_CONFIG_KEY_0=uploadpack.allowFilter", "GIT_CONFIG_VALUE_0=true",
	"GIT_CONFIG_KEY_1=uploadpack.allowAnySHA1InWant", "GIT_CONFIG_VALUE_1=true"}

// newOrigin serves the repositories of a world until the world is closed.
func newOrigin(ctx context.Context, w *world.World) (*origin, error) {
	o := &origin{asked: map[string]int{}, answers: map[string][]byte{}}
	var err error
	if o.backend, err = gitload.BackendHandler(ctx, w.Root(), settings...); err != nil {
		return nil, err
	}
	server := httptest.NewServer(o)
	w.Defer(server.Close)
	o.link, err = w.Link(server.Listener.Addr().String())
	return o, err
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

// webhookSecret signs the webhooks of the measurement.
const webhookSecret = "secret-of-a-measurement"

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
