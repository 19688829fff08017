package gitload

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
)

// Recording is one recorded fetch of stock git.
type Recording struct {
	Encoding string // Content-Encoding of the request
	Body     []byte // of the request, as it was sent
	pack     [sha256.Size]byte
	packSize int64
}

// recorder is a reverse proxy on the loopback between git and the target. It keeps the request whose response has the
// largest packfile, because git may fetch tags in a second, small request.
type recorder struct {
	target    *loadgen.Target
	transport *http.Transport
	server    *http.Server
	URL       string
	done      chan struct{}

	mu    sync.Mutex
	best  *Recording
	cause error // the first failure of the target, if the proxy detected one
}

func StartRecorder(t *loadgen.Target) (*recorder, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &recorder{target: t, transport: t.Transport(), URL: "http://" + l.Addr().String() + "/repo",
		done: make(chan struct{})}
	r.server = &http.Server{Handler: http.HandlerFunc(r.relay)}
	go func() {
		defer close(r.done)
		r.server.Serve(l) //nolint:errcheck // ends with Close
	}()
	return r, nil
}

func (r *recorder) Close() {
	r.server.Close()
	<-r.done
	r.transport.CloseIdleConnections()
}

func (r *recorder) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cause == nil {
		r.cause = err
	}
}

// relay forwards one request of git, and its response.
func (r *recorder) relay(w http.ResponseWriter, req *http.Request) {
	request, err := io.ReadAll(req.Body)
	if err != nil {
		return
	}
	tail := strings.TrimPrefix(req.URL.Path, "/repo")
	url := r.target.String() + tail
	if req.URL.RawQuery != "" {
		url += "?" + req.URL.RawQuery
	}
	out, err := http.NewRequestWithContext(req.Context(), req.Method, url, bytes.NewReader(request))
	if err != nil {
		r.fail(err)
		http.Error(w, "bad request", http.StatusBadGateway)
		return
	}
	for _, name := range []string{"Accept", "Content-Type", "Content-Encoding", "Git-Protocol", "User-Agent"} {
		if v := req.Header.Get(name); v != "" {
			out.Header.Set(name, v)
		}
	}
	if r.target.Auth != "" {
		out.Header.Set("Authorization", r.target.Auth)
	}
	resp, err := r.transport.RoundTrip(out)
	if err != nil {
		if req.Context().Err() == nil {
			r.fail(err)
		}
		http.Error(w, "the server does not respond", http.StatusBadGateway)
		return
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 300 && resp.StatusCode < 400 {
		r.fail(fmt.Errorf("HTTP status %d: the server redirects: use the URL of the redirect", resp.StatusCode))
		http.Error(w, "redirect", http.StatusBadGateway)
		return
	}
	if v := resp.Header.Get("Content-Type"); v != "" {
		w.Header().Set("Content-Type", v)
	}
	w.WriteHeader(resp.StatusCode)
	if tail == "/git-upload-pack" && resp.StatusCode == http.StatusOK {
		r.observe(w, resp.Body, &Recording{Encoding: req.Header.Get("Content-Encoding"), Body: request})
		return
	}
	copyFlushed(w, resp.Body, func([]byte) {})
}

// observe forwards a response and keeps its request if the response has a whole pack.
func (r *recorder) observe(w http.ResponseWriter, body io.Reader, rec *Recording) {
	hash := sha256.New()
	followed := Walker{older: r.target.Older(), Data: func(p []byte) { hash.Write(p) }}
	var bad error
	copyFlushed(w, body, func(p []byte) {
		if bad == nil {
			bad = followed.feed(p)
		}
	})
	if bad != nil || followed.finish() != nil {
		return // no pack (ls-refs, negotiation), or a broken response, which git reports
	}
	hash.Sum(rec.pack[:0])
	rec.packSize = followed.pack
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.best == nil || rec.packSize >= r.best.packSize {
		r.best = rec
	}
}

// copyFlushed copies and flushes after every read, because git waits for each response.
func copyFlushed(w http.ResponseWriter, body io.Reader, see func([]byte)) {
	buf := make([]byte, 64<<10)
	control := http.NewResponseController(w)
	for {
		n, err := body.Read(buf)
		if n > 0 {
			see(buf[:n])
			if _, err := w.Write(buf[:n]); err != nil {
				return
			}
			control.Flush() //nolint:errcheck // the next write fails too
		}
		if err == io.EOF {
			return
		}
		if err != nil {
			panic(http.ErrAbortHandler) // the client must not receive a complete response
		}
	}
}

// FetchSpec describes the fetch to record.
type FetchSpec struct {
	depth int    // 0: whole history
	have  string // a revision that the client has; empty: none
}

// Record runs the fetch with stock git, which also verifies the pack: git index-pack reads it and git checks that all
// objects are connected. Without depth and have it is a bare clone with all branches and tags. With depth it is a clone
// of the default branch. With have it is a fetch of the default branch into a repository at that revision. dir is an
// empty directory, which afterwards contains the repository "repo.git".
func Record(ctx context.Context, t *loadgen.Target, w FetchSpec, dir string) (*Recording, error) {
	r, err := StartRecorder(t)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	err = r.fetch(ctx, w, dir)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.cause != nil:
		return nil, r.cause
	case err != nil:
		return nil, err
	case r.best == nil && w.have != "":
		return nil, errors.New("the fetch brought no pack: the server has no newer commits than --have")
	case r.best == nil:
		return nil, errors.New("no response had a packfile section: the repository may be empty, or the server may not " +
			"support this protocol version")
	}
	return r.best, nil
}

func (r *recorder) fetch(ctx context.Context, w FetchSpec, dir string) error {
	repo := filepath.Join(dir, "repo.git")
	if w.have == "" {
		args := []string{"clone", "-q", "--bare"}
		if w.depth > 0 {
			args = append(args, fmt.Sprintf("--depth=%d", w.depth))
		}
		_, err := r.git(ctx, dir, append(args, "--", r.URL, repo)...)
		return err
	}
	// A full clone resolves any name of a revision: a branch, HEAD~20, an object ID.
	full := filepath.Join(dir, "full.git")
	if _, err := r.git(ctx, dir, "clone", "-q", "--bare", "--", r.URL, full); err != nil {
		return err
	}
	id, err := RunGit(ctx, full, nil, "rev-parse", "--verify", "--quiet", "--end-of-options", w.have+"^{commit}")
	if err != nil {
		return fmt.Errorf("--have %s: the repository has no such commit", w.have)
	}
	depth := []string{}
	if w.depth > 0 {
		depth = append(depth, fmt.Sprintf("--depth=%d", w.depth))
	}
	format, err := RunGit(ctx, full, nil, "rev-parse", "--show-object-format")
	if err != nil {
		return err
	}
	if _, err := RunGit(ctx, dir, nil, "init", "-q", "--bare", "--object-format="+strings.TrimSpace(format),
		repo); err != nil {
		return err
	}
	fetch := append([]string{"fetch", "-q"}, depth...)
	seed := append(append([]string(nil), fetch...), "--no-tags", "file://"+full, strings.TrimSpace(id)+":refs/heads/have")
	if _, err := RunGit(ctx, repo, nil, seed...); err != nil {
		return err
	}
	r.mu.Lock()
	r.best = nil // drop the recording of the full clone
	r.mu.Unlock()
	_, err = r.git(ctx, repo, append(append([]string(nil), fetch...), r.URL, "+HEAD:refs/heads/tip")...)
	return err
}

// git runs git with the protocol version of the target.
func (r *recorder) git(ctx context.Context, dir string, args ...string) (string, error) {
	if r.target.Protocol != "" {
		args = append([]string{"-c", "protocol.version=" + r.target.Protocol}, args...)
	}
	return RunGit(ctx, dir, nil, args...)
}

// IndexPack verifies a pack with git index-pack in the repository of the recording.
func IndexPack(ctx context.Context, repo string, pack io.Reader) error {
	_, err := RunGit(ctx, repo, pack, "index-pack", "--stdin", "--fix-thin")
	return err
}

// gitEnv is an environment that isolates git from the user's configuration, proxies and repositories.
func gitEnv() []string {
	var env []string
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		if strings.HasPrefix(name, "GIT_") || strings.HasSuffix(strings.ToLower(name), "_proxy") {
			continue
		}
		env = append(env, kv)
	}
	return append(env, "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null", "GIT_CONFIG_NOSYSTEM=1",
		"GIT_TERMINAL_PROMPT=0", "LC_ALL=C",
		"GIT_AUTHOR_NAME=Packhorse Bench", "GIT_AUTHOR_EMAIL=bench@localhost", "GIT_AUTHOR_DATE=1700000000 +0000",
		"GIT_COMMITTER_NAME=Packhorse Bench", "GIT_COMMITTER_EMAIL=bench@localhost", "GIT_COMMITTER_DATE=1700000000 +0000")
}
