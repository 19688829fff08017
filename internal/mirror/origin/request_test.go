package origin

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/node"
)

func mustURL(t *testing.T, s string) *url.URL {
	t.Helper()
	u, err := url.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func TestCheckHost(t *testing.T) {
	t.Parallel()
	hosts := []string{"s3.example:9000", "cdn.example", "*.store.example", "*.1"}
	for _, origin := range []string{"https://git.example", "http://git.example"} {
		o := open(t, origin, func(o *Options) { o.Hosts = hosts })
		for target, want := range map[string]bool{
			origin + "/x":                  true,
			"https://CDN.example/x":        true,
			"https://cdn.example:443/x":    true,
			"https://cdn.example:444/x":    false,
			"https://s3.example:9000/x":    true,
			"https://s3.example/x":         false,
			"https://a.b.store.example/x":  true,
			"https://store.example/x":      false,
			"https://evilstore.example/x":  false,
			"https://cdn.example.evil/x":   false,
			"https://127.0.0.1/x":          false,
			"https://[::1]/x":              false,
			"https://user@cdn.example/x":   false,
			"http://cdn.example/x":         origin == "http://git.example",
			"ftp://cdn.example/x":          false,
			"https:cdn.example":            false,
			"/x":                           false,
			"file:///etc/passwd":           false,
			"https://169.254.169.254/x":    false,
			"http://git.example:8080/x":    false,
			"https://git.example:8443/x":   false,
			"https://cdn.example@evil.com": false,
		} {
			if err := o.CheckHost(mustURL(t, target)); (err == nil) != want {
				t.Errorf("origin %s: CheckHost(%q) = %v, want allowed: %v", origin, target, err, want)
			}
		}
	}
	for entry, want := range map[string]bool{"a.example": true, "a.example:9": true, "*.a.example": true, "": false,
		"a/b": false, "https://a": false, "*": false, "a.*": false, "user@a": false, "127.0.0.1:9000": true, "[::1]:9": true,
	} {
		if err := ParseHost(entry); (err == nil) != want {
			t.Errorf("ParseHost(%q) = %v, want valid: %v", entry, err, want)
		}
	}
}

// An origin with a private address does not open private addresses to the names of other hosts.
func TestDialerOfHost(t *testing.T) {
	t.Parallel()
	o := Options{URL: mustURL(t, "http://127.0.0.1:3000/")}
	for address, want := range map[string]bool{"127.0.0.1:3000": true, "localhost:9000": true, "[::1]:9000": true,
		"store.example:443": false} {
		if got := o.dialer(address).Control == nil; got != want {
			t.Errorf("dialer of %s allows private addresses: %v, want %v", address, got, want)
		}
	}
}

// recorder is a server that keeps the headers of requests.
type recorder struct {
	*httptest.Server
	mu   sync.Mutex
	seen []http.Header
}

func newRecorder(t *testing.T, answer http.HandlerFunc) *recorder {
	r := &recorder{}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		r.mu.Lock()
		r.seen = append(r.seen, q.Header.Clone())
		r.mu.Unlock()
		answer(w, q)
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *recorder) headers(name string) (values []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, h := range r.seen {
		values = append(values, h.Get(name))
	}
	return values
}

// A download follows redirects to allowed hosts only, and takes no credential and no header along.
func TestDoRedirects(t *testing.T) {
	t.Parallel()
	content := newRecorder(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "content") })
	unlisted := newRecorder(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "secret") })
	target := ""
	git := newRecorder(t, func(w http.ResponseWriter, q *http.Request) {
		if strings.HasSuffix(q.URL.Path, "/conflict") {
			http.Error(w, `{"message":"locked"}`, http.StatusConflict)
			return
		}
		http.Redirect(w, q, target, http.StatusTemporaryRedirect)
	})
	host := strings.TrimPrefix(content.URL, "http://")
	o := open(t, git.URL, func(o *Options) { o.Hosts = []string{host} })
	download := Request{Operation: OperationDownload, Path: "a.git", URL: mustURL(t, git.URL+"/object"),
		Method: http.MethodGet, Header: http.Header{"X-Token": {"t"}, "Range": {"bytes=3-"}},
		Auth: node.NewSecret("Basic abc")}

	target = content.URL + "/signed"
	r, err := o.Do(t.Context(), download)
	if err != nil {
		t.Fatalf("Do with a redirect to an allowed host: %v", err)
	}
	if b, err := io.ReadAll(r.Body); string(b) != "content" || err != nil || r.Body.Close() != nil {
		t.Errorf("Do = %q, %v, want the content", b, err)
	}
	if got := git.headers("Authorization"); !slices.Equal(got, []string{"Basic abc"}) {
		t.Errorf("the origin got Authorization %q, want the caller's", got)
	}
	for name, want := range map[string]string{"Authorization": "", "X-Token": "", "Range": "bytes=3-"} {
		if got := content.headers(name); !slices.Equal(got, []string{want}) {
			t.Errorf("the other host got %s %q, want %q", name, got, want)
		}
	}

	target = unlisted.URL + "/"
	if _, err := o.Do(t.Context(), download); err == nil || !strings.Contains(err.Error(), "lfs_hosts") {
		t.Errorf("Do with a redirect to another host: %v, want an error that names lfs_hosts", err)
	}
	target = git.URL + "/again"
	if _, err := o.Do(t.Context(), download); err == nil || !strings.Contains(err.Error(), "too often") {
		t.Errorf("Do with endless redirects: %v, want an error", err)
	}
	if n := len(unlisted.headers("")); n != 0 {
		t.Errorf("a host that is not allowed got %d requests, want none", n)
	}

	api := Request{Operation: OperationAPI, Path: "team/a", Suffix: "/conflict", Method: http.MethodPost,
		Body: strings.NewReader("{}"), Length: 2}
	_, err = o.Do(t.Context(), api)
	if e, ok := errors.AsType[*Error](err); !ok || e.Status != http.StatusConflict ||
		!strings.Contains(string(e.Body), "locked") {
		t.Errorf("Do with status 409: %v, want an error with the body", err)
	}
	target, api.Suffix, api.Body = content.URL+"/api", "/moved", strings.NewReader("{}")
	if _, err = o.Do(t.Context(), api); !fault.Is(err, fault.Denied) {
		t.Errorf("Do of an API with a redirect: %v, want Denied", err)
	}
}

// A slow download ends although it is faster than a pack has to be.
func TestSlowDownload(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			_, _ = w.Write(make([]byte, 20)) // 2000 bytes per second at most
			_ = http.NewResponseController(w).Flush()
			time.Sleep(10 * time.Millisecond)
		}
	}))
	defer s.Close()
	o := open(t, s.URL, func(o *Options) { o.Stall = 200 * time.Millisecond })
	r, err := o.Do(t.Context(), Request{Operation: OperationDownload, Path: "a", Suffix: "/x", Method: http.MethodGet})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if n, err := io.Copy(io.Discard, r.Body); !errors.Is(err, errStalled) {
		t.Errorf("read %d bytes, error %v, want %v", n, err, errStalled)
	}
}

// A pack may be silent while the origin makes it, and may be slow for longer. Other answers have less time.
func TestTimeOfAnswers(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		stall           time.Duration
		operation       string
		isPack          bool
		silence, window time.Duration
		rate            int64
	}{
		{5 * time.Minute, opFetch, true, 5 * time.Minute, 50 * time.Minute, minRate},
		{5 * time.Minute, opRefs, false, time.Minute, time.Minute, minRate},
		{5 * time.Minute, OperationDownload, true, time.Minute, time.Minute, minDownloadRate},
		{time.Second, opRefs, false, time.Second, time.Second, minRate},
	} {
		a := &answer{cancel: func(error) {}}
		a.watch(test.stall, test.operation, test.isPack)
		if a.silence != test.silence || a.window != test.window || a.rate != test.rate {
			t.Errorf("watch(%v, %s, %t): %v silent, %d B/s in %v; want %v, %d B/s in %v", test.stall, test.operation,
				test.isPack, a.silence, a.rate, a.window, test.silence, test.rate, test.window)
		}
	}
}
