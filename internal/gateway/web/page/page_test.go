package page

import (
	"context"
	"fmt"
	"html"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/chroma/v2/lexers"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/packhorse-git/packhorse/internal/fault"
)

func TestMain(m *testing.M) {
	// The clock of regexp2 runs for a while after its last use.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/dlclark/regexp2/v2.runClock"))
}

var tags = regexp.MustCompile(`<[^>]*>`)

// Highlighting does not change the text.
func TestCodeIsTheText(t *testing.T) {
	t.Parallel()
	p := newPainter()
	defer p.wait()
	names := []string{"a.go", "a.py", "a.js", "a.html", "a.md", "Makefile", "a.c", "a.yaml", "a.php", "a.unknown", "a.sh",
		"a.rb", "a.diff"}
	pieces := []string{"func f() {\n", "\n", "\"", "'", "/*", "*/", "#", "<b>&amp;", "\r\n", "\t x := 1", "{{", "```go\n",
		"\u00e9", "<?php", "\\", "0x1f", "EOF\n", "<<EOF\n"}
	rapid.Check(t, func(t *rapid.T) {
		text := strings.Join(rapid.SliceOfN(rapid.SampledFrom(pieces), 0, 40).Draw(t, "pieces"), "")
		shown, _, _ := p.Lines(context.Background(), rapid.SampledFrom(names).Draw(t, "name"), text)
		n := len(shown)
		var b strings.Builder
		for _, line := range shown {
			b.WriteString(line + "\n")
		}
		var want strings.Builder
		lines := 0
		for line := range strings.Lines(text) {
			want.WriteString(strings.TrimSuffix(strings.TrimSuffix(line, "\n"), "\r") + "\n")
			lines++
		}
		if got := html.UnescapeString(tags.ReplaceAllString(b.String(), "")); got != want.String() &&
			!strings.Contains(got, "U+000D") || n != lines {
			t.Fatalf("%d lines for %d:\n%q\n%q", n, lines, got, want.String())
		}
	})
}

// A file is shown without colours if highlighting is late, busy or refused.
func TestPaintEnds(t *testing.T) {
	t.Parallel()
	if spans := tokens(lexers.Get("go"), "package a\n", time.Now().Add(-time.Second)); spans != nil {
		t.Errorf("tokens after the deadline = %v, want nil", spans)
	}
	p := newPainter()
	for range cap(p.seats) {
		p.seats <- struct{}{}
	}
	if spans, language, result := p.spans(t.Context(), "a.go", "package a\n"); len(spans) != 1 || language != "Go" ||
		result != PaintBusy {
		t.Errorf("spans without a free seat = %v, %q, %q; want 1 span, Go, busy", spans, language, result)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	begin := time.Now()
	if _, _, result := p.spans(gone, "a.go", "package a\n"); result != PaintBusy || time.Since(begin) > paintTime/2 {
		t.Errorf("without a client: %q after %v, want busy at once", result, time.Since(begin))
	}
	if spans, _, result := p.spans(t.Context(), "a.go", strings.Repeat("x ", maxPainted)); len(spans) != 1 || result != PaintLarge {
		t.Errorf("large file: %d spans, result %q; want 1 and large", len(spans), result)
	}
}

// Links lead to pages of this server, whatever a repository contains.
func TestLinksStayHere(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		"/-/blob/a/b?c=\"d\"": ` href="/-/blob/a/b?c=&#34;d&#34;"`, "#L3": ` href="#L3"`,
		"javascript:alert(1)": ` href="#"`, "//example.com/-/": ` href="#"`, `/\example.com`: ` href="#"`, "https://example.com/": ` href="#"`, "": ` href="#"`,
	} {
		if got := fmt.Sprint(Href(path)); got != want {
			t.Errorf("Href(%q) = %s, want %s", path, got, want)
		}
	}
}

// failing is the caller of a page that fails.
type failing struct{ Caller }

func (failing) Name() string    { return "" }
func (failing) MaySignIn() bool { return false }
func (failing) Failed(error)    {}

// Files have the lexers that chroma finds for them.
func TestLexerOf(t *testing.T) {
	t.Parallel()
	names := []string{"README", "Makefile.am", "x.go.orig", "x.tar.gz", ".gitignore", "config.h.in", "a.b.c", "x.rs.in", "x~",
		"foo.1", ".bashrc", "CMakeLists.txt", "x.html.erb", "x.HTML", "x."}
	for pattern := range lexerIndex().plain {
		if len(names) < 60 || !testing.Short() {
			names = append(names, strings.Replace(pattern, "*", "x", 1))
		}
	}
	for _, name := range names {
		got, want := lexerOf("dir/"+name), lexers.Match(name)
		if got != want && (got == nil || want == nil || priority(got) != priority(want)) {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
	}
}

// Errors that concern the visitor are pages. Caches do not keep them, even at addresses of pages that they could keep.
func TestFail(t *testing.T) {
	t.Parallel()
	s, err := NewSite(Options{})
	if err != nil {
		t.Fatal(err)
	}
	for kind, status := range map[fault.Kind]int{fault.NotFound: 404, fault.Invalid: 400, fault.Exhausted: 429,
		fault.Denied: 403, fault.Exists: 409, fault.Precondition: 409, fault.Deadline: 504, fault.Corrupt: 500} {
		w := httptest.NewRecorder()
		w.Header().Set("Cache-Control", "public, max-age=86400, immutable")
		w.Header().Set("ETag", `"x"`)
		err := s.Fail(w, httptest.NewRequest(http.MethodGet, "/a", nil), failing{}, fault.New(kind, "the reason"))
		if h := w.Header(); err != nil || w.Code != status || !strings.Contains(w.Body.String(), "The reason.") ||
			h.Get("Cache-Control") != "no-store" || h.Get("ETag") != "" {
			t.Errorf("%v: status %d, header %v, want %d, no-store and no ETag: %v, %.300s", kind, w.Code, h, status, err, w.Body)
		}
	}
}
