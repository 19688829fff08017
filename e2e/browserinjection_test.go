package e2e

import (
	"strings"
	"testing"
)

// TestBrowserInjection opens addresses with payloads in a browser: no script of them runs, and nothing is loaded from
// other hosts.
func TestBrowserInjection(t *testing.T) {
	t.Parallel()
	in := browser(t)
	c, at, paths := serveInjection(t)
	for _, file := range []string{payload, closing, "x.html", "image.svg", "x.js", "README.md"} {
		for _, kind := range []string{"file", "blame", "history"} {
			paths = append(paths, at+"/-/"+kind+"/main/"+escapePath(file))
		}
	}
	pages := newTab(t, in, c.base)
	for _, path := range paths {
		pages.what = path
		pages.open(path)
	}
	pages.quiet()
	raw := newTab(t, in, c.base)
	for _, file := range []string{payload, closing, "x.html", "x.svg", "image.svg", "x.xml", "x.pdf", "x.js", "x.htm",
		"x.xhtml", "x.png"} {
		raw.what = file
		raw.open(at + "/-/raw/main/" + escapePath(file))
		if title := eval[string](raw, "document.title"); title == "owned" {
			t.Errorf("a script of %s ran", file)
		}
	}
	raw.what = "feed"
	raw.open(at + "/-/feed/main")
	raw.mu.Lock()
	defer raw.mu.Unlock()
	for _, complaint := range raw.complaints { // the policy also stops requests, which the browser reports
		if strings.Contains(complaint, ": dialog: ") {
			t.Error(complaint)
		}
	}
}
