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

// Invisible characters are shown as numbers, except those within emoji.
func TestInvisible(t *testing.T) {
	t.Parallel()
	for _, r := range "\u0080\u0085\u009f\u00ad\u034f\u061c\u115f\u1160\u180b\u180e\u200b\u200d\u200f\u2028\u2029\u202e\u2060" +
		"\u2061\u2064\u2065\u2069\u206f\u2800\u3164\ufe00\ufe0f\ufeff\uffa0\ufff9\U000e0001\U000e0041\U000e007f\U000e0100\U000e01ef" {
		if want := "a" + named(r) + "b"; Visible("a"+string(r)+"b") != want {
			t.Errorf("got %q, want %s", Visible("a"+string(r)+"b"), want)
		}
	}
	const family, heart = "\U0001f468\u200d\U0001f469", "\u2764\ufe0f\u200d\U0001f525"
	for text, want := range map[string]string{family: family, heart: heart, "\u00e9\u4e2d\u0600\t\u00a0": "\u00e9\u4e2d\u0600\t\u00a0",
		"\u2764\ufe0f\ufe0f": "\u2764\ufe0fU+FE0F", "\u2764\u200da": "\u2764U+200Da", "\u2764\u200d": "\u2764U+200D"} {
		if Visible(text) != want {
			t.Errorf("%q is shown as %q, want %q", text, Visible(text), want)
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
