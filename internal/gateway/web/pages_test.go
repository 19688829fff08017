package web_test

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/html"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/search"
)

// get requests a page. It does not follow redirects.
func get(t *testing.T, url string) (*http.Response, string) {
	t.Helper()
	return send(t, http.MethodGet, url)
}

func send(t *testing.T, method, url string) (*http.Response, string) {
	t.Helper()
	q, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	r, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(q)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r, string(body)
}

// ours are the elements that pages may contain.
var ours = []string{
	"html", "head", "meta", "title", "link", "script", "body", "div", "form", "a", "img", "span", "label", "input", "kbd",
	"button", "main", "h1", "h2", "h3", "p",
	"ul", "li", "code", "dl", "dt", "dd", "footer", "section", "header", "article", "i", "b", "mark", "hr", "aside",
	"details", "summary", "small", "pre", "strong",
}

// clean checks that a page has only our elements, no inline scripts or styles, and no addresses of other hosts. It
// returns its text and links.
func clean(t *testing.T, page string) (text string, links []string) {
	t.Helper()
	doc, err := html.Parse(strings.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}
	scripts := 0
	for n := range doc.Descendants() {
		if n.Type == html.TextNode {
			text += n.Data
		}
		if n.Type != html.ElementNode {
			continue
		}
		if !slices.Contains(ours, n.Data) {
			t.Errorf("the page has an element %s, want only %q", n.Data, ours)
		}
		if n.Data == "script" {
			scripts++
			if n.FirstChild != nil {
				t.Error("the page has an inline script")
			}
		}
		for _, a := range n.Attr {
			if strings.HasPrefix(a.Key, "on") || a.Key == "style" || a.Key == "srcdoc" {
				t.Errorf("%s has an attribute %s", n.Data, a.Key)
			}
			if a.Key != "href" && a.Key != "src" && a.Key != "action" {
				continue
			}
			if u, err := url.Parse(a.Val); err != nil || u.Host != "" || u.Scheme != "" || u.Path != "" &&
				!strings.HasPrefix(u.Path, "/") {
				t.Errorf("%s has the address %q, want one of this server", n.Data, a.Val)
			}
			links = append(links, a.Val)
		}
	}
	if scripts != 1 {
		t.Errorf("the page has %d scripts, want 1", scripts)
	}
	return text, links
}

func TestPagesAreSafe(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	base := serve(t, w, visitor{name: `<img src=x onerror=alert(1)>"'`}).URL
	hostile := `"><script>alert(1)</script>'<!--{{.}}` + "\u202e\x00\xff"
	paths := []string{"/-/search", "/-/search?q=needle", "/-/search?q=%3Cscript%3E&n=999999999999",
		"/-/search?q=" + url.QueryEscape(hostile), "/-/search?%zz",
		"/-/search?q=" + strings.Repeat("x", 20_000), "/-/search?q=)(",
		"/hostile/-/file/HEAD/%3Cimg%20src=x%20onerror=alert(1)%3E", "/"}
	for _, path := range paths {
		r, page := get(t, base+path)
		clean(t, page)
		if t.Failed() {
			t.Fatalf("on %s", path)
		}
		h := r.Header
		if policy := h.Get("Content-Security-Policy"); !strings.Contains(policy, "default-src 'none'") ||
			strings.Contains(policy, "unsafe") ||
			h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Content-Type") != "text/html; charset=utf-8" {
			t.Fatalf("%s: %s %v", path, r.Status, h)
		}
	}
}

// Anonymous visitors cannot make a search longer.
func TestTimeOfSearch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, want := range map[string]map[string]time.Duration{
		"":      {"": 10 * time.Second, "timeout:60s": 10 * time.Second, "timeout:5s": 5 * time.Second},
		"alice": {"": 10 * time.Second, "timeout:60s": time.Minute, "timeout:5s": 5 * time.Second},
	} {
		base := serve(t, w, visitor{name: name}).URL
		for field, limit := range want {
			get(t, base+"/-/search?q=needle+"+field)
			if got := time.Duration(w.timeout.Load()); got != limit {
				t.Errorf("visitor %q with %q: a time limit of %v, want %v", name, field, got, limit)
			}
		}
	}
}

// All links work: assets, examples, and each file in the results, whatever its name.
func TestLinksLead(t *testing.T) {
	t.Parallel()
	base := serve(t, newWorld(t), visitor{}).URL
	for _, path := range []string{"/-/search", "/-/search?q=needle"} {
		_, page := get(t, base+path)
		_, links := clean(t, page)
		files := 0
		for _, link := range links {
			if strings.HasPrefix(link, "#") {
				continue
			}
			if strings.HasPrefix(link, "/hostile/-/file/") {
				files++
				continue
			}
			r, body := get(t, base+link)
			if r.StatusCode != http.StatusOK {
				t.Errorf("link %s: status %s, want 200: %s", link, r.Status, body)
			}
			if strings.HasPrefix(link, "/-/assets/") && !strings.Contains(r.Header.Get("Cache-Control"), "immutable") {
				t.Errorf("%s: Cache-Control = %q, want immutable", link, r.Header.Get("Cache-Control"))
			}
		}
		if files == 0 && strings.Contains(path, "needle") {
			t.Error("results have no link to a file")
		}
	}
}

// Hidden repositories are not searched.
func TestHiddenRepositories(t *testing.T) {
	t.Parallel()
	only := search.Each(func(r git.RepoPath) bool { return r.String() == "packhorse/server" })
	base := serve(t, newWorld(t), visitor{reader: only}).URL
	_, page := get(t, base+"/-/search?q=repo:hostile+needle")
	if text, _ := clean(t, page); !strings.Contains(text, "Nothing found") || !strings.Contains(text, "Sign in") {
		t.Error(text)
	}
	known := serve(t, newWorld(t), visitor{name: "ada", reader: only}).URL
	_, page = get(t, known+"/-/search")
	if text, _ := clean(t, page); !strings.Contains(text, "ada") || strings.Contains(text, "Sign in") {
		t.Error(text)
	}
}

func TestSearchPage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	base := serve(t, w, visitor{}).URL
	say := func(path string, status int, says ...string) {
		t.Helper()
		r, page := get(t, base+path)
		text, _ := clean(t, page)
		if r.StatusCode != status {
			t.Errorf("%s: status %s, want %d", path, r.Status, status)
		}
		for _, s := range says {
			if !strings.Contains(text, s) {
				t.Errorf("%s: text without %q: %s", path, s, text)
			}
		}
	}
	say("/-/search?q=repo:hostile+needle", 200, "matches in 9 files", "current", "<i>bad</i>")
	say("/-/search?q=error", 200, "3 behind", "not indexed", "Searched without an index", "more lines in this file")
	w.files["many"] = map[string]string{}
	for i := range 60 {
		w.files["many"][fmt.Sprint(i)] = "manyhavethis\n"
	}
	say("/-/search?q=manyhavethis", 200, "50 files", "Show up to 500")
	say("/-/search?q=manyhavethis&n=500", 200, "60 files")
	say("/-/search?q=manyhavethis+count:all", 200, "60 files")
	say("/-/search?q=manyhavethis+count:55", 200, "55 files")
	for name := range 10 {
		delete(w.files["many"], fmt.Sprint(name))
	}
	if _, page := get(t, base+"/-/search?q=manyhavethis"); strings.Contains(page, "Show up to") {
		t.Error("50 results: the page offers more, want no such link")
	}
	say("/-/search?q=nothinghasthis", 200, "Nothing found")
	say("/-/search?q="+url.QueryEscape("needle count:x lang:go"), 400, "^")
	say("/-/search?q="+strings.Repeat("x", 20_000), 400, "this page accepts up to 10000 bytes")
	w.fail = fault.Retry(fault.Unavailable, 0, "the search process is being started")
	say("/-/search?q=needle", 503, "The search process is being started.")
	w.fail = fault.New(fault.Exhausted, "too many searches")
	if r, _ := get(t, base+"/-/search?q=needle"); r.StatusCode != http.StatusInternalServerError { // by the gateway
		t.Error(r.Status)
	}
	if r, _ := send(t, http.MethodPost, base+"/-/search"); r.StatusCode != http.StatusMethodNotAllowed {
		t.Error(r.Status)
	}
	if r, _ := send(t, http.MethodHead, base+"/-/search"); r.StatusCode != http.StatusOK || r.ContentLength < 1000 {
		t.Error(r)
	}
}

// Pages have a Content-Length and stay small if there are many results.
func TestPagesAreBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	many := map[string]string{}
	for i := range 2000 {
		many[fmt.Sprintf("dir/file%04d.go", i)] = strings.Repeat("needle and more of them\n", 200)
	}
	w.files["many"] = many
	base := serve(t, w, visitor{}).URL
	for path, most := range map[string]int64{"/-/search?q=repo:many+needle": 1 << 20,
		"/-/search?q=repo:many+needle&n=500": 4 << 20} {
		r, page := get(t, base+path)
		if r.ContentLength != int64(len(page)) || r.ContentLength > most || r.StatusCode != http.StatusOK {
			t.Errorf("%s: status %s, Content-Length %d for %d bytes; want 200 and at most %d", path, r.Status,
				r.ContentLength, len(page), most)
		}
	}
}
