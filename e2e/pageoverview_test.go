package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// linkTo returns whether an element is a link to an address.
func linkTo(address string) func(*html.Node) bool {
	return func(n *html.Node) bool { return n.Data == "a" && attribute(n, "href") == address }
}

// TestPageOverview looks for what leads from the first pages to the others.
func TestPageOverview(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	r := gittest.InitAt(t, filepath.Join(root, "app.git"))
	script := "commit refs/heads/main\ncommitter a <a@example.org> 1700000000 +0130\ndata 5\nfirst\n" +
		"M 100644 inline README.md\ndata 7\n# About\nM 100644 inline d/e\ndata 2\ne\n" +
		"M 100644 inline d/logo.png\ndata 4\n\x89PNG\n"
	for n := range 60 {
		script += fmt.Sprintf("M 100644 inline file%d\ndata 2\nx\n", n)
	}
	for n := range 12 {
		script += fmt.Sprintf("reset refs/heads/b%02d\nfrom refs/heads/main\n", n)
	}
	r.GitIn(script, "fast-import", "--quiet")
	for _, name := range []string{"attic/old", "team/a", "team/sub/x", "team/z", "zoo"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o777); err != nil {
			t.Fatal(err)
		}
		gittest.InitAt(t, filepath.Join(root, name+".git"))
	}
	c := servePages(t, root)

	var rows []string
	elements(t, c.get("/"), func(n *html.Node) bool {
		if n.Data == "a" && (hasClass("name")(n.Parent) || hasClass("group")(n.Parent.Parent)) {
			rows = append(rows, textOf(n))
		}
		return false
	})
	if got, want := strings.Join(rows, " "), "app zoo attic/ old team/ a z team/sub/ x"; got != want {
		t.Errorf("the list has %q, want %q", got, want)
	}

	front := c.get("/app/")
	if n := len(elements(t, front, hasClass("plain"))) + len(elements(t, front, hasClass("dir"))); n != 30 {
		t.Errorf("the overview has %d entries, want 30", n)
	}
	all := elements(t, front, linkTo("/app/-/tree/HEAD"))
	if len(all) != 2 || textOf(all[1]) != "All 62 files and directories" {
		t.Errorf("the overview has %d links to all files, want a tab and one with their number", len(all))
	}
	places := []string{"<h2>Clone</h2>", ">branch main<", "All 62", ">About<", "<h2>Branches</h2>", "All branches"}
	for _, place := range places {
		if !strings.Contains(string(front), place) {
			t.Errorf("the overview lacks %s", place)
		}
	}
	want := []string{"main", "b00", "b01"}
	for _, address := range []string{"/app/", "/app/-/refs"} {
		var names []string
		elements(t, c.get(address), func(n *html.Node) bool {
			if n.Data == "a" && strings.HasPrefix(attribute(n, "href"), "/app/-/tree/") &&
				attribute(n, "href") == "/app/-/tree/"+textOf(n) {
				names = append(names, textOf(n))
			}
			return false
		})
		if len(names) < 3 || !slices.Equal(names[:3], want) {
			t.Errorf("the branches of %s are %q, want them to begin with %q", address, names, want)
		}
	}

	r.GitIn("commit refs/heads/b00\ncommitter a <a@example.org> 1700000500 +0000\ndata 6\nsecond\n"+
		"from refs/heads/b00^0\nM 100644 inline d/more\ndata 5\nmore\n\n", "fast-import", "--quiet")
	for address, link := range map[string]string{
		"/app/-/refs":               "/app/-/compare/HEAD...b00",
		"/app/-/log/b00":            "/app/-/compare/HEAD...b00",
		"/app/-/tree/b00/d":         "/app/-/history/b00/d",
		"/app/-/history/b00/d":      "/app/-/tree/b00",
		"/app/-/history/b00/d/more": "/app/-/blame/b00/d/more",
	} {
		if len(elements(t, c.get(address), linkTo(link))) == 0 {
			t.Errorf("%s has no link to %s", address, link)
		}
	}
	if len(elements(t, c.get("/app/-/log/main"), linkTo("/app/-/compare/HEAD...main"))) != 0 {
		t.Error("the log of main leads to a comparison with itself")
	}
	compareDiff(t, "a comparison by the form", c.get("/app/-/compare?from=main&to=+b00"), r.Git("diff", "main...b00"))
	if status, _, _ := c.try("/app/-/compare?from=main"); status != http.StatusBadRequest {
		t.Errorf("a comparison with one side: status %d, want 400", status)
	}
	for address, want := range map[string]bool{"/app/-/file/main/file1": true, "/app/-/file/main/d/logo.png": false} {
		if got := strings.Contains(string(c.get(address)), "next and previous line number"); got != want {
			t.Errorf("%s has keys for line numbers: %v, want %v", address, got, want)
		}
	}
	if page := string(c.get("/app/-/commit/main")); !strings.Contains(page, ">2023-11-14 23:43:20 +0130<") {
		t.Errorf("the page of a commit lacks its time: %s", page)
	}
	if len(elements(t, c.get("/zoo/"), linkTo("/zoo/-/refs"))) != 1 {
		t.Error("the page of an empty repository has no tabs")
	}
	r.Git("tag", "-a", "-m", "a tag", "v1.0", "b00")
	r.Git("update-ref", "refs/tags/blob", "HEAD:README.md")
	format := "--format=%(refname:short) %(if)%(*subject)%(then)%(*subject)%(else)%(subject)%(end) " +
		"%(if)%(*committerdate)%(then)%(*committerdate:short)%(else)%(committerdate:short)%(end)"
	want = strings.Split(r.Git("for-each-ref", format, "refs/heads", "refs/tags/v1.0"), "\n")
	refs := c.get("/app/-/refs")
	var got []string
	for _, row := range elements(t, refs, func(n *html.Node) bool { return n.Data == "tr" }) {
		var cells []string
		for n := range row.Descendants() {
			if n.Data == "td" && (hasClass("name")(n) || hasClass("says")(n) || hasClass("when")(n)) {
				cells = append(cells, textOf(n))
			}
		}
		got = append(got, strings.Join(cells, " "))
	}
	for i, line := range want {
		if strings.HasPrefix(line, "main ") {
			want[i] = strings.Replace(line, "main", "main default", 1)
		}
		if !slices.Contains(got, want[i]) {
			t.Errorf("the list of refs has %q, want a row %q", got, want[i])
		}
	}
	if !slices.Contains(got, "blob no commit") {
		t.Errorf("the list of refs has %q, want a tag without a commit", got)
	}
}
