package e2e

import (
	"bytes"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

const statusPath = "/-/status"

// unknownToo checks that a visitor gets the same for the page as for an address without a page, and no link to it.
func (c *browserClient) unknownToo(who string) {
	c.Helper()
	status, header, body := c.try(statusPath)
	const unknown = "/-/nought" // as long as that of the status
	wantStatus, want, wantBody := c.try(unknown)
	name := func(path string) string { return path[len("/-/"):] }
	wantBody = bytes.ReplaceAll(wantBody, []byte(name(unknown)), []byte(name(statusPath))) // in the link to sign in
	header.Del("Date")
	want.Del("Date")
	if status != http.StatusNotFound || status != wantStatus || string(body) != string(wantBody) ||
		headerText(header) != headerText(want) {
		c.Errorf("%s gets %d %s%s, want what an unknown address has: %d %s%s", who, status, headerText(header), body,
			wantStatus, headerText(want), wantBody)
	}
	if page := c.get("/-/search"); strings.Contains(string(page), statusPath) {
		c.Errorf("%s has a link to the status", who)
	}
}

func headerText(h http.Header) string {
	var b strings.Builder
	_ = h.Write(&b)
	return b.String()
}

// TestStatus: administrators of the whole server see what it does, others see nothing.
func TestStatus(t *testing.T) {
	t.Parallel()
	root, dir := t.TempDir(), t.TempDir()
	hostile := `<script>alert(1)<&"'`
	for _, name := range []string{"team/app", hostile} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o777); err != nil {
			t.Fatal(err)
		}
		r := gittest.InitAt(t, filepath.Join(root, name+".git"))
		r.Git("update-ref", "refs/heads/main", r.Commit("one").String())
	}
	config, tokens := filepath.Join(dir, "c.toml"), filepath.Join(dir, "tokens")
	write(t, config, "[auth]\ntokens = \""+tokens+"\"\n[[auth.rule]]\nwho = [\"root\"]\nrepositories = [\"**\"]\n"+
		"may = \"admin\"\n[[auth.rule]]\nwho = [\"bob\"]\nrepositories = [\"team/**\"]\nmay = \"admin\"\n"+
		"[[auth.rule]]\nwho = [\"*\"]\nrepositories = [\"**\"]\nmay = \"write\"\n")
	token := map[string]string{}
	for _, name := range []string{"root", "bob", "carol"} {
		token[name] = strings.TrimSpace(runPackhorse(t, "", "token", "create", name, "--scope", "admin", "--config", config))
	}
	token["limited"] = createToken(t, "root", "--config", config)
	first := servePages(t, root, "--config", config)
	first.unknownToo("an anonymous visitor")
	signedIn := func(who string) *browserClient {
		c := newBrowserClient(t, first.base)
		if status, _, body := c.send("/-/sign-in", c.base, url.Values{"token": {token[who]}}); status != http.StatusSeeOther {
			t.Fatalf("sign-in of %s: status %d, want 303: %s", who, status, body)
		}
		return c
	}
	for _, who := range []string{"bob", "carol", "limited"} {
		signedIn(who).unknownToo(who)
	}
	for _, name := range []string{"team/app", hostile} {
		gittest.Run(t, "", "", "-c", "http.extraHeader="+basicHeader("x", token["carol"]), "clone", "--quiet", "--bare",
			first.base+"/"+url.PathEscape(name), filepath.Join(dir, "clone", filepath.Base(url.PathEscape(name))))
	}
	admin := signedIn("root")
	if page := string(admin.get("/")); !strings.Contains(page, `href="`+statusPath+`"`) {
		t.Error("the administrator has no link to the status")
	}
	status, header, page := admin.try(statusPath + "?refresh=1&range=2h")
	if status != http.StatusOK || header.Get("Refresh") != "5" || header.Get("Cache-Control") != "private, no-store" ||
		!strings.Contains(header.Get("Content-Security-Policy"), "style-src 'self'") {
		t.Fatalf("status %d with %s", status, headerText(header))
	}
	safe(t, "the status", page)
	text := regexp.MustCompile(`\s+`).ReplaceAllString(textOf(elements(t, page, isElement("main"))[0]), " ")
	for _, want := range []string{"packhorse serve", "fetch", "2 in all", "miss", "team/app", "carol", hostile} {
		if !strings.Contains(text, want) {
			t.Errorf("the status has no %q: %s", want, text)
		}
	}
	for _, absent := range []string{"Mirrors", "Object storage", "Storage nodes", token["root"], token["carol"]} {
		if strings.Contains(text, absent) {
			t.Errorf("the status has %q, which this server does not have or show", absent)
		}
	}
	for _, plot := range elements(t, page, func(n *html.Node) bool { return attribute(n, "role") == "img" }) {
		if plot.Data != "svg" || attribute(plot, "aria-labelledby") == "" {
			t.Errorf("a plot without a name: %v", plot)
		}
	}
	admin.get(statusPath + "?range=day&refresh=x")
	admin.send("/-/sign-out", admin.base, url.Values{})
	admin.unknownToo("the administrator after signing out")
}

// TestStatusWithoutUsers: a server that knows no users has no page with its status.
func TestStatusWithoutUsers(t *testing.T) {
	t.Parallel()
	servePages(t, t.TempDir()).unknownToo("a visitor")
}

func isElement(name string) func(*html.Node) bool {
	return func(n *html.Node) bool { return n.Data == name }
}
