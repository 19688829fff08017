package e2e

import (
	"bytes"
	"cmp"
	"html"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// cgiSite is a program for pages that is run for each request (RFC 3875).
type cgiSite struct {
	*testing.T
	program string
	env     []string
	place   string // before the paths of its pages
}

// get returns the body of a page.
func (s cgiSite) get(path, query string) []byte {
	s.Helper()
	cmd := exec.CommandContext(s.Context(), s.program)
	cmd.Env = append(gittest.Env(), append(s.env, "REQUEST_METHOD=GET", "SERVER_NAME=localhost", "SERVER_PORT=80",
		"SERVER_PROTOCOL=HTTP/1.1", "GATEWAY_INTERFACE=CGI/1.1", "SCRIPT_NAME="+cmp.Or(s.place, "/"),
		"PATH_INFO="+strings.TrimPrefix(path, s.place), "QUERY_STRING="+query)...)
	out, err := cmd.Output()
	if err != nil {
		s.Fatalf("%s %s?%s: %v", s.program, path, query, err)
	}
	for _, end := range []string{"\r\n\r\n", "\n\n"} {
		if _, body, ok := bytes.Cut(out, []byte(end)); ok {
			return body
		}
	}
	return out
}

var hrefs = regexp.MustCompile(`href=['"]([^'"#]+)`)

// crawl visits the pages of a site and returns the addresses of at most limit pages in all.
func (s cgiSite) crawl(start string, limit int) (list []string) {
	seen := map[string]bool{start: true}
	for queue := []string{start}; len(queue) > 0 && len(list) < limit; queue = queue[1:] {
		at := queue[0]
		list = append(list, at)
		u, err := url.Parse(at)
		if err != nil {
			s.Fatal(err)
		}
		if strings.Contains(at, "snapshot") || len(list) > limit/3 { // enough links are known then
			continue
		}
		for _, m := range hrefs.FindAllStringSubmatch(string(s.get(u.Path, u.RawQuery)), -1) {
			next := html.UnescapeString(m[1])
			if strings.HasPrefix(next, "?") {
				next = "/" + next
			}
			if strings.HasPrefix(next, "/") && !strings.HasPrefix(next, "//") && !seen[next] &&
				!strings.Contains(next, "/static/") && !strings.HasSuffix(next, ".css") && next != "/favicon.ico" {
				seen[next] = true
				queue = append(queue, next)
			}
		}
	}
	return list
}

// TestOldAddresses: each address that cgit and gitweb print leads to a page with the same content.
func TestOldAddresses(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	r := newOldRepo(t, filepath.Join(root, "team/app.git"))
	c := servePages(t, root)
	dir := t.TempDir()
	settings := func(name, text string) string {
		write(t, filepath.Join(dir, name), text)
		return filepath.Join(dir, name)
	}
	cgit := func(place string) cgiSite {
		rc := settings("cgitrc"+path.Base(place), "virtual-root="+place+"/\ncache-size=0\nenable-blame=1\n"+
			"snapshots=tar.gz zip\nenable-http-clone=1\nenable-index-links=1\nscan-path="+root+"\n")
		return cgiSite{t, "/usr/lib/cgit/cgit.cgi", []string{"CGIT_CONFIG=" + rc}, place}
	}
	gitweb := func(place, more string) cgiSite {
		conf := settings("gitweb"+path.Base(place)+".conf", "our $projectroot = '"+root+"'; our $my_uri = '"+
			cmp.Or(place, "/")+"'; $feature{'blame'}{'default'} = [1]; $feature{'snapshot'}{'default'} = ['tgz', 'zip']; "+more)
		return cgiSite{t, "/usr/share/gitweb/gitweb.cgi", []string{"GITWEB_CONFIG=" + conf}, place}
	}
	const pathInfo = "$feature{'pathinfo'}{'default'} = [1];"
	total := 0
	for _, site := range []struct {
		cgiSite
		start string
		limit int
	}{
		{cgit(""), "/team/app.git/", 220},
		{cgit("/cgit"), "/cgit/", 150},
		{gitweb("", ""), "/", 220},
		{gitweb("/gitweb", pathInfo), "/gitweb", 250},
		{gitweb("", pathInfo), "/team/app.git", 120},
	} {
		if _, err := os.Stat(site.program); err != nil {
			t.Logf("*** there is no %s: its addresses are NOT tested ***", site.program)
			continue
		}
		if testing.Short() {
			site.limit /= 2
		}
		list := site.crawl(site.start, site.limit)
		for _, address := range list {
			compareOld(t, c, site.cgiSite, address)
		}
		if total += len(list); len(list) < site.limit/2 {
			t.Errorf("%s %s links to only %d addresses: %q", site.program, site.start, len(list), list)
		}
	}
	for from, to := range map[string]string{ // forms
		"/cgit/team/app.git/log/?qt=author&q=nobody&h=topic/x": "/team/app.git/-/log/topic/x?author=nobody",
		"/cgit/team/app.git/log/dir?qt=grep&q=te+st":           "/team/app.git/-/log/HEAD?path=dir&text=te+st",
		"/cgit/team/app.git/log/?qt=range&q=v1..main":          "/team/app.git/-/compare/v1..main",
		"/gitweb/team/app.git/search?s=Andre+E;st=author":      "/team/app.git/-/log/HEAD?author=Andre+E",
		"/?p=team/app.git;a=search;h=HEAD;st=grep;s=line":      "/-/search?q=repo%3A%5Eteam%2Fapp%24+line",
		"/cgit/team/app.git/blame/?h=topic/x":                  "/team/app.git/-/tree/topic/x",
		"/cgit/?q=app":                                         "/",
		"/cgi-bin/cgit.cgi/team/app.git/":                      "/team/app.git/",
		"/plugins/gitiles/":                                    "/",
		"/plugins/gitiles/team/app":                            "/team/app/",
		"/team/app.git/tree/HEAD:/dir":                         "/team/app.git/-/tree/HEAD/dir",
		"/team/app.git/log/refs/heads/main":                    "/team/app.git/-/log/main",
	} {
		if got, _, _ := c.lands(from); got != to {
			t.Errorf("%s leads to %s, want %s", from, got, to)
		}
	}
	for _, format := range []string{"tar.xz", "tar.bz2"} { // cgit had them
		if _, status, body := c.lands("/cgit/team/app.git/snapshot/app-v1." + format); status != http.StatusNotFound ||
			!bytes.Contains(body, []byte("main.tar.gz")) {
			t.Errorf("%s: %d %s, want 404 with formats", format, status, body)
		}
	}
	for _, place := range []string{"/cgit/", "/cgi-bin/gitweb.cgi/"} {
		got, want := r.Git("ls-remote", c.base+place+"team/app.git"), r.Git("ls-remote", c.base+"/team/app.git")
		if got != want {
			t.Errorf("ls-remote below %s: %s, want %s", place, got, want)
		}
		r.Git("clone", "--quiet", c.base+place+"team/app.git", filepath.Join(dir, "clone"+place))
	}
	revisions := strings.Fields(r.Git("rev-list", "--max-count=20", "main"))
	for _, rev := range append(revisions, "main", "refs/heads/main", "v1") {
		for _, path := range []string{"+/" + rev, "+/" + rev + "/dir/b.txt", "+/" + rev + "/dir/", "+log/" + rev,
			"+blame/" + rev + "/a.go", "+show/" + rev + "/a.go", "+/" + rev + "%5E%21/", "+archive/" + rev + ".tar.gz"} {
			total++
			if status, _, body := c.try("/plugins/gitiles/team/app/" + path); status != 200 {
				t.Errorf("%s: status %d: %.200s", path, status, body)
			}
		}
	}
	t.Logf("%d addresses", total)
}

// newOldRepo makes a repository without surprises.
func newOldRepo(t *testing.T, path string) *gittest.Repo {
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		t.Fatal(err)
	}
	r := gittest.InitAt(t, path)
	var b strings.Builder
	for n := 1; n <= 25; n++ {
		b.WriteString("commit refs/heads/main\ncommitter A U Thor <a@example.org> 1700000000 +0000\ndata 5\ntest\n\n")
		text := strings.Repeat("line\n", n)
		for _, name := range []string{"a.go", "dir/b.txt", "dir/sub/c.txt", "README.md"} {
			b.WriteString("M 100644 inline " + name + "\ndata <<END\n" + text + "END\n")
		}
		b.WriteString("\n")
	}
	r.GitIn(b.String(), "fast-import", "--quiet")
	r.Git("branch", "topic/x", "main~4")
	r.Git("tag", "-a", "-m", "one", "v1", "main~2")
	return r
}

var (
	commitInOld = regexp.MustCompile(`(?:[?;&/](?:id|h)=|/)([0-9a-f]{40})`)
	actionInOld = regexp.MustCompile(`(?:[?;]a=|/team/app\.git/)(\w+)`)
)

// newKinds are the kinds of pages that correspond to those of the old programs.
var newKinds = map[string]string{"": " ", "summary": " ", "about": " ", "forks": " ", "stats": " ", "search_help": " ",
	"tree": "tree file", "blob": "file", "blob_plain": "raw", "plain": "raw tree", "blame": "blame",
	"history": "history log", "log": "log history", "shortlog": "log", "commit": "commit",
	"commitdiff": "commit compare", "commitdiff_plain": "commit", "diff": "commit compare",
	"blobdiff": "compare commit", "blobdiff_plain": "compare commit", "patch": "commit",
	"patches": "commit", "rawdiff": "commit", "tag": "commit", "object": "commit", "refs": "refs", "heads": "refs",
	"tags": "refs", "remotes": "refs", "snapshot": "archive", "atom": "feed", "rss": "feed", "search": "log"}

// lands follows the redirects of an address.
func (c *browserClient) lands(address string) (at string, status int, body []byte) {
	c.Helper()
	q, err := http.NewRequestWithContext(c.Context(), http.MethodGet, c.base+address, nil)
	if err != nil {
		c.Fatal(err)
	}
	r, err := c.Do(q)
	if err != nil {
		c.Fatal(err)
	}
	defer r.Body.Close()
	if body, err = io.ReadAll(r.Body); err != nil {
		c.Fatal(err)
	}
	at = strings.NewReplacer("?seen=1&", "?", "?seen=1", "", "&seen=1", "").Replace(r.Request.URL.RequestURI())
	return at, r.StatusCode, body
}

// compareOld compares the page at an old address with what the old program answers.
func compareOld(t *testing.T, c *browserClient, site cgiSite, address string) {
	t.Helper()
	at, status, body := c.lands(address)
	if status != 200 {
		t.Errorf("%s -> %s: status %d, want 200: %.300s", address, at, status, body)
		return
	}
	u, _ := url.Parse(address)
	action := ""
	if m := actionInOld.FindStringSubmatch(address); m != nil {
		action = m[1]
	}
	kind := ""
	if _, rest, ok := strings.Cut(at, "/-/"); ok {
		kind, _, _ = strings.Cut(rest, "/")
	}
	lists := []string{"opml", "project_index", "project_list"}
	if slices.Contains(lists, action) || !strings.Contains(address, "app.git") {
		if at = strings.SplitN(at, "?", 2)[0]; at != "/" {
			t.Errorf("%s of all repositories leads to %s", address, at)
		}
		return
	}
	if !slices.Contains(strings.Split(newKinds[action], " "), kind) {
		t.Errorf("%s leads to %s, want a page of %q", address, at, newKinds[action])
	}
	switch action {
	case "plain", "blob_plain":
		if want := site.get(u.Path, u.RawQuery); !bytes.Equal(body, want) && !bytes.Contains(want, []byte("<html")) {
			t.Errorf("%s has %d bytes, want those %d of the old address", address, len(body), len(want))
		}
	case "commit", "commitdiff", "patch", "diff", "tree", "blob", "shortlog":
		if m := commitInOld.FindStringSubmatch(address); m != nil && !bytes.Contains(body, []byte(m[1])) {
			t.Errorf("%s leads to %s, which is of another commit", address, at)
		}
	}
}
