package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// hostileNames are names of files, valid in Git. Some look like parts of addresses or of pages.
var hostileNames = []string{"a\nb", "quote\"'`", "caf\xe9\xff", " space ", "-option", "a?b#c%d", "<script>alert(1)</script>",
	"javascript:alert(1)", "\u202ebidi", "tab\there", "back\\slash", "dir/with/\xfe/file", "dir/tree/main", "-/file/HEAD",
	"%2e%2e", "..a", "ünïcödé", "&amp;", "a;b=c", "x.go", "+plus"}

// fastImport quotes a path for git fast-import.
func fastImport(name string) string {
	var b strings.Builder
	for _, c := range []byte(name) {
		if c < ' ' || c == '"' || c == '\\' || c > '~' {
			fmt.Fprintf(&b, "\\%03o", c)
		} else {
			b.WriteByte(c)
		}
	}
	return `"` + b.String() + `"`
}

// newPageRepo makes a repository with hostile names and messages, a merge, a submodule, links and many commits.
func newPageRepo(t *testing.T, path string, args ...string) *gittest.Repo {
	r := gittest.InitAt(t, path, args...)
	var b strings.Builder
	person := "\"'&amp; onerror=alert(1) \u202e <a@\"example.org>"
	commit := func(ref, message, from string, n int, changes ...string) {
		fmt.Fprintf(&b, "commit %s\nmark :%d\ncommitter %s %d +0130\ndata %d\n%s\n", ref, n, person, 1700000000+n*1000,
			len(message), message)
		if from != "" {
			b.WriteString("from " + from + "\n")
		}
		b.WriteString(strings.Join(changes, ""))
		b.WriteString("\n")
	}
	file := func(mode, name, data string) string {
		return fmt.Sprintf("M %s inline %s\ndata %d\n%s\n", mode, fastImport(name), len(data), data)
	}
	var first []string
	for i, name := range hostileNames {
		first = append(first, file("100644", name, fmt.Sprintf("line %d\n<script>alert(%d)</script>\nlast", i, i)))
	}
	first = append(first, file("120000", "loop", "loop"), file("120000", "out", "../../etc/passwd"),
		file("120000", "in", "dir/with"), file("100755", "run.sh", "#!/bin/sh\necho\n"), file("100644", "nul.bin", "\x00\x01"),
		"M 160000 "+strings.Repeat("1", r.Format().HexSize())+" module\n",
		file("100644", "README.md", "# Title <b>x</b>\n\n<script>alert(1)</script> [a](javascript:alert(1)) [b](dir/with) "+
			"![i](https://evil.example/x.png) ![j](nul.bin) <img src=x onerror=alert(1)>\n"))
	commit("refs/heads/main", "one <script>alert(1)</script>\n\nbody \xff\u202e &amp;\n", "", 1, first...)
	for n := 2; n < 30; n++ {
		commit("refs/heads/main", fmt.Sprintf("change %d\n\none\ntwo\n", n), "", n, file("100644", "x.go",
			fmt.Sprintf("package x\n\nvar n = %d\n%s", n, strings.Repeat("// same\n", n))))
	}
	commit("refs/heads/feature/a/b", "side", ":5", 40, file("100644", "side", "side\n"))
	commit("refs/heads/main", "merge", ":29", 50, "merge :40\n", file("100644", "side", "side\n"))
	commit("refs/heads/<b>&\"", "strange branch", ":3", 51, file("100644", "z", "z\n"))
	r.GitIn(b.String(), "fast-import", "--quiet", "--force")
	r.Git("tag", "-a", "-m", "a tag", "v1.0", "main~3")
	return r
}

// browserClient requests pages as browsers do: with cookies.
type browserClient struct {
	*testing.T
	http.Client
	base  string
	state string // the server's state directory
}

func newBrowserClient(t *testing.T, base string) *browserClient {
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	return &browserClient{t, http.Client{Jar: jar, Transport: &http.Transport{}}, base, ""}
}

// get returns a page that has to exist.
func (c *browserClient) get(path string) []byte {
	c.Helper()
	status, _, body := c.try(path)
	if status != http.StatusOK {
		c.Fatalf("GET %s: status %d, want 200: %.300s", path, status, body)
	}
	return body
}

func (c *browserClient) try(path string) (int, http.Header, []byte) {
	c.Helper()
	q, err := http.NewRequestWithContext(c.Context(), http.MethodGet, c.base+path, nil)
	if err != nil {
		c.Fatal(err)
	}
	q.Header.Set("Accept", "text/html,*/*;q=0.8")
	r, err := c.Do(q)
	if err != nil {
		c.Fatal(err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		c.Fatal(err)
	}
	return r.StatusCode, r.Header, body
}

// elements returns the elements of a page that match.
func elements(t *testing.T, page []byte, match func(*html.Node) bool) (list []*html.Node) {
	t.Helper()
	doc, err := html.Parse(bytes.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}
	for n := range doc.Descendants() {
		if n.Type == html.ElementNode && match(n) {
			list = append(list, n)
		}
	}
	return list
}

func attribute(n *html.Node, key string) string {
	for _, a := range n.Attr {
		if a.Key == key {
			return a.Val
		}
	}
	return ""
}

func hasClass(class string) func(*html.Node) bool {
	return func(n *html.Node) bool { return slices.Contains(strings.Fields(attribute(n, "class")), class) }
}

func textOf(n *html.Node) string {
	var b strings.Builder
	for c := range n.Descendants() {
		if c.Type == html.TextNode {
			b.WriteString(c.Data)
		}
	}
	return b.String()
}

// linksIn returns the addresses of links in elements with a class, without the page's own host.
func linksIn(t *testing.T, page []byte, class string) (list []string) {
	for _, e := range elements(t, page, hasClass(class)) {
		for n := range e.Descendants() {
			if n.Type == html.ElementNode && n.Data == "a" {
				list = append(list, attribute(n, "href"))
			}
		}
	}
	return list
}

// safe checks that the text of repositories has added no elements and attributes that run or load anything.
func safe(t *testing.T, what string, page []byte) {
	t.Helper()
	scripts := 0
	elements(t, page, func(n *html.Node) bool {
		if n.Data == "script" {
			scripts++
		}
		if slices.Contains([]string{"iframe", "object", "embed", "style", "base"}, n.Data) {
			t.Errorf("%s has an element %s", what, n.Data)
		}
		for _, a := range n.Attr {
			if strings.HasPrefix(a.Key, "on") || a.Key == "style" || a.Key == "src" && !strings.HasPrefix(a.Val, "/") ||
				a.Key == "href" && strings.HasPrefix(strings.ToLower(strings.TrimSpace(a.Val)), "javascript:") {
				t.Errorf("%s: %s has %s=%q", what, n.Data, a.Key, a.Val)
			}
		}
		return false
	})
	if scripts != 1 {
		t.Errorf("%s has %d scripts, want 1", what, scripts)
	}
}

// servePages starts a server of a root for a browser.
func servePages(t *testing.T, root string, args ...string) *browserClient {
	t.Helper()
	dir := t.TempDir()
	var env []string
	if newer := os.Getenv(newerGit); newer != "" { // it reads reftables
		env = []string{"PATH=" + filepath.Dir(newer) + string(filepath.ListSeparator) + os.Getenv("PATH")}
	}
	server, err := startServer(dir, env, append([]string{"serve", "--root", root, "--state", filepath.Join(dir, "state"), "--http",
		"127.0.0.1:0", "--ops", "", "--log-format", "json"}, args...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { killAll(t, server) })
	c := newBrowserClient(t, server.http)
	c.state = filepath.Join(dir, "state")
	return c
}

// pathOfLink returns the path of a file that a link to a page of a kind leads to.
func pathOfLink(t *testing.T, link, kind, revision string) string {
	t.Helper()
	_, rest, _ := strings.Cut(link, "/-/"+kind+"/"+revision+"/")
	name, err := url.PathUnescape(rest)
	if err != nil {
		t.Fatal(err)
	}
	return name
}

// TestPageContent compares the content of pages with what git says.
func TestPageContent(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for name, args := range map[string][]string{"team/hostile": nil, "team/sha256": {"--object-format=sha256"}} {
		if err := os.MkdirAll(filepath.Join(root, "team"), 0o777); err != nil {
			t.Fatal(err)
		}
		newPageRepo(t, filepath.Join(root, name+".git"), args...)
	}
	gittest.InitAt(t, filepath.Join(root, "empty.git"))
	gittest.Run(t, "", "", "clone", "--quiet", "--bare", "--depth=3", "file://"+filepath.Join(root, "team/hostile.git"),
		filepath.Join(root, "shallow.git"))
	c := servePages(t, root)
	safe(t, "the list", c.get("/"))
	if page := string(c.get("/empty/")); !strings.Contains(page, "This repository is empty") {
		t.Errorf("the page of an empty repository: %s", page)
	}
	safe(t, "a shallow repository", c.get("/shallow/-/log/HEAD"))
	for _, module := range []string{"", "/v2", "/dir/package"} {
		page := c.ask("/team/hostile"+module+"?go-get=1", "Accept: */*")
		if !strings.Contains(page, `<meta name="go-import" content="`+strings.TrimPrefix(c.base, "http://")+
			"/team/hostile git "+c.base+`/team/hostile">`) {
			t.Errorf("what the go command gets at %q lacks the place of the repository: %.1000s", module, page)
		}
	}
	if page := c.ask("/team/none/package?go-get=1", "Accept: */*"); strings.Contains(page, "go-import") {
		t.Errorf("the go command gets a repository that does not exist: %.1000s", page)
	}
	feed := string(c.get("/team/hostile/-/feed/main"))
	if strings.Contains(feed, "U+000A") || !strings.Contains(feed, "<content>change 29&#xA;&#xA;one&#xA;two</content>") {
		t.Errorf("the feed is %.3000s, want messages of several lines", feed)
	}
	for _, name := range []string{"team/hostile", "team/sha256"} {
		t.Run(name, func(t *testing.T) {
			comparePages(t, &browserClient{t, c.Client, c.base, c.state}, gittest.At(t, filepath.Join(root, name+".git")), "/"+name)
		})
	}
}

func comparePages(t *testing.T, c *browserClient, r *gittest.Repo, base string) {
	safe(t, "the repository", c.get(base+"/"))
	for _, rev := range []string{"main", "feature/a/b", "v1.0", "main~2"} {
		dirs := []string{""}
		for len(dirs) > 0 {
			dir := dirs[0]
			dirs = dirs[1:]
			address := "/-/tree/" + rev
			spec := rev + ":"
			if dir != "" {
				address += "/" + escapePath(dir)
				spec = rev + ":" + dir
			}
			page := c.get(base + address)
			safe(t, address, page)
			var want, got []string
			for _, line := range strings.Split(strings.TrimSuffix(r.Git("ls-tree", "-z", spec), "\x00"), "\x00") {
				about, name, _ := strings.Cut(line, "\t")
				path := name
				if dir != "" {
					path = dir + "/" + name
				}
				want = append(want, path)
				if strings.Contains(about, " tree ") {
					dirs = append(dirs, path)
				}
			}
			for _, e := range elements(t, page, hasClass("entries")) {
				for n := range e.Descendants() {
					if n.Data == "a" && slices.ContainsFunc([]string{"plain", "dir", "link", "module", "prog"},
						func(class string) bool { return hasClass(class)(n) }) && textOf(n) != ".." {
						kind := "file"
						if hasClass("dir")(n) {
							kind = "tree"
						}
						got = append(got, pathOfLink(t, attribute(n, "href"), kind, rev))
					}
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s lists\n%q, git\n%q", address, got, want)
			}
		}
	}
	for _, name := range hostileNames {
		want := r.Git("cat-file", "blob", "main:"+name)
		if got := c.get(base + "/-/raw/main/" + escapePath(name)); strings.TrimSpace(string(got)) != want {
			t.Errorf("raw of %q = %q, want %q", name, got, want)
		}
		page := c.get(base + "/-/file/main/" + escapePath(name))
		safe(t, name, page)
		var lines []string
		for _, e := range elements(t, page, hasClass("code")) {
			for n := range e.Descendants() {
				if n.Data == "code" {
					lines = append(lines, textOf(n))
				}
			}
		}
		if strings.Join(lines, "\n") != want {
			t.Errorf("the lines of %q are %q, want %q", name, lines, want)
		}
		compareBlame(t, c, r, base, name)
		commits := commitLinks(t, c.get(base+"/-/history/main/"+escapePath(name)))
		if want := strings.Fields(r.Git("log", "--format=%H", "-51", "main", "--", ":(literal)"+name)); !slices.Equal(commits, want) {
			t.Errorf("the history of %q is %q, want %q", name, commits, want)
		}
	}
	for _, rev := range []string{"main", "feature/a/b", "v1.0"} {
		page := c.get(base + "/-/log/" + rev)
		safe(t, "the log", page)
		want := strings.Fields(r.Git("log", "--format=%H", "-50", rev))
		if got := commitLinks(t, page); !slices.Equal(got, want) {
			t.Errorf("the log of %s is %q, want %q", rev, got, want)
		}
	}
	for _, id := range strings.Fields(r.Git("rev-list", "--all")) {
		page := c.get(base + "/-/commit/" + id)
		safe(t, "commit "+id, page)
		for _, e := range elements(t, page, hasClass("message")) {
			if text := textOf(e); strings.Contains(text, "U+000A") {
				t.Errorf("the message of %s is %q, want its lines", id, text)
			}
		}
		want := r.Git("log", "-1", "--format=", "-p", "-M", "-m", "--first-parent", id)
		compareDiff(t, "commit "+id, page, want)
		if strings.Count(r.Git("log", "-1", "--format=%p", id), " ") == 0 { // no merge
			patch := c.get(base + "/-/commit/" + id + ".patch")
			if want := r.Git("format-patch", "-1", "--stdout", "--no-signature", id); !strings.HasPrefix(string(patch), want[:100]) {
				t.Errorf("the patch of %s begins with %.100q, want %.100q", id, patch, want)
			}
		}
	}
	compareDiff(t, "a comparison", c.get(base+"/-/compare/feature/a/b...main"), r.Git("diff", "-M", "feature/a/b...main"))
	if status, _, _ := c.try(base + "/-/commit/" + strings.Repeat("0", r.Format().HexSize())); status != http.StatusNotFound {
		t.Errorf("a commit that does not exist: status %d, want 404", status)
	}
	safe(t, "refs", c.get(base+"/-/refs"))
	safe(t, "a strange branch", c.get(base+"/-/log/"+escapePath("<b>&\"")))
}

// escapePath escapes the components of a path.
func escapePath(path string) string {
	parts := strings.Split(path, "/")
	for i, part := range parts {
		parts[i] = url.PathEscape(part)
	}
	return strings.Join(parts, "/")
}

// commitLinks returns the commits of a log, in its order.
func commitLinks(t *testing.T, page []byte) (list []string) {
	for _, link := range linksIn(t, page, "id") {
		if _, id, ok := strings.Cut(link, "/-/commit/"); ok {
			list = append(list, id)
		}
	}
	return list
}

// compareBlame compares the commit of each line.
func compareBlame(t *testing.T, c *browserClient, r *gittest.Repo, base, name string) {
	var want, got []string
	for _, line := range strings.Split(r.Git("blame", "--line-porcelain", "main", "--", name), "\n") {
		if id, _, _ := strings.Cut(line, " "); len(id) == r.Format().HexSize() && strings.Trim(id, "0123456789abcdef") == "" {
			want = append(want, id)
		}
	}
	last := ""
	for _, e := range elements(t, c.get(base+"/-/blame/main/"+escapePath(name)), hasClass("by")) {
		for n := range e.Descendants() {
			if _, id, ok := strings.Cut(attribute(n, "href"), "/-/commit/"); ok {
				last = id
			}
		}
		got = append(got, last)
	}
	if !slices.Equal(got, want) {
		t.Errorf("the blame of %q is %q, want %q", name, got, want)
	}
}

// compareDiff compares the lines of hunks.
func compareDiff(t *testing.T, what string, page []byte, patch string) {
	t.Helper()
	var want, got []string
	inHunk := false
	for _, line := range strings.Split(strings.TrimSuffix(patch, "\n"), "\n") {
		switch {
		case strings.HasPrefix(line, "diff --git"):
			inHunk = false
		case strings.HasPrefix(line, "@@"):
			inHunk = true
		}
		if inHunk && line != "" {
			want = append(want, strings.ToValidUTF8(line, "\ufffd"))
		}
	}
	for _, e := range elements(t, page, hasClass("diff")) {
		for n := range e.Descendants() {
			if n.Data != "tr" {
				continue
			}
			text := textOf(n)
			switch {
			case hasClass("hunk")(n) && strings.HasPrefix(text, " No newline"):
				text = "\\" + text
			case !hasClass("hunk")(n) && !hasClass("add")(n) && !hasClass("del")(n):
				text = " " + text
			}
			got = append(got, text)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s has the lines\n%q, git\n%q", what, got, want)
	}
}
