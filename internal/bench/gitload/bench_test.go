package gitload

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/bench/benchtest"
	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	"github.com/packhorse-git/packhorse/internal/git/gittest"

	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
	"github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"
)

const fetchKeys = "mb_per_s requests_per_s requests errors ttfb_ms latency_ms cpu_s_per_gb anon_rss_mb " +
	"alloc_mb_per_gb disk_write_per_byte"

func TestFetch(t *testing.T) {
	t.Parallel()
	root, _ := benchtest.History(t, 8)
	s := benchtest.Backend(t, root, false)
	url := s.URL + "/demo.git"
	for _, args := range [][]string{
		{"fetch", url},
		{"fetch", url, "--depth", "1"},
		{"fetch", url, "--have", "main~3"},
		{"fetch", url, "--rate", "20"},
	} {
		got := benchtest.JSON(t, fetchKeys, append(args, "--clients", "2", "--duration", "200ms", "--server-pid",
			fmt.Sprint(os.Getpid()))...)
		if benchtest.Number(t, got, "requests") < 1 || benchtest.Number(t, got, "errors") != 0 ||
			benchtest.Number(t, got, "mb_per_s") <= 0 {
			t.Errorf("%q: %v", args, got)
		}
		if benchtest.Number(t, got, "anon_rss_mb") <= 0 {
			t.Errorf("%q: no memory: %v", args, got)
		}
	}
}

func TestFetchTLS(t *testing.T) {
	t.Parallel()
	root, _ := benchtest.History(t, 3)
	s := benchtest.Backend(t, root, true)
	got := benchtest.JSON(t, fetchKeys, "fetch", s.URL+"/demo.git", "--insecure", "--clients", "2", "--duration", "100ms")
	if benchtest.Number(t, got, "requests") < 1 || got["cpu_s_per_gb"] != nil {
		t.Error(got)
	}
	if _, _, err := benchtest.Run(t, t.Context(), "fetch", s.URL+"/demo.git"); err == nil {
		t.Error("an unknown certificate was accepted, want an error")
	}
}

func TestRefs(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	repo := filepath.Join(root, "many.git")
	if _, errs, err := benchtest.Run(t, t.Context(), "mkrefs", repo, "--count", "300"); err != nil {
		t.Fatal(err, errs)
	}
	if _, _, err := benchtest.Run(t, t.Context(), "mkrefs", repo); err == nil {
		t.Error("mkrefs of an existing repository succeeded, want an error")
	}
	r := gittest.At(t, repo)
	if n := strings.Count(r.Git("for-each-ref")+"\n", "\n"); n != 301 {
		t.Errorf("%d refs, want 301", n)
	}
	if left, _ := filepath.Glob(filepath.Join(repo, "refs/pull/*/head")); len(left) != 0 {
		t.Errorf("%d refs are not packed, want 0", len(left))
	}
	r.Git("fsck", "--strict")
	s := benchtest.Backend(t, root, false)
	for _, args := range [][]string{nil, {"--rate", "50"}} {
		got := benchtest.JSON(t, "mb_per_s requests_per_s requests errors latency_ms",
			append([]string{"refs", s.URL + "/many.git", "--prefix", "refs/pull/7/", "--clients", "2", "--duration", "200ms"},
				args...)...)
		if benchtest.Number(t, got, "requests") < 2 || benchtest.Number(t, got, "errors") != 0 {
			t.Error(got)
		}
	}
	_, _, err := benchtest.Run(t, t.Context(), "refs", s.URL+"/many.git", "--prefix", "refs/heads/none")
	if err == nil || !strings.Contains(err.Error(), "no ref that begins with") {
		t.Errorf("asking for a ref that is not there: %v", err)
	}
}

func TestNeighbour(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	t.Parallel()
	root, _ := benchtest.History(t, 8)
	s := benchtest.Backend(t, root, false)
	for _, args := range [][]string{nil, {"--mbps", "5"}, {"--cold"}} {
		got := benchtest.JSON(t, "alone_ms loaded_ms mb_per_s requests errors",
			append([]string{"neighbour", s.URL + "/demo.git", "--clients", "2", "--duration", "600ms"}, args...)...)
		if benchtest.Number(t, got, "errors") != 0 || benchtest.Number(t, got, "mb_per_s") <= 0 ||
			benchtest.Number(t, got, "requests") < 30 {
			t.Errorf("%q: %v", args, got)
		}
	}
}

// fakeRefs resolves names of one repository for callers with the secret.
type fakeRefs struct {
	packhorsev1connect.UnimplementedRefServiceHandler
	repo   *gittest.Repo
	answer atomic.Int64
	wrong  atomic.Int64 // from this response on each has another object ID; zero: no change
}

func (f *fakeRefs) Resolve(_ context.Context,
	r *connect.Request[packhorsev1.ResolveRequest]) (*connect.Response[packhorsev1.ResolveResponse], error) {
	if r.Header().Get("Authorization") != "Bearer sesame" {
		return nil, connect.NewError(connect.CodeUnauthenticated, errors.New("no secret"))
	}
	if r.Msg.Repository != "team/demo.git" || r.Msg.Name != "refs/heads/main" {
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("no %v", r.Msg))
	}
	oid := f.repo.ID("refs/heads/main").String()
	if n, wrong := f.answer.Add(1), f.wrong.Load(); wrong > 0 && n > wrong {
		oid = fmt.Sprint(n)
	}
	return connect.NewResponse(&packhorsev1.ResolveResponse{Ref: &packhorsev1.Ref{Name: r.Msg.Name, Oid: oid}}), nil
}

// TestNeighbourRPC sends the small request to a node on a Unix socket.
func TestNeighbourRPC(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	t.Parallel()
	root, repo := benchtest.History(t, 4)
	if err := os.Mkdir(filepath.Join(root, "team"), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(repo.Dir, filepath.Join(root, "team/demo.git")); err != nil {
		t.Fatal(err)
	}
	refs := &fakeRefs{repo: gittest.At(t, filepath.Join(root, "team/demo.git"))}
	dir := t.TempDir()
	socket, secret := filepath.Join(dir, "node.sock"), filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte("sesame\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle(packhorsev1connect.NewRefServiceHandler(refs))
	node := &http.Server{Handler: mux, Protocols: new(http.Protocols)}
	node.Protocols.SetHTTP1(true)
	node.Protocols.SetUnencryptedHTTP2(true)
	go node.Serve(l)
	t.Cleanup(func() { node.Close() })

	url := benchtest.Backend(t, root, false).URL + "/team/demo.git"
	args := []string{"neighbour", url, "--clients", "2", "--duration", "600ms", "--rpc", "unix:" + socket}
	got := benchtest.JSON(t, "alone_ms loaded_ms mb_per_s requests errors",
		append(args, "--secret-file", secret)...)
	if benchtest.Number(t, got, "errors") != 0 || benchtest.Number(t, got, "mb_per_s") <= 0 ||
		benchtest.Number(t, got, "requests") < 30 || refs.answer.Load() < 30 {
		t.Error(got)
	}
	for _, more := range [][]string{nil, {"--rate", "50"}} {
		args := append([]string{"refs", "http://nowhere.invalid/team/demo.git", "--prefix", "refs/heads/main", "--clients",
			"2", "--duration", "200ms",
			"--rpc", "unix:" + socket, "--secret-file", secret}, more...)
		got := benchtest.JSON(t, "mb_per_s requests_per_s requests errors latency_ms", args...)
		if benchtest.Number(t, got, "errors") != 0 || benchtest.Number(t, got, "requests") < 2 {
			t.Errorf("%q: %v", args, got)
		}
	}
	refs.wrong.Store(refs.answer.Load() + 5)
	_, errs, err := benchtest.Run(t, t.Context(), append(args, "--secret-file", secret)...)
	if err == nil || !strings.Contains(errs, "differs from the first one") {
		t.Errorf("wrong answers: %v %s", err, errs)
	}
	for want, more := range map[string][]string{
		"no secret":                nil,
		"needs --rpc":              {"--rpc", "", "--secret-file", secret},
		"resolve refs/heads/side0": {"--secret-file", secret, "--ref", "refs/heads/side0"},
		"no such file":             {"--secret-file", secret + "2"},
		"missing.sock":             {"--rpc", "unix:/missing.sock"},
	} {
		if _, _, err := benchtest.Run(t, t.Context(), append(args, more...)...); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", more, err, want)
		}
	}
}

func TestLimitAndRaw(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, bytes.Repeat([]byte("0123456789abcdef"), 100_000), 0o666); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{nil, {"--tls"}} {
		ctx, cancel := context.WithCancel(t.Context())
		pr, pw := io.Pipe()
		done := make(chan error, 1)
		root := benchtest.Program(loadgen.Env{Stdout: pw, Stderr: io.Discard})
		root.SetArgs(append([]string{"limit", file, "--http", "127.0.0.1:0"}, args...))
		go func() { done <- root.ExecuteContext(ctx) }()
		line := make([]byte, 1000)
		n, err := pr.Read(line)
		if err != nil {
			t.Fatal(err)
		}
		url, _, _ := strings.Cut(string(line[:n]), " ")
		got := benchtest.JSON(t, fetchKeys, "fetch", "--raw", url, "--insecure", "--clients", "3", "--duration", "100ms")
		if benchtest.Number(t, got, "requests") < 3 || benchtest.Number(t, got, "errors") != 0 {
			t.Errorf("%q: %v", args, got)
		}
		resp, err := http.DefaultTransport.RoundTrip(httptest.NewRequest("GET", strings.Replace(url, "https", "http", 1)+
			"any/path", nil))
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if !slices.Equal(args, []string{"--tls"}) && (err != nil || len(b) != 1_600_000) {
			t.Errorf("GET: %d bytes, %v", len(b), err)
		}
		http.DefaultTransport.(*http.Transport).CloseIdleConnections()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("limit ended with %v", err)
		}
	}
}

func TestServerThatFails(t *testing.T) {
	t.Parallel()
	root, _ := benchtest.History(t, 3)
	s := benchtest.Backend(t, root, false)
	inner := s.Config.Handler
	var posts atomic.Int64
	s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.UserAgent(), loadgen.UserAgent) && r.Method == http.MethodPost && posts.Add(1) > 2 {
			http.Error(w, "busy", http.StatusServiceUnavailable)
			return
		}
		inner.ServeHTTP(w, r)
	})
	_, errs, err := benchtest.Run(t, t.Context(), "fetch", s.URL+"/demo.git", "--clients", "2", "--duration", "300ms")
	if err == nil || !strings.Contains(errs, "HTTP status 503: busy") {
		t.Errorf("error %v, stderr %q", err, errs)
	}
}

func TestStalledServer(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "10")
		w.Write([]byte("01234"))
		w.(http.Flusher).Flush()
		<-release
	}))
	defer s.Close()
	defer close(release)
	_, _, err := benchtest.Run(t, t.Context(), "fetch", "--raw", s.URL, "--timeout", "50ms")
	if err == nil {
		t.Error("no error")
	}
}

func TestInterrupt(t *testing.T) {
	t.Parallel()
	root, _ := benchtest.History(t, 3)
	s := benchtest.Backend(t, root, false)
	for _, args := range [][]string{
		{"fetch", s.URL + "/demo.git"},
		{"refs", s.URL + "/demo.git", "--prefix", "refs/heads/main"},
		{"neighbour", s.URL + "/demo.git"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		_, errs, err := benchtest.Run(t, ctx, append(args, "--duration", "1h", "--clients", "2")...)
		cancel()
		if err == nil || err.Error() != "interrupted" {
			t.Errorf("%q: %v %s", args, err, errs)
		}
	}
}

func TestSecretsStaySecret(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"http://user:hunter2@127.0.0.1:1/x.git", "http://user:hunter2@%zz/",
		"ftp://user:hunter2@host/",
		"http://user:hunter2@127.0.0.1:1/x?hunter2", "http://hunter2@:80/"} {
		for _, sub := range [][]string{{"fetch"}, {"refs", "--prefix", "x"}, {"neighbour"}, {"fetch", "--raw"}, {"ci"}} {
			out, errs, err := benchtest.Run(t, t.Context(), append(sub, url)...)
			if err == nil || strings.Contains(out+errs+err.Error(), "hunter2") {
				t.Errorf("%q: %v\n%s%s", append(sub, url), err, out, errs)
			}
		}
	}
}

func TestCredentials(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	t.Parallel()
	root, _ := benchtest.History(t, 3)
	s := benchtest.Backend(t, root, false)
	inner := s.Config.Handler
	s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "ci" || password != "pass/word" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		inner.ServeHTTP(w, r)
	})
	url := strings.Replace(s.URL, "://", "://ci:pass%2Fword@", 1) + "/demo.git"
	for _, args := range [][]string{{"fetch", url}, {"refs", url, "--prefix", "refs/heads/main"}, {"neighbour", url}} {
		out, errs, err := benchtest.Run(t, t.Context(), append(args, "--clients", "1", "--duration", "100ms")...)
		if err != nil || strings.Contains(out, "word") {
			t.Errorf("%v\n%s%s", err, out, errs)
		}
	}
}
