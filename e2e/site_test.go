package e2e

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"

	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp/kb"
	"golang.org/x/net/html"
)

// siteDir is the variable with the directory for sites of documentation, for `make test-site`.
const siteDir = "PACKHORSE_TEST_SITE"

// TestSite builds the documentation site from a copy of the tree, and shows it in a browser.
func TestSite(t *testing.T) {
	hugo := os.Getenv(siteDir)
	if hugo == "" {
		t.Skip("the documentation site is tested by make test-site")
	}
	dir := copyForSite(t, hugo)
	build := func(want string, arguments ...string) {
		t.Helper()
		cmd := exec.Command(".ci/site", append([]string{"build"}, arguments...)...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); (err == nil) != (want == "") || !strings.Contains(string(out), want) {
			t.Fatalf(".ci/site build %v: %v, want %q: %s", arguments, err, want, out)
		}
	}
	build("")
	build("", "0.1.0")
	build("", "0.2.0")
	build("want a version such as 0.1.0", "../x")
	site := filepath.Join(dir, "dist/site")
	if got, err := os.ReadFile(filepath.Join(site, "versions.js")); err != nil ||
		!regexp.MustCompile(`(?s)\["0.2.0",.*\["0.1.0",.*\["dev",`).Match(got) {
		t.Errorf("versions.js has %.300s %v, want three versions", got, err)
	}
	before, err := os.ReadFile(filepath.Join(site, "0.2.0/packhorse-docs-0.2.0.tar.gz"))
	if err != nil {
		t.Fatal(err)
	}
	build("", "0.2.0")
	if after, err := os.ReadFile(filepath.Join(site, "0.2.0/packhorse-docs-0.2.0.tar.gz")); err != nil ||
		string(after) != string(before) {
		t.Errorf("the same tree makes another archive: %v", err)
	}
	copied := t.TempDir()
	if out, err := exec.Command("tar", "-C", copied, "-xzf", filepath.Join(site, "0.2.0/packhorse-docs-0.2.0.tar.gz")).
		CombinedOutput(); err != nil {
		t.Fatalf("tar: %v: %s", err, out)
	}
	t.Run("links", func(t *testing.T) {
		pages := checkSite(t, filepath.Join(site, "0.2.0"), "v0.2.0")
		if copies := checkSite(t, filepath.Join(copied, "packhorse-docs-0.2.0"), "v0.2.0"); len(copies) != len(pages) {
			t.Errorf("the copy has %d pages, want %d", len(copies), len(pages))
		}
		if len(pages) < 80 {
			t.Errorf("there are %d pages", len(pages))
		}
	})
	t.Run("browser", func(t *testing.T) { lookAtSite(t, site, filepath.Join(copied, "packhorse-docs-0.2.0")) })

	for text, want := range map[string]string{
		"[a](how-to/none.md)":            "docs/README.md links to how-to/none.md, which does not exist",
		"[a](how-to/auth.md#none)":       "docs/README.md links to how-to/auth.md#none, which has no such heading",
		"[a](#none)":                     "docs/README.md links to #none, which has no such heading",
		"[a](../internal/none.go)":       "docs/README.md links to ../internal/none.go, which does not exist",
		"[a](JavaScript:alert)":          "docs/README.md links to JavaScript:alert: want http, https or mailto",
		"[a](&#100;ata:text/html,a)":     "docs/README.md links to &#100;ata:text/html,a, which does not exist",
		"![a](images/none.png)":          "docs/README.md shows images/none.png, which does not exist",
		"\n## Other: a group of no kind": "has no directory",
	} {
		page := filepath.Join(dir, "docs/README.md")
		good, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		write(t, page, string(good)+"\n"+text+"\n")
		build(want)
		write(t, page, string(good))
	}
	write(t, filepath.Join(dir, "docs/how-to/lonely.md"), "# Lonely\n")
	build("docs/how-to/lonely.md: docs/README.md does not link to this page")
}

// copyForSite copies what the site is made of to a repository of its own, with the tools.
func copyForSite(t *testing.T, tools string) string {
	t.Helper()
	dir := t.TempDir()
	script := `set -e
cd ..
git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t "$0"
cd "$0"
mkdir bin
ln -s "$1" bin/tools
git init -q
git add -A
git -c user.name=a -c user.email=a@example.org commit -q -m site`
	if out, err := exec.Command("bash", "-c", script, dir, tools).CombinedOutput(); err != nil {
		t.Fatalf("copy the tree: %v: %s", err, out)
	}
	return dir
}

// sitePage is a page of the site: the anchors, and the links of elements by their name.
type sitePage struct {
	ids   map[string]bool
	links [][2]string
}

// checkSite checks the links and anchors of all pages below a directory.
func checkSite(t *testing.T, dir, ref string) map[string]*sitePage {
	t.Helper()
	pages := map[string]*sitePage{}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".html" {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		root, err := html.Parse(f)
		if err != nil {
			return err
		}
		page := &sitePage{ids: map[string]bool{}}
		slugs := map[string]int{}
		for n := range root.Descendants() {
			for _, a := range n.Attr {
				switch a.Key {
				case "id":
					if page.ids[a.Val] {
						t.Errorf("%s has %s twice", path, a.Val)
					}
					page.ids[a.Val] = true
				case "href", "src":
					page.links = append(page.links, [2]string{n.Data, a.Val})
				}
				if a.Key == "id" && len(n.Data) == 2 && n.Data[0] == 'h' {
					if want := githubSlug(headingText(n), slugs); a.Val != want {
						t.Errorf("%s: anchor %q, on GitHub %q", path, a.Val, want)
					}
				}
			}
		}
		pages[path] = page
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for path, page := range pages {
		for _, link := range page.links {
			checkSiteLink(t, pages, dir, path, link, ref)
		}
	}
	return pages
}

func checkSiteLink(t *testing.T, pages map[string]*sitePage, dir, path string, link [2]string, ref string) {
	t.Helper()
	u, err := url.Parse(link[1])
	switch {
	case err != nil:
		t.Errorf("%s: %v", path, err)
	case u.Scheme != "" || u.Host != "":
		rest, ours := strings.CutPrefix(link[1], "https://github.com/packhorse-git/packhorse/blob/")
		if link[0] != "a" || ours && !strings.HasPrefix(rest, ref+"/") {
			t.Errorf("%s: %s with the address %s", path, link[0], link[1])
		}
	default:
		to := path
		if u.Path != "" {
			to = filepath.Join(filepath.Dir(path), u.Path)
		}
		target := pages[to]
		if _, err := os.Stat(to); err != nil || !strings.HasPrefix(to, dir+"/") || filepath.Ext(to) == "" ||
			u.Fragment != "" && (target == nil || !target.ids[u.Fragment]) {
			t.Errorf("%s links to %s, which does not exist", path, link[1])
		}
	}
}

func headingText(n *html.Node) string {
	var b strings.Builder
	for d := range n.Descendants() {
		if d.Type == html.TextNode && (d.Parent.Data != "a" || !slices.ContainsFunc(d.Parent.Attr,
			func(a html.Attribute) bool { return a.Val == "anchor" })) {
			b.WriteString(d.Data)
		}
	}
	return strings.TrimSpace(b.String())
}

// githubSlug returns the anchor that GitHub gives to a heading, after those of the headings before.
func githubSlug(heading string, seen map[string]int) string {
	slug := strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r) || unicode.Is(unicode.M, r):
			return unicode.ToLower(r)
		}
		return -1
	}, heading)
	n := seen[slug]
	seen[slug]++
	if n > 0 {
		return fmt.Sprintf("%s-%d", slug, n)
	}
	return slug
}

// lookAtSite checks the site by HTTP, and its copy from files, in a browser.
func lookAtSite(t *testing.T, site, copied string) {
	browser := browser(t)
	tools := os.Getenv(pageChecks)
	axe, err := os.ReadFile(filepath.Join(tools, "node_modules/axe-core/axe.min.js"))
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.FileServer(http.Dir(site)))
	defer server.Close()
	b := newTab(t, browser, server.URL)
	c := &checker{b: b, html: t.TempDir()}
	command(b, cdppage.AddScriptToEvaluateOnNewDocument,
		cdppage.AddScriptToEvaluateOnNewDocumentParams{Source: string(axe)})
	for _, page := range []string{"index", "docs/index", "docs/how-to/auth", "docs/how-to/browse",
		"docs/reference/benchmarks", "docs/reference/pages", "docs/decisions/index",
		"docs/decisions/0017-changes-by-calls-in-batches", "architecture"} {
		c.look(browserPage{name: "site-" + strings.ReplaceAll(page, "/", "-"), path: "/0.2.0/" + page + ".html", live: true})
	}
	b.wear(phone)
	paths := map[string]bool{}
	err = filepath.WalkDir(filepath.Join(site, "0.2.0"), func(path string, _ os.DirEntry, err error) error {
		if relative, _ := filepath.Rel(site, path); filepath.Ext(path) == ".html" {
			paths["/"+relative] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for path := range paths {
		b.what = path
		b.open(path)
		b.fits(path + " on a telephone")
	}
	b.open("/0.2.0/index.html")
	b.click(".bar .menu")
	b.until(`document.querySelector("#nav").checkVisibility()`)
	b.shot("site-menu-phone")
	b.click("#nav .close")
	b.until(`!document.querySelector("#nav").checkVisibility()`)

	b.wear(wide)
	b.open("/0.1.0/docs/how-to/auth.html")
	b.click(".versions summary")
	b.until(`[...document.querySelectorAll(".versions a")].map((a) => a.innerText).join() === "0.2.0,0.1.0,dev"`)
	b.shot("site-versions")
	b.click(".versions li:first-child a")
	b.until(`location.pathname === "/0.2.0/docs/how-to/auth.html" && document.querySelector(".versions summary").innerText === "0.2.0"`)
	b.open("/")
	b.until(`location.pathname === "/latest/" && document.querySelector(".versions summary").innerText === "0.2.0"`)
	b.quiet()
	validate(t, filepath.Join(tools, "node_modules/vnu-jar/build/dist/vnu.jar"), filepath.Join(site, "0.2.0"))

	b = newTab(t, browser, "file://"+filepath.Dir(copied))
	b.what = "the copy"
	b.wear(wide)
	b.open("/packhorse-docs-0.2.0/docs/how-to/ssh.html")
	for query, want := range map[string]string{
		"access tokens":      "docs/how-to/auth.html#access-tokens",
		"backup":             "docs/how-to/backup.html",
		"http.max_body":      "docs/reference/config.html#http",
		"signature":          "docs/how-to/release.html#verify-a-download",
		"packhorse_requests": "docs/reference/metrics.html",
		"numbered records":   "docs/decisions/0015-numbered-records.html",
		"packhorse repo set": "docs/reference/commands.html#packhorse-repo-set",
		"[[auth.rule]]":      "docs/reference/config.html",
		"rendezvous":         "docs/explanation/replicas.html",
	} {
		eval[bool](b, `document.activeElement.blur(), true`)
		b.press("/") // also arrives as a character, which no keyboard sends then
		eval[bool](b, `document.activeElement.value = "", document.activeElement.id === "q"`)
		b.press(query)
		b.until(`document.querySelector("#q").value === ` + strconv.Quote(query) +
			` && document.querySelector(".hits-list").children.length > 0`)
		got := eval[[]string](b, `[...document.querySelectorAll(".hits-list a")].map((a) => a.href.split("-docs-0.2.0/")[1])`)
		t.Logf("%s: %q", query, got[:min(5, len(got))])
		if !slices.ContainsFunc(got[:min(5, len(got))], func(path string) bool { return strings.HasPrefix(path, want) }) {
			t.Errorf("search for %s: %q, want %s", query, got, want)
		}
	}
	b.shot("site-search")
	b.press(kb.ArrowDown + kb.Enter)
	b.until(`!location.href.includes("ssh.html") && document.querySelector(".search")?.hidden === false`)
	b.click("#q")
	b.press("xyzzyplugh")
	b.until(`document.querySelector(".hits-list").innerText === "Nothing found."`)
	b.press(kb.Escape)
	b.until(`document.querySelector(".hits-list").hidden`)
	b.quiet()
}
