package bench

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
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// recording is one fetch as stock git asked for it.
type recording struct {
	encoding string // Content-Encoding of the request
	body     []byte // of the request, as it was sent
	pack     [sha256.Size]byte
	packSize int64
}

// recorder is a reverse proxy on the loopback through which git talks to the target. Of the answers with a packfile it keeps
// the greatest one's request: git may fetch tags in a second, small request.
type recorder struct {
	target    *target
	transport *http.Transport
	server    *http.Server
	url       string
	done      chan struct{}

	mu    sync.Mutex
	best  *recording
	cause error // why the target is of no use, where that was seen here and not by git
}

func startRecorder(t *target) (*recorder, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &recorder{target: t, transport: t.transport(), url: "http://" + l.Addr().String() + "/repo", done: make(chan struct{})}
	r.server = &http.Server{Handler: http.HandlerFunc(r.relay)}
	go func() {
		defer close(r.done)
		r.server.Serve(l) //nolint:errcheck // ends when it is closed
	}()
	return r, nil
}

func (r *recorder) close() {
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

// relay passes one request on, as git made it, and its answer back.
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
	if r.target.auth != "" {
		out.Header.Set("Authorization", r.target.auth)
	}
	resp, err := r.transport.RoundTrip(out)
	if err != nil {
		if req.Context().Err() == nil {
			r.fail(err)
		}
		http.Error(w, "the server does not answer", http.StatusBadGateway)
		return
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 300 && resp.StatusCode < 400 {
		r.fail(fmt.Errorf("HTTP status %d: the server redirects; give the URL that it redirects to", resp.StatusCode))
		http.Error(w, "redirect", http.StatusBadGateway)
		return
	}
	if v := resp.Header.Get("Content-Type"); v != "" {
		w.Header().Set("Content-Type", v)
	}
	w.WriteHeader(resp.StatusCode)
	if tail == "/git-upload-pack" && resp.StatusCode == http.StatusOK {
		r.observe(w, resp.Body, &recording{encoding: req.Header.Get("Content-Encoding"), body: request})
		return
	}
	copyFlushed(w, resp.Body, func([]byte) {})
}

// observe passes an answer on and keeps its request if it holds a whole pack.
func (r *recorder) observe(w http.ResponseWriter, body io.Reader, rec *recording) {
	hash := sha256.New()
	followed := walker{older: r.target.older(), data: func(p []byte) { hash.Write(p) }}
	var bad error
	copyFlushed(w, body, func(p []byte) {
		if bad == nil {
			bad = followed.feed(p)
		}
	})
	if bad != nil || followed.finish() != nil {
		return // an answer without a pack (ls-refs, negotiation), or a broken one, which git itself complains about
	}
	hash.Sum(rec.pack[:0])
	rec.packSize = followed.pack
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.best == nil || rec.packSize >= r.best.packSize {
		r.best = rec
	}
}

// copyFlushed copies without holding anything back: git waits for what it asked.
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
			panic(http.ErrAbortHandler) // a broken answer stays a broken one
		}
	}
}

// what says which fetch to record.
type what struct {
	depth int    // 0: whole history
	have  string // a revision that the client has already; empty: nothing
}

// record has stock git make the fetch, which also verifies the pack: git index-pack reads it and git checks that all is
// connected. Without depth and have that is a bare clone with all heads and tags; with depth a clone of the default
// branch alone, as git does it; with have a fetch of the default branch into a repository that is at that revision.
// dir is an empty directory, and afterwards holds the repository, "repo.git".
func record(ctx context.Context, t *target, w what, dir string) (*recording, error) {
	r, err := startRecorder(t)
	if err != nil {
		return nil, err
	}
	defer r.close()
	err = r.fetch(ctx, w, dir)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.cause != nil:
		return nil, r.cause
	case err != nil:
		return nil, err
	case r.best == nil && w.have != "":
		return nil, errors.New("the fetch brought no pack: there is nothing new beyond --have")
	case r.best == nil:
		return nil, errors.New("no answer held a packfile section: is the repository empty, or the server without this protocol version?")
	}
	return r.best, nil
}

func (r *recorder) fetch(ctx context.Context, w what, dir string) error {
	repo := filepath.Join(dir, "repo.git")
	if w.have == "" {
		args := []string{"clone", "-q", "--bare"}
		if w.depth > 0 {
			args = append(args, fmt.Sprintf("--depth=%d", w.depth))
		}
		_, err := r.git(ctx, dir, append(args, "--", r.url, repo)...)
		return err
	}
	// Whatever names the revision (a branch, HEAD~20, an object ID), a full clone resolves it.
	full := filepath.Join(dir, "full.git")
	if _, err := r.git(ctx, dir, "clone", "-q", "--bare", "--", r.url, full); err != nil {
		return err
	}
	id, err := runGit(ctx, full, nil, "rev-parse", "--verify", "--quiet", "--end-of-options", w.have+"^{commit}")
	if err != nil {
		return fmt.Errorf("--have %s: the repository has no such commit", w.have)
	}
	depth := []string{}
	if w.depth > 0 {
		depth = append(depth, fmt.Sprintf("--depth=%d", w.depth))
	}
	format, err := runGit(ctx, full, nil, "rev-parse", "--show-object-format")
	if err != nil {
		return err
	}
	if _, err := runGit(ctx, dir, nil, "init", "-q", "--bare", "--object-format="+strings.TrimSpace(format), repo); err != nil {
		return err
	}
	fetch := append([]string{"fetch", "-q"}, depth...)
	seed := append(append([]string(nil), fetch...), "--no-tags", "file://"+full, strings.TrimSpace(id)+":refs/heads/have")
	if _, err := runGit(ctx, repo, nil, seed...); err != nil {
		return err
	}
	r.mu.Lock()
	r.best = nil // the full clone is not what was asked for
	r.mu.Unlock()
	_, err = r.git(ctx, repo, append(append([]string(nil), fetch...), r.url, "+HEAD:refs/heads/tip")...)
	return err
}

// git runs git with the protocol version of the target.
func (r *recorder) git(ctx context.Context, dir string, args ...string) (string, error) {
	if r.target.protocol != "" {
		args = append([]string{"-c", "protocol.version=" + r.target.protocol}, args...)
	}
	return runGit(ctx, dir, nil, args...)
}

// indexPack verifies a pack: git index-pack has to accept it in the repository that the recording left.
func indexPack(ctx context.Context, repo string, pack io.Reader) error {
	_, err := runGit(ctx, repo, pack, "index-pack", "--stdin", "--fix-thin")
	return err
}

// runGit runs the real git with no configuration but the repository's and returns its output.
func runGit(ctx context.Context, dir string, stdin io.Reader, args ...string) (string, error) {
	return runGitWith(ctx, nil, dir, stdin, args...)
}

// runGitWith is runGit with more in the environment.
func runGitWith(ctx context.Context, env []string, dir string, stdin io.Reader, args ...string) (string, error) {
	settings := []string{"-c", "protocol.version=2", "-c", "fetch.unpackLimit=1", "-c", "gc.auto=0", "-c", "maintenance.auto=false",
		"-c", "core.fsync=none", "-c", "protocol.file.allow=always", "-c", "http.followRedirects=false"}
	cmd := exec.CommandContext(ctx, "git", append(settings, args...)...)
	cmd.Dir, cmd.Env, cmd.Stdin = dir, append(gitEnv(), env...), stdin
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 5 * time.Second
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		name := args[0]
		if name == "-c" {
			name = args[2]
		}
		if text := clean(errs.Bytes()); text != "" {
			return "", fmt.Errorf("git %s: %w: %s", name, err, text)
		}
		return "", fmt.Errorf("git %s: %w", name, err)
	}
	return out.String(), nil
}

// gitEnv is an environment in which git depends on nothing of the user's: no configuration, no proxy, no repository.
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
