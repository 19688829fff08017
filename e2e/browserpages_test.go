package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// browserPage is a page that a browser, a validator and a text browser show.
type browserPage struct {
	name, path string
	status     int      // 0: 200
	member     bool     // the visitor has signed in
	forget     bool     // the browser has no cookies
	live       bool     // its text changes with time
	reads      []string // texts in the order of a text browser
}

// browserPages has each kind of page. @ is the address of the repository, %s a commit with changed images.
var browserPages = []browserPage{
	{name: "list", path: "/", reads: []string{"Repositories", "empty", "team/", "app", "Tools", "A tool", "Team App"}},
	{name: "front", path: "@/", reads: []string{"team/app", "A tool for the team", "branch main", "Overview", "Clone",
		"add a page", "docs/", "main.go", "The Tool", "Install", "Branches", "Tags", "v1.10", "v1.9", "Languages"}},
	{name: "empty", path: "/empty/", reads: []string{"This repository is empty", "git push"}},
	{name: "tree", path: "@/-/tree/main/docs", reads: []string{"docs", "parent directory", "guide.md", "first"}},
	{name: "tree-commit", path: "@/-/tree/%s", reads: []string{"one commit", "Go to the newest"}},
	{name: "file", path: "@/-/file/main/main.go#L4", reads: []string{"main.go", "Blame", "lines", "package main",
		"func main"}},
	{name: "image", path: "@/-/file/main/logo.png", reads: []string{"logo.png"}},
	{name: "lfs-image", path: "@/-/file/main/photo.png", reads: []string{"photo.png", "Git LFS"}},
	{name: "lfs-missing", path: "@/-/file/main/film.bin", reads: []string{"film.bin", "This file is in Git LFS"}},
	{name: "binary", path: "@/-/file/main/data.bin", reads: []string{"This file is binary", "Download it"}},
	{name: "markdown", path: "@/-/file/main/docs/guide.md", reads: []string{"guide.md", "Guide"}},
	{name: "symlink", path: "@/-/file/main/link", reads: []string{"symbolic link", "docs/guide.md"}},
	{name: "large", path: "@/-/file/main/large.txt", reads: []string{"too large to show", "Download it"}},
	{name: "blame", path: "@/-/blame/main/main.go", reads: []string{"main.go", "Ada", "package main", "func main"}},
	{name: "history", path: "@/-/history/main/main.go", reads: []string{"main.go", "add a page"}},
	{name: "log", path: "@/-/log/main", reads: []string{"Author", "Message", "Path", "Filter", "add a page",
		"Ada", "merge side"}},
	{name: "log-filtered", path: "@/-/log/main?author=Bea&path=docs", reads: []string{"side", "Bea"}},
	{name: "log-none", path: "@/-/log/main?text=nothing", reads: []string{"There are no commits"}},
	{name: "commit", path: "@/-/commit/%s", reads: []string{"change the logo", "A body", "of two lines", "Author", "Ada",
		"Parent", "files", "logo.png", "before", "after", "main.go", "package main"}},
	{name: "compare", path: "@/-/compare/v1.9...main", reads: []string{"v1.9 ... main", "Commits", "add a page", "files"}},
	{name: "refs", path: "@/-/refs", reads: []string{"Compare", "Branches", "main", "default", "add a page", "log",
		"tar.gz", "Tags", "v1.10"}},
	{name: "search", path: "/-/search", reads: []string{"Search the code", "Examples", "Filters"}},
	{name: "results", path: "/-/search?q=RetryAfter", reads: []string{"matches", "packhorse/server", "RetryAfter",
		"Freshness"}},
	{name: "results-few", path: "/-/search?q=repo:pages+painter", reads: []string{"packhorse/pages", "highlight.go"}},
	{name: "results-none", path: "/-/search?q=xyzzyplugh", reads: []string{"Nothing found"}},
	{name: "results-hostile", path: "/-/search?q=needle", reads: []string{"hostile"}},
	{name: "query-error", path: "/-/search?q=file:(", status: 400, reads: []string{"file:("}},
	{name: "not-found", path: "/none/-/log/main", status: 404, reads: []string{"Not found"}},
	{name: "invalid", path: "@/-/compare/main", status: 400, reads: []string{"Invalid request", "A comparison is"}},
	{name: "too-many", path: "@/-/history/main/docs?seen=99999999999", status: 429, forget: true,
		reads: []string{"Too many requests", "cookies"}},
	{name: "sign-in", path: "/-/sign-in?to=%2F", reads: []string{"Sign in", "Access token"}},
	{name: "tokens", path: "/-/tokens", member: true, reads: []string{"Access tokens of alice", "Permits",
		"this session", "Revoke"}},
	{name: "status", path: "/-/status", member: true, live: true, reads: []string{"Requests", "Repositories"}},
	{name: "list-none", path: "/?prefix=none", member: true, reads: []string{"There are no repositories here"}},
	{name: "member-front", path: "@/", member: true, reads: []string{"alice", "team/app"}},
}

// newBrowserServer serves the repositories of the pages. It returns a token of alice and the commit with an image.
func newBrowserServer(t *testing.T) (c *browserClient, token, commit string) {
	root, config := t.TempDir(), filepath.Join(t.TempDir(), "c.toml")
	for _, name := range []string{"team", "packhorse"} {
		if err := os.MkdirAll(filepath.Join(root, name), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	app := newAppRepo(t, filepath.Join(root, "team/app.git"))
	gittest.InitAt(t, filepath.Join(root, "empty.git"))
	gittest.InitAt(t, filepath.Join(root, "a-name-that-is-rather-long-for-the-screen-of-a-telephone.git"))
	for name, patterns := range map[string][]string{
		"packhorse/server": {"../internal/fault/*.go", "../internal/search/*.go"},
		"packhorse/pages":  {"../internal/gateway/web/*.go", "../internal/gateway/web/page/*.go"},
	} {
		var files []string
		for _, pattern := range patterns {
			names, err := filepath.Glob(pattern)
			if err != nil || len(names) == 0 {
				t.Fatal(pattern, err)
			}
			for _, name := range names {
				text, err := os.ReadFile(name)
				if err != nil {
					t.Fatal(err)
				}
				files = append(files, importFile("100644", strings.TrimPrefix(name, "../internal/"), string(text)))
			}
		}
		newImport().commit("main", "files", "Ada", "", files...).into(gittest.InitAt(t, filepath.Join(root, name+".git")))
	}
	var hostile []string
	for name, text := range map[string]string{
		`"><script>alert(1)</script>.html`: "<script>alert('needle')</script> & needle\n\"needle\" 'needle' </mark><img src=x onerror=alert(1)>\n",
		"javascript:alert(1)/needle":       "needle\n",
		"bidi.go": "/* needle \u202e } \u2066if isAdmin\u2069 \u2066 begin */\n" +
			"needle \x01\x1b[31m\u200b\n",
		"a b/%2e%2e/#L3?q=\u00fc\u00f1.md": "needle\n",
		"long.js":                          strings.Repeat("x ", 5000) + "needle" + strings.Repeat(" y", 5000) + "\n",
		"utf8.txt":                         "needle \xff\xfe needle\n",
		"caf\xe9/\xff.txt":                 "needle\n",
		"crlf.txt":                         "one needle\r\ntwo\r\n",
	} {
		hostile = append(hostile, importFile("100644", name, text))
	}
	newImport().commit("main", "files", "Ada", "", hostile...).into(gittest.InitAt(t, filepath.Join(root, "hostile.git")))

	tokens := filepath.Join(t.TempDir(), "tokens")
	write(t, config, "[auth]\ntokens = \""+tokens+"\"\n[http]\npublic_read = true\n[[auth.rule]]\nwho = [\"alice\"]\n"+
		"repositories = [\"**\"]\nmay = \"admin\"\n")
	token = createToken(t, "alice", "--scope", "admin", "--config", config)
	c = servePages(t, root, "--config", config)
	for _, query := range []string{"RetryAfter", "needle", "painter"} {
		gittest.WaitFor(t, "the index has "+query, func() bool {
			_, _, body := c.try("/-/search?q=" + query)
			return bytes.Contains(body, []byte("<mark>"))
		})
	}
	return c, token, app.ID("main~1").String()
}

// importer writes the input of git fast-import.
type importer struct {
	b strings.Builder
	n int
}

func newImport() *importer { return &importer{} }

func importFile(mode, name, text string) string {
	return fmt.Sprintf("M %s inline %s\ndata %d\n%s\n", mode, fastImport(name), len(text), text)
}

func (i *importer) commit(branch, message, author, merge string, changes ...string) *importer {
	i.n++
	fmt.Fprintf(&i.b, "commit refs/heads/%s\nmark :%d\ncommitter %s <%s@example.org> %d +0100\ndata %d\n%s\n", branch, i.n,
		author, strings.ToLower(author), 1700000000+i.n*86400, len(message), message)
	i.b.WriteString(merge + strings.Join(changes, "") + "\n")
	return i
}

func (i *importer) into(r *gittest.Repo) { r.GitIn(i.b.String(), "fast-import", "--quiet") }

// newAppRepo makes a repository with what pages show in a way of its own.
func newAppRepo(t *testing.T, path string) *gittest.Repo {
	r := gittest.InitAt(t, path)
	write(t, filepath.Join(path, "description"), "A tool for the team\n")
	write(t, filepath.Join(path, "category"), "Tools\n")
	r.Git("config", "gitweb.owner", "Team App")
	readme := "# The Tool\n\nIt does **one** thing; see [the guide](docs/guide.md).\n\n![logo](logo.png)\n\n## Install\n\n" +
		"```sh\nmake && make install PREFIX=/usr/local # a line that is longer than the screen of a telephone, as lines of shell are\n```\n\n" +
		"| option | meaning |\n|---|---|\n| `-v` | say more |\n\n1. one\n2. two\n\n- [ ] to do\n- [x] done\n\n> a quotation\n"
	program := "package main\n\nimport \"fmt\"\n\n// main says hello.\nfunc main() {\n\tfmt.Println(\"hello\", 1) // " +
		strings.Repeat("long ", 40) + "\n}\n"
	file := func(name, text string) string { return importFile("100644", name, text) }
	// object is a file in Git LFS; only images are in the repository
	object := func(name, text string) string {
		oid := fmt.Sprintf("%x", sha256.Sum256([]byte(text)))
		if strings.HasSuffix(name, ".png") {
			dir := filepath.Join(path, "lfs/objects", oid[:2], oid[2:4])
			if err := os.MkdirAll(dir, 0o777); err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(dir, oid), text)
		}
		return file(name, fmt.Sprintf("version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize %d\n", oid, len(text)))
	}
	red, green := picture(t, color.RGBA{R: 200, A: 255}), picture(t, color.RGBA{G: 160, A: 255})
	i := newImport()
	i.commit("main", "first", "Ada", "", file("README.md", readme), file("main.go", program),
		file("logo.png", red), object("photo.png", red), object("film.bin", "1"), file("data.bin", "\x00\x01\x02"),
		importFile("120000", "link", "docs/guide.md"), importFile("100755", "run.sh", "#!/bin/sh\necho\n"),
		file("docs/guide.md", "# Guide\n\nText.\n"),
		file("large.txt", strings.Repeat("0123456789abcde\n", 140_000)),
		file("empty.txt", ""), file("docs/"+strings.Repeat("a-very-long-name-", 6)+".txt", "x\n"),
		file(".gitmodules", "[submodule \"m\"]\n\tpath = module\n\turl = ../packhorse/server\n"),
		"M 160000 "+strings.Repeat("1", 40)+" module\n")
	i.commit("feature/a-branch-with-a-long-name", "side", "Bea", "from :1\n", file("docs/side.md", "side\n"))
	i.commit("main", "second", "Ada", "from :1\n", file("main.go", strings.Replace(program, "hello", "world", 1)))
	i.commit("main", "merge side", "Ada", "merge :2\n", file("docs/side.md", "side\n"))
	i.commit("main", "change the logo\n\nA body\nof two lines.\n", "Ada", "", file("logo.png", green),
		object("photo.png", green), object("film.bin", "12"), file("main.go", program+"\n// more\n"),
		"R run.sh bin/run.sh\n", "D empty.txt\n", file("data.bin", "\x00\x02"))
	i.commit("main", "add a page", "Ada", "", file("main.go", program+"\n// more\nvar x = 1\n"))
	i.into(r)
	r.Git("tag", "v1.9", "main~2")
	r.Git("tag", "-a", "-m", "a tag", "v1.10", "main~1")
	return r
}

// picture returns an image.
func picture(t *testing.T, c color.Color) string {
	m := image.NewRGBA(image.Rect(0, 0, 60, 40))
	for x := range 60 {
		for y := range 40 {
			m.Set(x, y, c)
		}
	}
	var b bytes.Buffer
	if err := png.Encode(&b, m); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func (b *browserTab) signIn(token string) {
	b.Helper()
	b.open("/-/sign-in")
	b.until(`document.querySelector("#token")`)
	eval[chromedp.Void](b, `document.querySelector("#token").focus()`)
	b.press(token + kb.Enter)
	b.until(`location.pathname === "/"`)
}

// checker checks pages. It collects their HTML for the validator.
type checker struct {
	b    *browserTab
	axe  string // the library's source
	html string // directory of pages
}

// look checks a page in all its looks.
func (c *checker) look(p browserPage) {
	b := c.b
	b.what = p.name
	b.wear(wide)
	c.open(p)
	if want := max(p.status, http.StatusOK); b.status() != want {
		b.Errorf("%s: status %d, want %d", p.name, b.status(), want)
	}
	b.fits(p.name)
	b.shot(p.name + "-wide-light")
	text := eval[string](b, visibleText)
	c.accessible(p.name, `{resultTypes: ["violations"]}`, "")
	c.keyboard(p.name)

	b.wear(look{width: 1600, height: 1000, dark: true})
	c.accessible(p.name+" in the dark", `{runOnly: ["color-contrast"]}`, "")
	b.shot(p.name + "-wide-dark")
	b.wear(look{width: 640, height: 500}) // a window of 1280 pixels at 200 %
	b.fits(p.name + " at 200 %")
	b.wear(look{width: 1000, height: 1000, print: true})
	b.fits(p.name + " on paper")
	if eval[bool](b, `[...document.querySelectorAll(".bar, footer, .tabs, .clone")].some((e) => e.checkVisibility())`) {
		b.Errorf("%s on paper has controls", p.name)
	}
	b.wear(phone)
	b.fits(p.name + " on a telephone")
	c.accessible(p.name+" on a telephone", `{runOnly: ["target-size", "scrollable-region-focusable"]}`, `".code p", ".hits"`)
	b.shot(p.name + "-phone-light")

	command(b, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
	b.wear(wide)
	c.open(p)
	if got := eval[string](b, visibleText); got != text && !p.live {
		b.Errorf("%s without scripts says\n%s\nwant\n%s", p.name, got, text)
	}
	command(b, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: false})
	html := eval[string](b, `document.documentElement.outerHTML`)
	write(b.T, filepath.Join(c.html, p.name+".html"), "<!DOCTYPE html>"+html)
}

func (c *checker) open(p browserPage) {
	c.b.Helper()
	if p.forget {
		command(c.b, network.ClearBrowserCookies, cdp.Empty{})
	}
	c.b.open(p.path)
}

// visibleText is the text of a page, without what scripts add, and times.
const visibleText = `document.body.innerText.replaceAll(/^Copy$|^\/$|[\d.]+ m?s$/mg, "").replaceAll(/\s+/g, " ")`

// accessible runs axe-core. Targets in lines of code are as high as these.
func (c *checker) accessible(what, options, exclude string) {
	c.b.Helper()
	found := eval[[]string](c.b, `axe.run({exclude: [`+exclude+`]}, `+options+`).then((r) => r.violations.map((v) => v.id + ": " + v.help + ": " +
		v.nodes.slice(0, 3).map((n) => n.html.slice(0, 200) + " (" + n.failureSummary.replaceAll(/\s+/g, " ").slice(0, 300) + ")").join("\n\t")))`,
		chromedp.EvalAwaitPromise)
	for _, text := range found {
		c.b.Errorf("%s: axe-core: %s", what, text)
	}
}

// keyboard presses Tab until all links and controls had the focus, and checks that it is visible each time.
func (c *checker) keyboard(what string) {
	c.b.Helper()
	n := eval[int](c.b, `(() => {
		document.activeElement.blur();
		scrollTo(0, 0);
		window.unreached = new Set([...document.querySelectorAll("a[href], button, input:not([type=hidden]), select, summary, [tabindex]")]
			.filter((e) => e.tabIndex >= 0 && e.checkVisibility()));
		window.hidden = [];
		window.order = [];
		document.addEventListener("focusin", (event) => {
			const e = event.target, style = getComputedStyle(e), at = e.getBoundingClientRect();
			if (order.length === 0 && unreached.size > 0) order.push(e.className);
			unreached.delete(e);
			const outlined = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0;
			const bar = document.querySelector(".bar").getBoundingClientRect();
			const covered = !e.closest(".bar, .skip") && at.bottom <= bar.bottom && at.height < innerHeight - bar.bottom;
			if (!outlined || covered || at.bottom < 0 || at.top > innerHeight) hidden.push(e.outerHTML.slice(0, 150));
		});
		return unreached.size;
	})()`)
	defer eval[chromedp.Void](c.b, `document.activeElement.blur(); scrollTo(0, 0)`)
	for range n + 5 {
		c.b.press(kb.Tab)
		if n--; n%8 == 0 && eval[bool](c.b, `unreached.size === 0`) {
			break
		}
	}
	if left := eval[[]string](c.b, `[...unreached].map((e) => e.outerHTML.slice(0, 150))`); len(left) > 0 {
		c.b.Errorf("%s: Tab does not reach %q", what, left)
	}
	if hidden := eval[[]string](c.b, `hidden`); len(hidden) > 0 {
		c.b.Errorf("%s: the focus is not visible at %q", what, hidden)
	}
}

// validate runs the Nu Html Checker.
func validate(t *testing.T, jar, dir string) {
	t.Helper()
	checker := exec.Command("java", "-XX:TieredStopAtLevel=1", "-Xss2m", "-jar", jar, "--format", "json",
		"--skip-non-html", dir)
	out, err := checker.CombinedOutput() // it fails if there are messages
	var report struct {
		Messages []struct{ Type, SubType, URL, Message, Extract string }
	}
	if jsonErr := json.Unmarshal(out, &report); jsonErr != nil {
		t.Fatalf("the HTML checker: %v: %.2000s", err, out)
	}
	for _, m := range report.Messages {
		if strings.Contains(m.Message, "top-level heading only") { // a README has its own headings
			continue
		}
		t.Errorf("%s is not valid HTML: %s %s: %.200q", filepath.Base(m.URL), m.SubType, m.Message, m.Extract)
	}
}

// readAloud compares the text that w3m shows of a page with the texts that it has to have, in their order.
func readAloud(t *testing.T, p browserPage, file string) {
	t.Helper()
	out, err := exec.Command("w3m", "-dump", "-cols", "160", "-T", "text/html", "-I", "UTF-8", "-O", "UTF-8",
		file).CombinedOutput()
	if err != nil {
		t.Fatalf("w3m: %v: %s", err, out)
	}
	rest := strings.Join(strings.Fields(string(out)), " ")
	for _, text := range p.reads {
		_, after, ok := strings.Cut(rest, text)
		if !ok {
			t.Errorf("w3m shows no %q at its place in %s:\n%s", text, p.name, out)
			return
		}
		rest = after
	}
}

// lookAtPages checks all pages.
func lookAtPages(t *testing.T, b *browserTab, token, commit string) {
	tools := os.Getenv(pageChecks)
	axe, err := os.ReadFile(filepath.Join(tools, "node_modules/axe-core/axe.min.js"))
	if err != nil {
		t.Fatal(err)
	}
	c := &checker{b: b, html: t.TempDir()}
	command(b, cdppage.AddScriptToEvaluateOnNewDocument,
		cdppage.AddScriptToEvaluateOnNewDocumentParams{Source: string(axe)})
	isMember := false
	for _, p := range browserPages {
		if p.member && !isMember {
			isMember = true
			b.signIn(token)
		}
		p.path = strings.ReplaceAll(strings.ReplaceAll(p.path, "@", "/team/app"), "%s", commit)
		begin := time.Now()
		c.look(p)
		t.Logf("%s: %s", p.name, time.Since(begin))
	}
	b.quiet()
	validate(t, filepath.Join(tools, "node_modules/vnu-jar/build/dist/vnu.jar"), c.html)
	if _, err := exec.LookPath("w3m"); err != nil {
		t.Log("*** There is no w3m: pages are NOT read in a text browser. ***")
		return
	}
	for _, p := range browserPages {
		readAloud(t, p, filepath.Join(c.html, p.name+".html"))
	}
}
