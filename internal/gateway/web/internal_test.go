package web

import (
	"encoding/json"
	"fmt"
	"html"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/chroma/v2/lexers"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/search/query"
	"github.com/packhorse-git/packhorse/internal/search/schema"
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
		spans, _, _ := p.spans(rapid.SampledFrom(names).Draw(t, "name"), text)
		var b strings.Builder
		n := writeCode(&b, spans)
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
	if spans, language, result := p.spans("a.go", "package a\n"); len(spans) != 1 || language != "Go" ||
		result != paintBusy {
		t.Errorf("spans without a free seat = %v, %q, %q; want 1 span, Go, busy", spans, language, result)
	}
	if spans, _, result := p.spans("a.go", strings.Repeat("x ", maxPainted)); len(spans) != 1 || result != paintLarge {
		t.Errorf("large file: %d spans, result %q; want 1 and large", len(spans), result)
	}
}

func TestFileURLs(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`[a-z#?%:@ü]{1,8}(/[a-z0-9.#%]{1,8}){0,3}`)
		repository, path := name.Draw(t, "repository"), string(rapid.SliceOfN(rapid.ByteRange('/', 0xff), 1, 20).Draw(t,
			"path"))
		id := git.MustParseObjectID(rapid.StringMatching(`[1-9a-f]{40}`).Draw(t, "commit"))
		var m match
		if err := json.Unmarshal(schema.API.Append(nil, &schema.File{Repository: repository, Commit: id.String(),
			Path: path}), &m); err != nil {
			t.Fatal(err)
		}
		u := newFileResult(&m).URL
		if strings.ContainsAny(u, "#?\" ") {
			t.Fatal(u)
		}
		f, err := parseFile(unescape(t, u))
		if err != nil || f.repository != repository || f.path != path || f.commit != id {
			t.Fatal(u, f, err)
		}
	})
}

// Links lead to pages of this server, whatever a repository contains.
func TestLinksStayHere(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		"/-/blob/a/b?c=\"d\"": ` href="/-/blob/a/b?c=&#34;d&#34;"`, "#L3": ` href="#L3"`,
		"javascript:alert(1)": ` href="#"`, "//example.com/-/": ` href="#"`, "https://example.com/": ` href="#"`, "": ` href="#"`,
	} {
		if got := fmt.Sprint(href(path)); got != want {
			t.Errorf("href(%q) = %s, want %s", path, got, want)
		}
	}
}

func TestMarks(t *testing.T) {
	t.Parallel()
	show := func(pieces []piece) (s string) {
		for _, p := range pieces {
			switch {
			case p.Hit:
				s += "[" + p.Text + "]"
			case p.Control:
				s += "(" + p.Text + ")"
			default:
				s += p.Text
			}
		}
		return s
	}
	for _, test := range []struct {
		text   string
		ranges [][2]int
		want   string
	}{
		{"a needle here\r\n", [][2]int{{2, 8}}, "a [needle] here"},
		{"üü needle", [][2]int{{3, 9}}, "üü [needle]"},
		{"ab", [][2]int{{0, 1}, {0, 2}}, "[a][b]"},
		{"ab", [][2]int{{-5, 99}}, "[ab]"},
		{"ab", [][2]int{{2, 1}, {7, 9}}, "ab"},
		{"", [][2]int{{0, 4}}, ""},
		{"a\x00b\u202e", [][2]int{{0, 3}}, "[a](U+0000)[b](U+202E)"},
		{strings.Repeat("x", 100) + "needle" + strings.Repeat("y", 1000), [][2]int{{100, 106}},
			"…" + strings.Repeat("x", leadBytes) + "[needle]" + strings.Repeat("y", shownBytes-leadBytes-6) + "…"},
	} {
		if got := show(marked(test.text, inBytes(test.text, test.ranges))); got != test.want {
			t.Errorf("marked(%.20q) = %q, want %q", test.text, got, test.want)
		}
	}
}

// unescape returns the path that a server receives in Request.URL.Path.
func unescape(t rapid.TB, address string) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	return u.Path
}

// The examples are valid queries.
func TestExamples(t *testing.T) {
	t.Parallel()
	for _, e := range examples {
		q, err := query.Parse(e.Query)
		if err != nil {
			t.Errorf("%s: %v", e.Query, err)
			continue
		}
		expression := false
		if q.Root != nil {
			q.Root.Atoms(func(n *query.Node) { expression = expression || n.Regexp })
		}
		if strings.Contains(e.Says, "regular expression") && !expression {
			t.Errorf("example %q has no regular expression, but its description mentions one", e.Query)
		}
	}
}
