package mirror

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/gateway"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/gateway/githttp"
	"github.com/packhorse-git/packhorse/internal/gateway/router"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/schedule/admit"
	"github.com/packhorse-git/packhorse/internal/transport/bulk"
)

// serve serves the mirrors to git clients over HTTP, and returns the URL of the host's mirrors.
func (w *world) serve() (url string) {
	w.t.Helper()
	routes := router.New(nil)
	w.do(routes.Set([]router.Route{{Replicas: []*router.Replica{{Name: "local", Node: w.Node()}}}}))
	lanes := admit.NewLanes(admit.Sizes{Small: 1000, Hit: 1000, Cold: 1000, Push: 1000, Pages: 1000})
	log := slog.New(slog.NewTextHandler(w.t.Output(), nil))
	metrics := auth.NewMetrics(nil)
	origins := auth.NewOrigins(auth.OriginOptions{Probers: []auth.Prober{w.Mirrors}, Metrics: metrics})
	access := auth.New(auth.Options{Origins: origins,
		OpenRead: true, Metrics: metrics, Sources: auth.NewSources(metrics, log), Log: log})
	handler := githttp.New(githttp.Options{Gateway: &gateway.Gateway{Router: routes, Lanes: lanes, Auth: access, Log: log,
		Pump: bulk.NewPump(bulk.PumpOptions{}), Memory: admit.NewBudget("requests", 1<<30), Metrics: gateway.NewMetrics(nil),
		SendCredentials: true, MaxBody: 1 << 20, MaxPush: 1 << 30, ReadStall: time.Minute}})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	w.do(err)
	server := &http.Server{Handler: handler, ConnContext: bulk.Serve}
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(handler.Listen(l, time.Minute)) })
	w.t.Cleanup(func() {
		_ = server.Close()
		running.Wait()
		_ = access.Close()
	})
	return "http://" + l.Addr().String() + "/host/"
}

// tryGit runs git, and returns its output with its messages.
func tryGit(args ...string) (string, error) {
	cmd := exec.Command("git", args...)
	cmd.Env = gittest.Env()
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (w *world) git(args ...string) string {
	w.t.Helper()
	out, err := tryGit(args...)
	if err != nil {
		w.t.Fatalf("git %q: %v\n%s", args, err, out)
	}
	return out
}

// history makes a repository of the host with branches, a tag, and n commits.
func (h *host) history(t *testing.T, path string, n int, args ...string) *gittest.Repo {
	t.Helper()
	r := h.repo(t, path, args...)
	r.Git("config", "uploadpack.allowFilter", "true")
	r.Git("config", "http.receivepack", "true")
	r.Git("config", "receive.advertisePushOptions", "true")
	noise := make([]byte, 200_000)
	_, _ = io.ReadFull(rand.Reader, noise)
	blob := r.GitIn(string(noise), "hash-object", "-w", "--stdin")
	tip := r.CommitTree("noise", "100644 blob "+blob+"\tnoise\n", r.ID("main"))
	for i := range n {
		blob := r.GitIn(strings.Repeat(fmt.Sprintf("%s %d\n", path, i), 400), "hash-object", "-w", "--stdin")
		tip = r.CommitTree(fmt.Sprintf("commit %d", i), fmt.Sprintf("100644 blob %s\tfile%d\n", blob, i%3), tip)
	}
	r.Git("update-ref", "refs/heads/main", tip.String())
	r.Git("update-ref", "refs/heads/topic", r.Commit("topic", tip).String())
	r.Git("tag", "-a", "-m", "one", "v1", tip.String()+"~1")
	return r
}

// hold makes responses to fetches stop after some bytes until the returned function is called.
func (h *host) hold(t *testing.T, after int) (resume func()) {
	wait := make(chan struct{})
	resume = sync.OnceFunc(func() { close(wait) })
	t.Cleanup(resume)
	h.wrap(func(w http.ResponseWriter, r *http.Request, command string) http.ResponseWriter {
		if command != "fetch" {
			return w
		}
		return &limitedWriter{ResponseWriter: w, left: after, full: func() { <-wait }}
	})
	return resume
}

// limitedWriter calls full when so many bytes were written.
type limitedWriter struct {
	http.ResponseWriter
	left int
	full func()
}

func (l *limitedWriter) Write(p []byte) (int, error) {
	if l.left > 0 && len(p) >= l.left {
		n, err := l.ResponseWriter.Write(p[:l.left])
		if err != nil {
			return n, err
		}
		_ = http.NewResponseController(l.ResponseWriter).Flush()
		l.left = 0
		l.full()
		m, err := l.ResponseWriter.Write(p[n:])
		return n + m, err
	}
	l.left -= len(p)
	return l.ResponseWriter.Write(p)
}

func (l *limitedWriter) Unwrap() http.ResponseWriter { return l.ResponseWriter }

// wrap has the responses of the host written through another writer. It counts requests by command as well.
func (h *host) wrap(writer func(http.ResponseWriter, *http.Request, string) http.ResponseWriter) {
	h.set(func(w http.ResponseWriter, r *http.Request) bool {
		command := "advertisement"
		if strings.HasSuffix(r.URL.Path, "/git-upload-pack") {
			body, _ := io.ReadAll(r.Body)
			r.Body = io.NopCloser(bytes.NewReader(body))
			if command = string(commandOf(body)); r.Header.Get("Git-Protocol") == "" {
				command = "fetch"
			}
			if bytes.Contains(body, []byte("deepen ")) {
				command = "shallow fetch"
			}
		}
		h.backend.ServeHTTP(writer(w, r, command), r)
		return true
	})
}

// TestFirstClones compares clones through an empty mirror with clones from the origin.
func TestFirstClones(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.history(t, "app.git", 20)
	h.history(t, "large.git", 3, "--object-format=sha256")
	for i, args := range [][]string{
		{"app"}, {"large"}, {"app", "--depth=1"}, {"app", "--single-branch", "--branch=topic"},
		{"app", "--filter=blob:none"}, {"app", "--mirror"}, {"app", "-c", "protocol.version=0"},
		{"app", "-c", "protocol.version=0", "--depth=2"}, {"large", "-c", "protocol.version=1", "--quiet"},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			t.Parallel()
			if testing.Short() && i%2 == 1 {
				t.Skip("half of the clones are enough")
			}
			w := newWorld(t, h, t.TempDir(), func(r *Rule) { r.OriginDecides = true })
			url, dir := w.serve(), t.TempDir()
			clone := func(from, to string) *gittest.Repo {
				w.git(append(append([]string{"clone", "--bare"}, args[1:]...), from+args[0]+".git", filepath.Join(dir, to))...)
				return gittest.At(t, filepath.Join(dir, to))
			}
			made, want := clone(url, "made"), clone(h.URL+"/", "want")
			compare := func(what string, made *gittest.Repo) {
				t.Helper()
				for _, command := range []string{"for-each-ref", "symbolic-ref HEAD", "rev-list --objects --all --missing=print",
					"cat-file --batch-all-objects --batch-check=%(objectname)"} {
					got, want := made.Git(strings.Fields(command)...), want.Git(strings.Fields(command)...)
					if i == 0 && strings.HasPrefix(command, "cat-file") {
						continue // a clone of everything may get more
					}
					if got != want {
						t.Errorf("%s: git %s:\n%.2000s\nwant\n%.2000s", what, command, got, want)
					}
				}
				made.Git("fsck", "--strict", "--no-dangling", "--connectivity-only")
			}
			compare("first clone", made)
			r := w.use("host/" + args[0])
			if !r.complete() {
				t.Fatal("the mirror is not complete")
			}
			compare("second clone", clone(url, "second"))
		})
	}
}

// request sends a git request in version 2.
func (w *world) request(url string, lines ...string) (*http.Response, string) {
	w.t.Helper()
	body := pktline.AppendLine(nil, "command="+lines[0])
	body = pktline.AppendDelim(body)
	for _, line := range lines[1:] {
		body = pktline.AppendLine(body, line)
	}
	q, err := http.NewRequestWithContext(w.t.Context(), http.MethodPost, url+"/git-upload-pack",
		bytes.NewReader(pktline.AppendFlush(body)))
	w.do(err)
	q.Header.Set("Git-Protocol", "version=2")
	q.Header.Set("Content-Type", "application/x-git-upload-pack-request")
	response, err := http.DefaultTransport.RoundTrip(q)
	if err != nil {
		w.t.Error(err)
		return &http.Response{Header: http.Header{}}, ""
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		text = append(text, ("\n" + err.Error())...)
	}
	return response, string(text)
}

// Fifty runners that clone at once through an empty mirror cost the origin one request of each kind.
func TestFirstClonesShare(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	from := h.history(t, "app.git", 20)
	var mu sync.Mutex
	requests := map[string]int{}
	h.wrap(func(w http.ResponseWriter, _ *http.Request, command string) http.ResponseWriter {
		mu.Lock()
		defer mu.Unlock()
		requests[command]++
		return w
	})
	w := newWorld(t, h, t.TempDir())
	url := w.serve() + "app"
	wants := []string{"fetch", "ofs-delta", "done"}
	for _, ref := range []string{"main", "topic", "v1"} {
		wants = append(wants, "want "+from.ID(ref).String())
	}
	var clients sync.WaitGroup
	for range 50 {
		clients.Go(func() {
			q, err := http.NewRequest(http.MethodGet, url+"/info/refs?service=git-upload-pack", nil)
			w.do(err)
			q.Header.Set("Git-Protocol", "version=2")
			response, err := http.DefaultTransport.RoundTrip(q)
			if err != nil || response.StatusCode != http.StatusOK {
				t.Errorf("info/refs: %v, %v", response, err)
				return
			}
			_ = response.Body.Close()
			if _, got := w.request(url, "ls-refs", "peel", "symrefs"); !strings.Contains(got, "refs/tags/v1 peeled:") {
				t.Errorf("ls-refs: %q", got)
			}
			if _, got := w.request(url, wants...); !strings.Contains(got, "PACK") || !strings.HasSuffix(got, "0000") {
				t.Errorf("fetch: %.200q", got)
			}
			if _, got := w.request(url, append(wants, "deepen 1")...); !strings.Contains(got, "PACK") {
				t.Errorf("shallow fetch: %.200q", got)
			}
		})
	}
	clients.Wait()
	w.use("host/app")
	mu.Lock()
	defer mu.Unlock()
	// A shallow fetch after the first update needs none.
	if requests["advertisement"] != 1 || requests["ls-refs"] > 3 || requests["fetch"] != 1 ||
		requests["shallow fetch"] > 1 {
		t.Errorf("requests = %v, want one of each kind but few ls-refs", requests)
	}
}

// A shallow clone has the link to the origin for itself, and the first update follows it.
func TestFirstUpdateYields(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	from := h.history(t, "app.git", 20)
	var mu sync.Mutex
	var order []string
	asked := make(chan struct{})
	var first func() *mirror
	h.wrap(func(w http.ResponseWriter, _ *http.Request, command string) http.ResponseWriter {
		mu.Lock()
		order = append(order, command)
		mu.Unlock()
		if command != "shallow fetch" {
			return w
		}
		close(asked)
		return &limitedWriter{ResponseWriter: w, left: 10, full: func() {
			gittest.WaitFor(t, "the first update to wait", func() bool {
				r := first()
				r.mu.Lock()
				defer r.mu.Unlock()
				return r.demand.changed != nil && len(r.demand.changed) == 0 // it has seen the shallow clone
			})
			mu.Lock()
			defer mu.Unlock()
			order = append(order, "sent")
		}}
	})
	w := newWorld(t, h, t.TempDir())
	first = func() *mirror { return w.lookUp(w.path("host/app")) }
	url := w.serve() + "app"
	w.request(url, "ls-refs")
	_, response := w.request(url, "fetch", "done", "deepen 1", "want "+from.ID("main").String())
	if !strings.Contains(response, "PACK") {
		t.Errorf("shallow fetch: %.200q", response)
	}
	<-asked
	w.use("host/app")
	mu.Lock()
	defer mu.Unlock()
	got := strings.Join(order, ", ")
	if !strings.HasPrefix(got, "advertisement, ls-refs, shallow fetch, sent, ") || !strings.Contains(got, ", fetch") {
		t.Errorf("requests = %s, want the first update after the shallow clone", got)
	}
}

// The first update goes on after its client has disconnected, and a later client follows it.
func TestClientDisconnects(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.history(t, "app.git", 20)
	resume := h.hold(t, 100_000)
	w := newWorld(t, h, t.TempDir())
	url, dir := w.serve(), t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	first := exec.CommandContext(ctx, "git", "clone", "--bare", url+"app", filepath.Join(dir, "first"))
	first.Env = gittest.Env()
	w.do(first.Start())
	var r *mirror
	gittest.WaitFor(t, "the pack", func() bool {
		r = w.lookUp(w.path("host/app"))
		if r == nil {
			return false
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.hydration != nil && r.hydration.size() > 30_000 // the next packet can be held in part
	})
	cancel()
	_ = first.Wait()
	second := exec.Command("git", "clone", "--bare", "--progress", url+"app", filepath.Join(dir, "second"))
	second.Env = gittest.Env()
	output, err := second.StderrPipe()
	w.do(err)
	w.do(second.Start())
	message := "remote: mirroring from " + strings.TrimPrefix(h.URL, "http://") + ": "
	var text strings.Builder
	for buf := make([]byte, 4096); !strings.Contains(text.String(), message); {
		n, err := output.Read(buf)
		if text.Write(buf[:n]); err != nil {
			t.Fatalf("clone: %s\nwant %q", text.String(), message)
		}
	}
	resume()
	_, _ = io.Copy(&text, output)
	if err := second.Wait(); err != nil {
		t.Errorf("clone: %v\n%s", err, text.String())
	}
	gittest.At(t, filepath.Join(dir, "second")).Git("fsck", "--strict")
	if w.use("host/app"); !r.complete() {
		t.Error("the mirror is not complete")
	}
}

// A clone fails if the origin cuts off the pack, and the next one succeeds.
func TestOriginIsCutOff(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.history(t, "app.git", 20)
	var cut atomic.Bool
	cut.Store(true)
	h.wrap(func(w http.ResponseWriter, _ *http.Request, command string) http.ResponseWriter {
		if !strings.HasSuffix(command, "fetch") || !cut.Load() {
			return w
		}
		return &limitedWriter{ResponseWriter: w, left: 100_000, full: func() { panic(http.ErrAbortHandler) }}
	})
	w := newWorld(t, h, t.TempDir())
	url, dir := w.serve(), t.TempDir()
	for i, args := range [][]string{nil, {"--depth=100"}, {"--no-tags", "-c", "protocol.version=0"}} {
		args = append(append([]string{"clone", "--bare"}, args...), url+"app", filepath.Join(dir, fmt.Sprint(i)))
		out, err := tryGit(args...)
		if err == nil || !strings.Contains(out, "could not be finished: origin ") {
			t.Errorf("git %q: %v\n%s\nwant an error of the server", args, err, out)
		}
	}
	cut.Store(false)
	w.later(time.Minute)
	w.git("clone", "--bare", url+"app", filepath.Join(dir, "whole"))
	gittest.At(t, filepath.Join(dir, "whole")).Git("fsck", "--strict")
}

// A job gets the commit that it was given, wherever it is at the origin.
func TestUnknownObjects(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	from := h.history(t, "app.git", 5)
	w := newWorld(t, h, t.TempDir(), func(r *Rule) { r.Fresh.Every, r.OriginDecides = time.Hour, true })
	url := w.serve() + "app"
	w.use("host/app")
	before := h.fetches.Load()
	if _, got := w.request(url, "fetch", "done", "want "+from.ID("main~1").String()); !strings.Contains(got, "PACK") {
		t.Errorf("known commit: %.200q", got)
	}
	if got := h.fetches.Load() - before; got != 0 {
		t.Errorf("%d requests to the origin for a known commit, want 0", got)
	}
	pushed, request := from.Commit("pushed", from.ID("main")), from.Commit("change request", from.ID("main"))
	from.Git("update-ref", "refs/heads/main", pushed.String())
	from.Git("update-ref", "refs/pull/1/head", request.String())
	client := gittest.Init(t)
	client.Git("fetch", url, pushed.String())
	client.Git("fetch", url, request.String())
	client.Git("fetch", url, "refs/pull/1/head")
	from.Git("update-ref", "refs/heads/base", from.ID("main~3").String())
	gittest.Init(t).Git("fetch", "--shallow-exclude=base", url, pushed.String())
	for _, args := range [][]string{{"0123456789012345678901234567890123456789"}, {"refs/pull/2/head"}} {
		if out, err := client.Try(append([]string{"fetch", url}, args...)...); err == nil {
			t.Errorf("fetch of %q: %s, want an error", args, out)
		} else if !strings.Contains(err.Error(), "not our ref") && !strings.Contains(err.Error(), "couldn't find") {
			t.Errorf("fetch of %q: %v", args, err)
		}
	}
}

func TestOriginIsDown(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	from := h.history(t, "app.git", 5)
	w := newWorld(t, h, t.TempDir())
	url := w.serve() + "app"
	w.use("host/app")
	h.set(func(w http.ResponseWriter, _ *http.Request) bool {
		http.Error(w, "maintenance", http.StatusServiceUnavailable)
		return true
	})
	w.later(12 * time.Minute)
	response, got := w.request(url, "ls-refs")
	if age := response.Header.Get("Packhorse-Staleness"); !strings.Contains(got, "refs/heads/main") || len(age) != 3 {
		t.Errorf("ls-refs = %.200q with age %q, want the refs and about 720", got, age)
	}
	out := w.git("clone", "--progress", "--bare", url, t.TempDir()+"/clone")
	if want := "does not answer; this is its state of 12 minutes ago"; !strings.Contains(out, want) {
		t.Errorf("clone: %s\nwant %q", out, want)
	}
	out, err := tryGit("-C", gittest.Init(t).Dir, "fetch", url, from.Commit("new").String())
	if err == nil || !strings.Contains(out, "does not answer") {
		t.Errorf("fetch of an unknown commit: %v\n%s", err, out)
	}
	w.later(2 * time.Hour)
	if response, got := w.request(url, "ls-refs"); response.StatusCode != http.StatusServiceUnavailable ||
		response.Header.Get("Retry-After") == "" {
		t.Errorf("ls-refs = %s with %v, want unavailable", got, response.Header)
	}
}

// A client of SSH in version 0 waits for the first update.
func TestStatefulSessionWaits(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	from := h.history(t, "app.git", 5)
	w := newWorld(t, h, t.TempDir())
	c := newClient()
	outcome, err := w.Node().Advertise(t.Context(), w.path("host/app"), node.Session{Version: protocol.V0}, c)
	if err != nil || outcome.Mirror != node.MirrorLocal || !strings.Contains(c.String(), from.ID("v1").String()) {
		t.Errorf("Advertise = %v, %v: %.200q", outcome, err, c)
	}
}

// A push goes to the origin. When the client gets the report, the mirror has the commit.
func TestPush(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	from := h.history(t, "app.git", 5)
	w := newWorld(t, h, t.TempDir(), func(r *Rule) {
		r.OriginDecides, r.PushToOrigin, r.Fresh.Every = true, true, time.Hour
	})
	var length atomic.Int64 // of the last push
	h.set(func(rw http.ResponseWriter, r *http.Request) bool {
		if user, password, _ := r.BasicAuth(); user == "me" && password == "secret" {
			if strings.HasSuffix(r.URL.Path, "/git-receive-pack") {
				length.Store(r.ContentLength)
			}
			body, _ := io.ReadAll(r.Body) // CGI needs the length
			r.Body, r.ContentLength, r.TransferEncoding = io.NopCloser(bytes.NewReader(body)), int64(len(body)), nil
			h.backendAs(rw, r, "me")
		} else {
			rw.Header().Set("WWW-Authenticate", "Basic")
			rw.WriteHeader(http.StatusUnauthorized)
		}
		return true
	})
	hook := "#!/bin/sh\necho checked by $REMOTE_USER $GIT_PUSH_OPTION_0\n! grep -q refs/heads/no\n"
	w.do(os.WriteFile(filepath.Join(from.Dir, "hooks/pre-receive"), []byte(hook), 0o755))
	url := strings.Replace(w.serve(), "://", "://me:secret@", 1) + "app"
	local := filepath.Join(t.TempDir(), "local")
	w.git("clone", url, local)
	client := gittest.At(t, local)
	client.Git("commit", "--allow-empty", "-m", "pushed")
	out := w.git("-C", local, "push", "--atomic", "-o", "fast", url, "HEAD:main", "HEAD:other", ":topic")
	if !strings.Contains(out, "remote: checked by me fast") {
		t.Errorf("push: %s\nwant the message of the hook", out)
	}
	if w.same("host/app", from); from.ID("other") != client.ID("HEAD") {
		t.Error("the origin does not have the commit")
	}
	large := filepath.Join(local, "large")
	noise := make([]byte, 3<<20)
	_, _ = io.ReadFull(rand.Reader, noise)
	w.do(os.WriteFile(large, noise, 0o600))
	client.Git("add", "large")
	client.Git("commit", "-m", "large")
	w.git("-C", local, "push", url, "HEAD:main") // in chunks, after a probe
	w.same("host/app", from)
	_, _ = io.ReadFull(rand.Reader, noise)
	w.do(os.WriteFile(large, noise, 0o600))
	client.Git("commit", "-a", "-m", "larger")
	w.git("-C", local, "-c", "http.postBuffer=100m", "push", url, "HEAD:main")
	w.same("host/app", from)
	if got := length.Load(); got < int64(len(noise)) {
		t.Errorf("length of a push with a length = %d, want more than %d", got, len(noise))
	}
	out, err := tryGit("-C", local, "push", url, "HEAD:no")
	if err == nil || !strings.Contains(out, "pre-receive hook declined") {
		t.Errorf("push: %v\n%s\nwant the refusal of the hook", err, out)
	}
	for _, wrong := range []string{"://me:wrong@", "://"} {
		to := strings.Replace(url, "://me:secret@", wrong, 1)
		if out, err := tryGit("-C", local, "push", to, "HEAD:main"); err == nil {
			t.Errorf("push without the right password: %s, want an error", out)
		}
	}
	rule := w.rule
	rule.PushToOrigin = false
	w.do(w.SetRules([]Rule{rule}))
	if out, err := tryGit("-C", local, "push", url, "HEAD:main"); err == nil ||
		!strings.Contains(out, "this is a mirror: push to "+h.URL+"/app") {
		t.Errorf("push: %v\n%s\nwant the URL of the origin", err, out)
	}
}
