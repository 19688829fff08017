package githttp_test

import (
	"compress/gzip"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/gateway/githttp"
	"github.com/packhorse-git/packhorse/internal/git"
)

// sitePages answers as its paths say.
func sitePages(w http.ResponseWriter, r *http.Request, v *githttp.Visitor) error {
	v.Note(slog.Int("results", 7))
	may := func(name string) bool {
		repo, _ := git.ParseRepoPath(name)
		read := v.Reader()
		if read == nil {
			return true
		}
		readable, _ := read([]git.RepoPath{repo})
		return readable[0]
	}
	switch r.URL.Path {
	case "/", "/-/search":
		_, err := io.WriteString(w, "hello "+v.Name())
		return err
	case "/-/api/v1/search":
		for _, name := range []string{"team/app", "team/secret"} {
			if may(name) {
				_, _ = io.WriteString(w, name+" ")
			}
		}
		_, _ = io.WriteString(w, "for "+v.Name()+"\n")
		return http.NewResponseController(w).Flush()
	case "/.api/graphql":
		_, err := io.Copy(w, r.Body)
		return err
	case "/-/blob/team/secret":
		repo, _ := git.ParseRepoPath("team/secret")
		if err := v.Open(repo); err != nil {
			return err
		}
		if !may(repo.String()) {
			return auth.NoRepository(repo)
		}
		_, err := io.WriteString(w, "secret")
		return err
	case "/-/half":
		_, _ = io.WriteString(w, "half")
		_ = http.NewResponseController(w).Flush()
		return errors.New("the other half is lost")
	case "/-/panic":
		panic("oh")
	}
	return fault.New(fault.NotFound, "no page %s here", r.URL.Path)
}

// onlyApp lets everybody read team/app, alice team/secret too.
var onlyApp = callers{func(id auth.Identity, repo git.RepoPath, _ auth.Operation) error {
	switch {
	case repo.String() == "team/app" || id.Name == "alice":
		return nil
	case id.Anonymous():
		return fault.New(fault.Unauthenticated, "say who you are")
	}
	return auth.NoRepository(repo)
}}

// aliceSession is the session of alice, for requests with any cookie.
type aliceSession struct{}

func (aliceSession) Credential(r *http.Request, _ bool) string {
	if r.Header.Get("Cookie") == "" {
		return ""
	}
	return "alice"
}

func (aliceSession) End(http.ResponseWriter, bool) {}

func TestPages(t *testing.T) {
	t.Parallel()
	s := serve(t, &fakeNode{}, options{auth: onlyApp, pages: sitePages, sessions: aliceSession{}})
	bomb := &strings.Builder{}
	z := gzip.NewWriter(bomb)
	_, _ = z.Write(make([]byte, 4<<20))
	z.Close()
	for _, test := range []struct {
		method, path, headers, body string
		status                      int
		want                        string
	}{
		{"GET", "/-/search", "Authorization: Bearer alice", "", 200, "hello alice"},
		{"GET", "/-/search", "Authorization: Bearer wrong", "", 401, "wrong"},
		{"GET", "/-/search", "Cookie: session", "", 200, "hello alice"},
		{"GET", "/-/api/v1/search", "", "", 200, "team/app "},
		{"GET", "/-/api/v1/search", "Cookie: session", "", 200, "team/app for \n"},
		{"GET", "/-/api/v1/search", "Authorization: Bearer alice", "", 200, "team/app team/secret "},
		{"GET", "/-/blob/team/secret", "Authorization: Bearer alice", "", 200, "secret"},
		{"GET", "/-/blob/team/secret", "", "", 401, "say who you are"},
		{"GET", "/-/blob/team/secret", "Authorization: Bearer bob", "", 404, "no repository team/secret here"},
		{"GET", "/-/none", "", "", 404, "no page /-/none here"},
		{"GET", "/-/panic", "", "", 500, "internal error"},
		{"GET", "/", "Accept: text/html", "", 200, "hello "},
		{"GET", "/", "Accept: */*", "", 200, "hello "},
		{"POST", "/", "", "", 404, "name a repository"},
		{"GET", "/cgit/team/app/info/refs?service=git-upload-pack", "", "", 301, ""},
		{"GET", "/cgit/team/secret/info/refs?service=git-upload-pack", "", "", 401, "say who you are"},
		{"GET", "/cgit/team/secret/info/refs?service=git-upload-pack", "Authorization: Bearer bob", "", 301, ""},
		{"GET", "/other/team/app/info/refs?service=git-upload-pack", "Authorization: Bearer bob", "", 404, "no repository"},
		{"GET", "/.api/search/stream", "Authorization: Bearer wrong", "", 401,
			"event: error\ndata: {\"name\":\"Error\",\"message\":\"wrong\"}\n\nevent: done\ndata: {}\n\n"},
		{"GET", "/.api/search/stream", "", "", 404,
			"event: error\ndata: {\"name\":\"Error\",\"message\":\"no page /.api/search/stream here\"}\n\nevent: done\ndata: " +
				"{}\n\n"},
		{"POST", "/.api/graphql", "Authorization: Bearer wrong", "", 401, "wrong\n"},
		{"POST", "/.api/graphql", "", "query", 200, "query"},
		{"POST", "/.api/graphql", "Content-Encoding: gzip", bomb.String(), 200, "\x00\x00"}, // cut off
		{"POST", "/.api/graphql", "Content-Encoding: br", "query", 400, "unknown content encoding"},
	} {
		request, err := http.NewRequest(test.method, "http://"+s.addr+test.path, strings.NewReader(test.body))
		if err != nil {
			t.Fatal(err)
		}
		if name, value, ok := strings.Cut(test.headers, ": "); ok {
			request.Header.Set(name, value)
		}
		response, err := http.DefaultTransport.RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		response.Body.Close()
		if response.StatusCode != test.status || !strings.HasPrefix(string(body), test.want) &&
			!strings.Contains(string(body), test.want) {
			t.Errorf("%s %s (%s): %d %.200q, %v; want %d %q", test.method, test.path, test.headers, response.StatusCode,
				body, err, test.status, test.want)
		}
		if (err == nil) == (test.want == "\x00\x00") {
			t.Errorf("%s: the end of the answer: %v", test.path, err)
		}
		if challenge := response.Header.Get("WWW-Authenticate") != ""; challenge != (test.status == 401) {
			t.Errorf("%s: challenge: %v", test.path, challenge)
		}
	}
	for path, want := range map[string]string{
		"//team/app/-/file/0/a%20b.go": "/team/app/-/file/0/a%20b.go",
		"///team/app/-/file/0":         "",
		"//-/search":                   "",
		"/%2F-/blob/team/app":          "",
		"//evil.example/-/blob/":       "",
	} {
		c := s.dial()
		c.send("GET " + path + " HTTP/1.1\r\nHost: git.example\r\n\r\n")
		response, _, err := c.answer()
		if err != nil || response.Header.Get("Location") != want ||
			(response.StatusCode == http.StatusMovedPermanently) != (want != "") {
			t.Errorf("%s leads to %q (%d), %v; want %q", path, response.Header.Get("Location"), response.StatusCode,
				err, want)
		}
	}
	c := s.dial()
	c.send("GET /-/half HTTP/1.1\r\nHost: git.example\r\n\r\n")
	if _, body, err := c.answer(); err == nil || body != "half" {
		t.Errorf("incomplete answer: body = %q, error = %v, want half and an error", body, err)
	}
	if !eventually(func() bool {
		return strings.Contains(s.log.String(), "operation=search result=ok") &&
			strings.Contains(s.log.String(), "path=/-/search results=7") &&
			s.value("packhorse_requests_total{operation=page,result=not_found}") == 4
	}) {
		t.Errorf("the log does not tell: %s", s.log)
	}
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
}

// TestAddressOfARepository: a browser gets a page at the address of a repository, whether it exists or not.
func TestAddressOfARepository(t *testing.T) {
	t.Parallel()
	s := serve(t, &fakeNode{advertise: advertise}, options{
		pages: func(w http.ResponseWriter, r *http.Request, v *githttp.Visitor) error {
			_, err := io.WriteString(w, "clone "+v.Address(strings.Trim(r.URL.Path, "/")))
			return err
		}})
	const html = "Accept: text/html,*/*;q=0.8"
	for _, test := range []struct{ request, accept, want string }{
		{"GET /team/app.git", html, "clone http://git.example/team/app.git"},
		{"GET /team/app/", html, "clone http://git.example/team/app"},
		{"GET /team/none?x=<", html, "clone http://git.example/team/none"},
		{"GET /a%20b'%22", html, "clone http://git.example/a%20b%27%22"},
		{"GET /team/app.git", "Accept: */*", "clone http://git.example/team/app.git"},
		{"GET /team/app.git", "X: y", "clone http://git.example/team/app.git"},
		{"POST /team/app.git", html, "not found; clone a repository by its path"},
		{"GET /team/../app", html, "not found"},
		{"GET /team/app.git/HEAD", "Accept: */*", "dumb HTTP protocol"},
		{"GET /team/app.git/plain/refs/x.c", "Accept: */*", "clone http://git.example/team/app.git/plain/refs/x.c"},
		{"GET /team/app/refs/", html, "clone http://git.example/team/app/refs"},
		{"GET /team/app/-/file/main/t/info/refs", html, "clone http://git.example/team/app/-/file/main/t/info/refs"},
		{"GET /app/-/raw/main/git-upload-pack", html, "clone http://git.example/app/-/raw/main/git-upload-pack"},
		{"GET /app/-/file/main/x/-/archive/y.tar", html, "clone http://git.example/app/-/file/main/x/-/archive/y.tar"},
		{"GET /team/-/file/app/info/refs?service=git-upload-pack", html, "# service=git-upload-pack"},
	} {
		c := s.dial()
		c.send(test.request + " HTTP/1.1\r\nHost: git.example\r\n" + test.accept + "\r\nContent-Length: 0\r\n\r\n")
		if _, body, err := c.answer(); err != nil || !strings.Contains(body, test.want) {
			t.Errorf("%s, %s: body = %q, error = %v, want %q", test.request, test.accept, body, err, test.want)
		}
	}
}

// TestPagesLane refuses what finds the lane full, and leaves fetches alone.
func TestPagesLane(t *testing.T) {
	t.Parallel()
	in, out := make(chan struct{}), make(chan struct{})
	s := serve(t, &fakeNode{advertise: advertise}, options{pageLane: 2,
		pages: func(w http.ResponseWriter, r *http.Request, _ *githttp.Visitor) error {
			close(in)
			<-out
			return nil
		}})
	first, second := s.dial(), s.dial()
	first.send("GET /-/search HTTP/1.1\r\nHost: git.example\r\n\r\n")
	<-in
	second.send("GET /-/search HTTP/1.1\r\nHost: git.example\r\n\r\n")
	if response, body, _ := second.answer(); response.StatusCode != http.StatusTooManyRequests ||
		response.Header.Get("Retry-After") == "" {
		t.Errorf("status = %d, body = %q, want 429 with Retry-After", response.StatusCode, body)
	}
	second.send("GET /repo/info/refs?service=git-upload-pack HTTP/1.1\r\nHost: git.example\r\nGit-Protocol: " +
		"version=2\r\n\r\n")
	if response, body, _ := second.answer(); response.StatusCode != http.StatusOK {
		t.Errorf("status = %d, body = %q, want 200", response.StatusCode, body)
	}
	close(out)
	if response, _, _ := first.answer(); response.StatusCode != http.StatusOK {
		t.Error(response.Status)
	}
}

// TestPagesReaderThatStops has a client that does not read its answer. It is disconnected, and its place in the lane is
// free again.
func TestPagesReaderThatStops(t *testing.T) {
	t.Parallel()
	ended := make(chan error, 1)
	s := serve(t, &fakeNode{}, options{pageLane: 1, writeStall: 100 * time.Millisecond,
		pages: func(w http.ResponseWriter, r *http.Request, _ *githttp.Visitor) error {
			if r.URL.Path != "/.api/search/stream" {
				return nil
			}
			event := []byte("event: matches\ndata: [\"" + strings.Repeat("x", 1<<20) + "\"]\n\n")
			for {
				if _, err := w.Write(event); err != nil {
					ended <- err
					return err
				}
			}
		}})
	stopped := s.dial()
	stopped.send("GET /.api/search/stream HTTP/1.1\r\nHost: git.example\r\n\r\n")
	<-ended
	if !eventually(func() bool { return s.value("packhorse_lane_running{lane=pages}") == 0 }) {
		t.Error("the place in the lane is in use, want it free")
	}
	next := s.dial()
	next.send("GET /-/search HTTP/1.1\r\nHost: git.example\r\n\r\n")
	if response, _, _ := next.answer(); response.StatusCode != http.StatusOK {
		t.Error(response.Status)
	}
}

// TestPagesLogRefusals checks that a refused search is logged like other refusals, and as a warning only if something
// broke.
func TestPagesLogRefusals(t *testing.T) {
	t.Parallel()
	s := serve(t, &fakeNode{}, options{pages: func(_ http.ResponseWriter, r *http.Request, _ *githttp.Visitor) error {
		if r.URL.RawQuery == "q=broken" {
			return fault.Wrap(fault.Unavailable, "the search process cannot be reached",
				errors.New("connection refused"))
		}
		return fault.Retry(fault.Unavailable, 7*time.Second, "the index is being opened")
	}})
	for query, after := range map[string]string{"refused": "7", "broken": ""} {
		c := s.dial()
		c.send("GET /-/api/v1/search?q=" + query + " HTTP/1.1\r\nHost: git.example\r\n\r\n")
		response, body, _ := c.answer()
		if response.StatusCode != http.StatusServiceUnavailable ||
			after != "" && response.Header.Get("Retry-After") != after {
			t.Errorf("%s: %d %q %v", query, response.StatusCode, body, response.Header)
		}
	}
	if !eventually(func() bool { return s.value("packhorse_requests_total{operation=search,result=unavailable}") == 2 }) {
		t.Error("they are not counted")
	}
	if !eventually(func() bool { return strings.Count(s.log.String(), "operation=search result=unavailable") == 2 }) ||
		strings.Count(s.log.String(), "level=WARN") != 1 || strings.Count(s.log.String(), "level=INFO") != 1 {
		t.Errorf("the log tells: %s", s.log)
	}
}
