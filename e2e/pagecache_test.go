package e2e

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestPageCaches checks what caches and browsers keep of pages, and which pages need a cookie.
func TestPageCaches(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	r := newPageRepo(t, filepath.Join(root, "app.git"))
	id, lost := r.ID("main").String(), r.Commit("not in a ref", r.ID("main")).String()
	c := servePages(t, root)
	config := filepath.Join(t.TempDir(), "c.toml")
	write(t, config, "[pages]\ntitle = \"Other\"\n")
	other := servePages(t, root, "--config", config)
	c.get("/app/-/commit/" + id) // the cookies
	other.get("/app/-/commit/" + id)
	header := func(c *browserClient, path, name string, headers ...string) string {
		c.Helper()
		found := regexp.MustCompile(`(?m)^` + name + `: (.*)\r$`).FindStringSubmatch(c.ask(path, headers...))
		if found == nil {
			t.Fatalf("%s has no %s", path, name)
		}
		return fmt.Sprint(found[1:])
	}
	for _, path := range []string{"/app/", "/app/-/log/main", "/app/-/log/" + id, "/app/-/commit/" + id} {
		etag := strings.Trim(header(c, path, "Etag"), "[]")
		kept := c.ask(path, "If-None-Match: "+etag)
		if !strings.HasPrefix(kept, "304") || !strings.Contains(kept, "Vary: Accept-Encoding\r\n") {
			t.Errorf("%s: a second request got %.500s; want 304 with the Vary of 200", path, kept)
		}
		if page := other.ask(path, "If-None-Match: "+etag); !strings.HasPrefix(page, "200") {
			t.Errorf("%s: a server with another frame answers %.100s, want 200", path, page)
		}
		want := "[public, no-cache]"
		if strings.Contains(path, "commit") {
			want = "[public, max-age=86400, immutable]"
		}
		if got := header(c, path, "Cache-Control"); got != want {
			t.Errorf("%s: Cache-Control = %s, want %s", path, got, want)
		}
	}
	for path, want := range map[string]string{"commit/main~1": "302", "tree/main~1": "302", "log/main/x.go": "302",
		"log/main": "200", "file/main~1/x.go": "200", "commit/main": "200",
		"commit/main.patch": "200", "commit/" + lost: "404", "refs/none": "404",
		"commit/" + strings.Repeat("1", 40): "404"} {
		if page := newBrowserClient(t, c.base).ask("/app/-/" + path); !strings.HasPrefix(page, want) {
			t.Errorf("%s without a cookie: %.100s, want %s", path, page, want)
		}
	}
	c.get("/app/-/tree/main~1")
	if page := string(c.get("/app/-/tree/main~1")); !strings.Contains(page, "noindex") {
		t.Error("search engines may list a directory of an earlier commit")
	}
	one := header(c, "/app/-/log/main?author=x%00skip%0050", "Etag")
	two := header(c, "/app/-/log/main?author=x&skip=50", "Etag")
	if one == two {
		t.Errorf("two queries have the ETag %s", one)
	}
}
