package e2e

import (
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/net/html"

	gitid "github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// corpus has what pages limit: a directory of many entries, long files, and a commit of many files.
type corpus struct {
	*gittest.Repo
	entries, lines, changed int
}

func newCorpus(t *testing.T, path string) *corpus {
	c := &corpus{gittest.InitAt(t, path), 2500, 45_000, 400}
	if !testing.Short() {
		c.entries, c.lines, c.changed = 100_000, 200_000, 5000
	}
	var b strings.Builder
	commit := func(n int, header, message string) {
		fmt.Fprintf(&b, "commit refs/heads/main\nmark :%d\ncommitter C <c@example.org> %d +0000\n%sdata %d\n%s\n", n,
			1700000000+n, header, len(message), message)
	}
	file := func(name, data string) { fmt.Fprintf(&b, "M 100644 inline %s\ndata %d\n%s\n", name, len(data), data) }
	lines := func(n, step int) string {
		var text strings.Builder
		for i := range n {
			text.WriteString(strconv.Itoa(i*step) + "\n")
		}
		return text.String()
	}
	commit(1, "", "many")
	for i := range c.entries {
		fmt.Fprintf(&b, "M 100644 inline many/%06d\ndata 1\nx\n", i*7)
	}
	file("lines", lines(c.lines, 1))
	file("empty-lines", strings.Repeat("\n", 1_500_000))
	file("million", lines(1_000_000, 1))
	file("minified.js", strings.Repeat("var a=1;", 10<<20/8)+"\nlast\n")
	file("long.txt", strings.Repeat("\x01\x02\u202e", 300<<10)+"\nlast\n")
	file("crlf", "a\r\nb\r\n\r\nc")
	commit(2, "encoding ISO-8859-1\n", "caf\xe9 \xdcber\n\nk\xf6rper\n")
	file("lines", lines(c.lines, 2))
	commit(3, "", "changes many")
	for i := range c.changed {
		fmt.Fprintf(&b, "M 100644 inline changed/%05d\ndata 8\nline %02d\n\n", i, i%100)
	}
	c.GitIn(b.String(), "fast-import", "--quiet")
	return c
}

// TestPageCorpus compares what pages limit with what git says, and what they show of repositories with odd refs.
func TestPageCorpus(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	large := newCorpus(t, filepath.Join(root, "large.git"))
	odd := newOddRefs(t, filepath.Join(root, "odd.git"))
	unborn := newPageRepo(t, filepath.Join(root, "unborn.git"))
	unborn.Git("symbolic-ref", "HEAD", "refs/heads/none")
	c := servePages(t, root)
	as := func(t *testing.T) *browserClient { return &browserClient{t, c.Client, c.base, c.state} }
	t.Run("directory", func(t *testing.T) { largeDirectory(t, as(t), large) })
	t.Run("files", func(t *testing.T) { largeFiles(t, as(t), large) })
	t.Run("changes", func(t *testing.T) { largeChanges(t, as(t), large) })
	t.Run("refs", func(t *testing.T) { oddRefs(t, as(t), odd) })
	t.Run("reftable", func(t *testing.T) {
		c := as(t)
		gittest.At(t, odd.Dir).Newer("clone", "--quiet", "--bare", "--ref-format=reftable", odd.Dir,
			filepath.Join(root, "reftable.git"))
		safe(t, "a reftable", c.get("/reftable/"))
		if got := commitLinks(t, c.get("/reftable/-/log/same")); got[0] != odd.ID("refs/tags/same").String() {
			t.Errorf("the log of a tag in a reftable begins with %s", got[0])
		}
	})
	t.Run("unborn", func(t *testing.T) {
		c := as(t)
		page := c.get("/unborn/")
		if safe(t, "a HEAD that leads nowhere", page); !strings.Contains(string(page), "HEAD leads to no commit") ||
			!strings.Contains(string(page), `href="/unborn/-/tree/main"`) {
			t.Errorf("a HEAD that leads nowhere: %s", page)
		}
		if page := string(c.get("/unborn/-/refs")); !strings.Contains(page, `href="/unborn/-/log/main"`) {
			t.Errorf("the refs: %s", page)
		}
		c.get("/unborn/-/compare/main~1..main")
		for _, path := range []string{"tree", "log/HEAD", "file/HEAD/x.go", "raw/none/x", "feed/HEAD", "archive/HEAD.tar"} {
			if status, _, _ := c.try("/unborn/-/" + path); status != http.StatusNotFound {
				t.Errorf("%s: status %d, want 404", path, status)
			}
		}
	})
}

// largeDirectory visits all pages of a directory.
func largeDirectory(t *testing.T, c *browserClient, r *corpus) {
	want := strings.Fields(r.Git("ls-tree", "--name-only", "main:many"))
	var got []string
	for at := "/large/-/tree/main/many"; at != ""; {
		page := c.get(at)
		if len(page) > 4<<20 {
			t.Errorf("%s has %d bytes", at, len(page))
		}
		at = ""
		for _, link := range linksIn(t, page, "entries") {
			if _, name, ok := strings.Cut(link, "/-/file/main/many/"); ok {
				got = append(got, name)
			}
		}
		for _, link := range linksIn(t, page, "more") {
			at = "/large/-/tree/main/many" + link
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("the pages list %d entries, git %d", len(got), len(want))
	}
}

// shownLines returns the lines of a file's page.
func shownLines(t *testing.T, page []byte) (lines []string) {
	for _, e := range elements(t, page, hasClass("code")) {
		for n := range e.Descendants() {
			if n.Data == "code" {
				lines = append(lines, textOf(n))
			}
		}
	}
	return lines
}

// largeFiles compares long files and long lines.
func largeFiles(t *testing.T, c *browserClient, r *corpus) {
	for _, name := range []string{"lines", "empty-lines", "million", "minified.js", "long.txt", "crlf"} {
		want := r.Git("cat-file", "blob", "main:"+name)
		if got := string(c.get("/large/-/raw/main/" + name)); strings.TrimRight(got, "\n") != strings.TrimRight(want, "\n") {
			t.Errorf("raw %s has %d bytes, want %d", name, len(got), len(want))
		}
		for _, kind := range []string{"file", "blame"} {
			page := c.get("/large/-/" + kind + "/main/" + name)
			if safe(t, name, page); len(page) > 16<<20 {
				t.Errorf("%s of %s has %d bytes", kind, name, len(page))
			}
		}
	}
	want := strings.Fields(r.Git("cat-file", "blob", "main:lines"))
	for _, kind := range []string{"file", "blame"} {
		var got []string
		for len(got) < len(want) {
			lines := shownLines(t, c.get(fmt.Sprintf("/large/-/%s/main/lines?line=%d", kind, len(got)+1)))
			if len(lines) == 0 || len(lines) > 20_000 {
				t.Fatalf("%s shows %d lines after %d", kind, len(lines), len(got))
			}
			got = append(got, lines...)
		}
		if !slices.Equal(got, want) {
			t.Errorf("the pages of %s have %d lines, which are not the %d of git", kind, len(got), len(want))
		}
	}
	page := string(c.get("/large/-/file/main/lines?line=20001"))
	for _, text := range []string{`id="L20001"`, `Lines 20001 to 40000 of`, `href="?line=1#L1"`, `href="?line=40001#L40001"`} {
		if !strings.Contains(page, text) {
			t.Errorf("the second part of a file lacks %s: %.500s", text, page)
		}
	}
	for _, line := range []string{"-1", "x", "99999999999999999999", "0"} {
		c.get("/large/-/file/main/lines?line=" + line)
	}
	if lines := shownLines(t, c.get("/large/-/file/main/crlf")); !slices.Equal(lines, []string{"a", "b", "", "c"}) {
		t.Errorf("the lines of crlf are %q", lines)
	}
	if page := string(c.get("/large/-/file/main/million")); !strings.Contains(page, "too large to show") {
		t.Errorf("a million lines: %.500s", page)
	}
	if page := string(c.get("/large/-/log/main")); !strings.Contains(page, "café Über") {
		t.Errorf("the log lacks the subject in Latin-1: %s", page)
	}
	if page := string(c.get("/large/-/commit/main~1")); !strings.Contains(page, "körper") {
		t.Error("the commit lacks the body in Latin-1")
	}
}

// largeChanges compares a commit of many files, and one of many lines.
func largeChanges(t *testing.T, c *browserClient, r *corpus) {
	page := c.get("/large/-/commit/main")
	isFile := func(n *html.Node) bool { return n.Data == "article" && hasClass("file")(n) }
	if n := len(elements(t, page, isFile)); n != 300 || !strings.Contains(string(page), "more files are not shown") {
		t.Errorf("the page of a commit of %d files shows %d and no note", r.changed, n)
	}
	var listed []string
	for _, e := range elements(t, page, hasClass("changed")) {
		for n := range e.Descendants() {
			if n.Data == "a" {
				listed = append(listed, textOf(n))
			}
		}
	}
	if want := strings.Fields(r.Git("diff", "--name-only", "main~1", "main")); !slices.Equal(listed, want) {
		t.Errorf("the page lists %d files, git %d", len(listed), len(want))
	}
	want := r.Git("format-patch", "-1", "--stdout", "--no-signature", "--full-index", "main")
	if got := string(c.get("/large/-/commit/main.patch")); strings.TrimSpace(got) != strings.TrimSpace(want) {
		t.Errorf("the patch has %d bytes, want %d:\n%.500s\n%.500s", len(got), len(want), got, want)
	}
	for _, path := range []string{"commit/main~1", "compare/main~2...main", "compare/main~2..main", "commit/main~2"} {
		page := c.get("/large/-/" + path)
		safe(t, path, page)
		rows := elements(t, page, func(n *html.Node) bool { return n.Data == "tr" && len(n.Attr) > 0 })
		if !strings.Contains(string(page), "not shown") && !strings.Contains(string(page), "too large to show") ||
			len(rows) > 20_000 || len(page) > 16<<20 {
			t.Errorf("%s has %d bytes and %d rows, or no note", path, len(page), len(rows))
		}
	}
}

// newOddRefs makes a repository with refs that look like others, and that lead to no commit.
func newOddRefs(t *testing.T, path string) *gittest.Repo {
	r := gittest.InitAt(t, path)
	first := r.Commit("first")
	second := r.Commit("second", first)
	third := r.Commit("third", second)
	for ref, id := range map[string]gitid.ObjectID{"refs/heads/main": first,
		"refs/heads/same": second, "refs/tags/same": third,
		"refs/heads/" + first.String(): third, "refs/heads/" + first.String()[:8]: second, "refs/heads/HEAD": second,
		"refs/heads/tags/same": first, "refs/heads/-x": first, "refs/heads/a/b/c": first, "refs/heads/refs/heads/main": third,
		"refs/tags/blob": r.Blob("text\n")} {
		r.Git("update-ref", ref, id.String())
	}
	r.Git("tag", "-a", "-m", "a tag", "one", third.String())
	r.Git("tag", "-a", "-m", "of a tag", "two", "one")
	r.Git("tag", "-a", "-m", "of a tag of a tag", "three", "two")
	r.Git("tag", "-a", "-m", "of a tree", "tree", first.String()+"^{tree}")
	return r
}

// oddRefs follows the links of branches and tags: they lead to the commit of their ref.
func oddRefs(t *testing.T, c *browserClient, r *gittest.Repo) {
	page := c.get("/odd/-/refs")
	safe(t, "the refs", page)
	want := map[string]bool{}
	refs := r.Git("for-each-ref", "--format=%(refname) %(objecttype) %(*objecttype)", "refs/heads", "refs/tags")
	for _, line := range strings.Split(strings.TrimSpace(refs), "\n") {
		if ref, types, _ := strings.Cut(line, " "); strings.Contains(types, "commit") || strings.Contains(types, "tag tag") {
			want[r.ID(ref+"^{commit}").String()+" "+ref] = true
		}
	}
	got := map[string]bool{}
	for _, row := range elements(t, page, func(n *html.Node) bool { return n.Data == "tr" }) {
		name := ""
		for n := range row.Descendants() {
			to := attribute(n, "href")
			if n.Data == "td" && hasClass("name")(n) {
				name = strings.TrimSuffix(textOf(n), " default")
			}
			if n.Data != "a" || !strings.Contains(to, "/-/log/") {
				continue
			}
			tip := commitLinks(t, c.get(to))[0]
			ref := "refs/heads/" + name
			if row.Parent.Parent.Parent.FirstChild.FirstChild.Data == "Tags" {
				ref = "refs/tags/" + name
			}
			got[tip+" "+ref] = true
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d refs have links, want %d", len(got), len(want))
	}
	for ref := range want {
		if !got[ref] {
			t.Errorf("no link leads to %s; there are %v", ref, got)
		}
	}
	for rev, git := range map[string]string{"three": "three^{commit}", r.ID("main").String(): r.ID("main").String(),
		r.ID("main").String()[:8]: "refs/heads/" + r.ID("main").String()[:8], "same": "refs/tags/same", "a/b/c": "a/b/c"} {
		if got := commitLinks(t, c.get("/odd/-/log/"+rev))[0]; got != r.ID(git+"^{commit}").String() {
			t.Errorf("the log of %s begins with %s, want that of %s", rev, got, git)
		}
	}
	for _, path := range []string{"tree/tree", "file/blob", "raw/blob", "commit/tree", "log/blob"} {
		if status, _, _ := c.try("/odd/-/" + path); status != http.StatusNotFound && status != http.StatusBadRequest {
			t.Errorf("%s: status %d, want 404 or 400", path, status)
		}
	}
}
