package e2e

import (
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// send sends a form, as a browser does from a page of an origin, without following redirects.
func (c *browserClient) send(path, origin string, form url.Values) (status int, location, body string) {
	c.Helper()
	q, err := http.NewRequestWithContext(c.Context(), http.MethodPost, c.base+path, strings.NewReader(form.Encode()))
	if err != nil {
		c.Fatal(err)
	}
	q.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	q.Header.Set("Origin", origin)
	q.Header.Set("Accept", "text/html")
	client := c.Client
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	r, err := client.Do(q)
	if err != nil {
		c.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		c.Fatal(err)
	}
	return r.StatusCode, r.Header.Get("Location"), string(text)
}

// TestSignIn: a session lasts as long as its credential, which its cookie does not show.
func TestSignIn(t *testing.T) {
	t.Parallel()
	root, dir := t.TempDir(), t.TempDir()
	linear := newPageRepo(t, filepath.Join(root, "secret.git"))
	config := filepath.Join(dir, "c.toml")
	tokens := filepath.Join(dir, "tokens")
	newPageRepo(t, filepath.Join(root, "open.git"))
	write(t, filepath.Join(root, "open.git/description"), "Shared tools")
	write(t, config, "[auth]\ntokens = \""+tokens+"\"\n[[auth.rule]]\nwho = [\"alice\"]\nrepositories = [\"**\"]\n"+
		"may = \"write\"\n[[auth.rule]]\nwho = [\"anonymous\"]\nrepositories = [\"open\"]\nmay = \"read\"\n")
	token := createToken(t, "alice", "--config", config)
	c := servePages(t, root, "--config", config)
	page := string(c.get("/secret/"))
	if strings.Contains(page, "README") || !strings.Contains(page, `type="password"`) {
		t.Fatalf("an anonymous visitor of a secret repository gets %.500s, want the page to sign in", page)
	}
	for _, old := range []string{"/cgit/open.git/tree/README.md?h=main", "/gitweb/?p=open.git;a=blob;f=README.md"} {
		if page := string(c.get(old)); !strings.Contains(page, "Title") {
			t.Errorf("the old address %s of an open repository leads to %.500s", old, page)
		}
	}
	if page := string(c.get("/cgit/secret.git/tree/README.md?h=main")); !strings.Contains(page, `type="password"`) {
		t.Errorf("an old address of a secret repository leads to %.500s", page)
	}
	if page := string(c.get("/?prefix=none")); !strings.Contains(page, "There are no repositories here") {
		t.Errorf("a prefix without a match leads to %.500s", page)
	}
	filtered := func(text, want string) {
		t.Helper()
		page, got := c.get("/?filter="+text), ""
		for _, e := range elements(t, page, hasClass("name")) {
			got += textOf(e) + " "
		}
		if got != want {
			t.Errorf("the list of repositories with %q is %q, want %q", text, got, want)
		}
	}
	filtered("PE", "open ")
	filtered("red+Tool", "open ")
	filtered("ecre", "")
	form := url.Values{"token": {token}, "to": {"/secret/"}}
	if status, _, _ := c.send("/-/sign-in", "https://evil.example", form); status != http.StatusBadRequest {
		t.Errorf("a form of another origin: status %d, want 400", status)
	}
	status, _, body := c.send("/-/sign-in", c.base, url.Values{"token": {"phk_wrong"}})
	if status != http.StatusForbidden || !strings.Contains(body, "not valid") {
		t.Errorf("a wrong token: status %d, want 403: %.300s", status, body)
	}
	for _, to := range []string{"//evil.example", "https://evil.example/", `/\evil.example`} {
		if _, location, _ := c.send("/-/sign-in", c.base, url.Values{"token": {token}, "to": {to}}); location != "/" {
			t.Errorf("to %q leads to %q, want /", to, location)
		}
	}
	if status, location, _ := c.send("/-/sign-in", c.base, form); status != http.StatusSeeOther || location != "/secret/" {
		t.Fatalf("sign-in: status %d to %q, want 303 to /secret/", status, location)
	}
	base, _ := url.Parse(c.base)
	session := ""
	for _, cookie := range c.Jar.Cookies(base) {
		session += cookie.String() + "; "
		if strings.Contains(cookie.Value, token) || strings.Contains(cookie.Value, "alice") {
			t.Errorf("the cookie %s shows the token or the name", cookie.Name)
		}
	}
	if page := string(c.get("/secret/")); !strings.Contains(page, "README") || !strings.Contains(page, ">alice<") ||
		!strings.Contains(page, `action="/-/sign-out"`) {
		t.Errorf("with a session: %.500s", page)
	}
	if page := string(c.get("/")); !strings.Contains(page, `href="/secret.git/"`) {
		t.Errorf("the list with a session: %s", page)
	}
	filtered("e", "open secret ")
	if archive := c.get("/secret/-/archive/main.tar.gz"); len(archive) < 100 {
		t.Errorf("an archive with a session has %d bytes", len(archive))
	}
	// neither Git nor the API take sessions: other pages can make a browser send requests to them
	for _, path := range []string{"/secret/info/refs?service=git-upload-pack", "/-/api/v1/repos/secret/branches"} {
		if status, _, _ := c.try(path); status != http.StatusUnauthorized {
			t.Errorf("GET %s with a session: status %d, want 401", path, status)
		}
	}
	_, _, body = c.send("/-/tokens", c.base, url.Values{"scope": {"read"}, "days": {"7"}})
	own := regexp.MustCompile(`value="(phk_[a-z0-9]+)"`).FindStringSubmatch(body)
	if own == nil {
		t.Fatalf("no new token on the page: %s", body)
	}
	header := "http.extraHeader=" + basicHeader("x", own[1])
	gittest.Run(t, "", "", "-c", header, "clone", "--quiet", "--bare", c.base+"/secret", filepath.Join(dir, "clone"))
	if out, err := linear.Try("-c", header, "push", c.base+"/secret", "main:refs/heads/new"); err == nil {
		t.Errorf("a push with a token to read was accepted: %s", out)
	}
	page = string(c.get("/-/tokens"))
	if strings.Count(page, "this session") != 1 || strings.Count(page, "Yes, revoke") != 2 ||
		strings.Contains(page, `value="admin"`) || !strings.Contains(page, `value="write"`) {
		t.Errorf("the page of tokens has no mark at that of the session, or offers another scope than the own: %s", page)
	}
	if status, _, _ := c.send("/-/tokens", c.base, url.Values{"scope": {"admin"}, "days": {"7"}}); status != 403 {
		t.Errorf("a token that permits more than that of the session: status %d, want 403", status)
	}
	ids := regexp.MustCompile(`name="revoke" value="([^"]+)"`).FindAllStringSubmatch(string(c.get("/-/tokens")), -1)
	if len(ids) < 2 {
		t.Fatalf("the page lists %d tokens, want those of alice", len(ids))
	}
	if status, _, _ := c.send("/-/tokens", c.base, url.Values{"revoke": {"none"}}); status != http.StatusNotFound {
		t.Errorf("revoking a token of nobody: status %d, want 404", status)
	}
	for _, id := range ids { // also the one of this session
		c.send("/-/tokens", c.base, url.Values{"revoke": {id[1]}})
	}
	if archive := c.ask("/open/-/archive/main.tar.gz", "Cookie: "+session); !strings.HasPrefix(archive, "200") {
		t.Errorf("an archive of an open repository after the revocation: %.300s", archive)
	}
	if page := string(c.get("/secret/")); !strings.Contains(page, `type="password"`) {
		t.Errorf("after the revocation: %.500s", page)
	}
	if key, err := os.Stat(filepath.Join(c.state, "pages.key")); err != nil || key.Mode().Perm()&0o077 != 0 {
		t.Errorf("pages.key: %v, %v; want a file for its owner alone", key, err)
	}
}
