package e2e

import (
	"bytes"
	"html"
	"net/url"
	"os"
	"os/exec"
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
}

// get returns the body of a page. path is below the program.
func (s cgiSite) get(path, query string) []byte {
	s.Helper()
	cmd := exec.CommandContext(s.Context(), s.program)
	cmd.Env = append(gittest.Env(), append(s.env, "REQUEST_METHOD=GET", "SERVER_NAME=localhost", "SERVER_PORT=80",
		"SERVER_PROTOCOL=HTTP/1.1", "GATEWAY_INTERFACE=CGI/1.1", "SCRIPT_NAME=/", "PATH_INFO="+path,
		"QUERY_STRING="+query)...)
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
				!strings.Contains(next, "/static/") {
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
	rc, conf := filepath.Join(dir, "cgitrc"), filepath.Join(dir, "gitweb.conf")
	write(t, rc, "virtual-root=/\ncache-size=0\nenable-blame=1\nsnapshots=tar.gz zip\nscan-path="+root+"\n")
	write(t, conf, "our $projectroot = '"+root+"'; our $my_uri = '/'; $feature{'blame'}{'default'} = [1]; "+
		"$feature{'snapshot'}{'default'} = ['tgz', 'zip'];\n")
	sites := []struct {
		cgiSite
		start string
	}{{cgiSite{t, "/usr/lib/cgit/cgit.cgi", []string{"CGIT_CONFIG=" + rc}}, "/team/app.git/"},
		{cgiSite{t, "/usr/share/gitweb/gitweb.cgi", []string{"GITWEB_CONFIG=" + conf}}, "/?p=team/app.git;a=summary"}}
	total := 0
	for _, site := range sites {
		if _, err := os.Stat(site.program); err != nil {
			t.Logf("*** there is no %s: its addresses are NOT tested ***", site.program)
			continue
		}
		for _, address := range site.crawl(site.start, 220) {
			total++
			compareOld(t, c, site.cgiSite, address)
		}
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

var commitInOld = regexp.MustCompile(`(?:[?;&/](?:id|h)[=/])([0-9a-f]{40})`)

// compareOld compares the page at an old address with what the old program answers.
func compareOld(t *testing.T, c *browserClient, site cgiSite, address string) {
	t.Helper()
	if strings.Contains(address, "a=opml") || strings.Contains(address, "a=project_index") ||
		slices.Contains([]string{"/", "/cgit.css", "/favicon.ico"}, address) {
		return // of all repositories, which the list shows
	}
	status, header, body := c.try(address)
	if status != 200 {
		t.Errorf("%s: status %d, want 200: %.300s", address, status, body)
		return
	}
	u, _ := url.Parse(address)
	switch {
	case strings.Contains(address, "/plain/") && !strings.HasSuffix(u.Path, "/"),
		strings.Contains(address, "a=blob_plain"):
		if want := site.get(u.Path, u.RawQuery); !bytes.Equal(body, want) && !bytes.Contains(want, []byte("<html")) {
			t.Errorf("%s has %d bytes, want those %d of the old address", address, len(body), len(want))
		}
	case strings.Contains(address, "/commit/"), strings.Contains(address, "a=commit;"):
		if m := commitInOld.FindStringSubmatch(address); m != nil && !bytes.Contains(body, []byte(m[1])) {
			t.Errorf("%s leads to another commit", address)
		}
	case strings.Contains(address, "snapshot"):
		if strings.Contains(header.Get("Content-Type"), "html") {
			t.Errorf("%s is no archive", address)
		}
	}
}
