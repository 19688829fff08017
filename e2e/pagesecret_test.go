package e2e

import (
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// ask sends a GET request with further headers and returns the response as one text. Redirects are not followed.
func (c *browserClient) ask(path string, headers ...string) string {
	c.Helper()
	q, err := http.NewRequestWithContext(c.Context(), http.MethodGet, c.base+path, nil)
	if err != nil {
		c.Fatal(err)
	}
	q.Header.Set("Accept", "text/html")
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		q.Header.Set(name, value)
	}
	client := c.Client
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	r, err := client.Do(q)
	if err != nil {
		c.Fatal(err)
	}
	defer r.Body.Close()
	r.Header.Del("Date")
	var b strings.Builder
	fmt.Fprintln(&b, r.Status)
	if err := r.Header.Write(&b); err != nil {
		c.Fatal(err)
	}
	for page := make([]byte, 4096); ; {
		n, err := r.Body.Read(page)
		b.Write(page[:n])
		if err != nil {
			return b.String()
		}
	}
}

// TestPagesKeepSecrets: a repository that a visitor may not read looks like one that does not exist, although its pages
// are kept for others. Forms of other servers do nothing.
func TestPagesKeepSecrets(t *testing.T) {
	t.Parallel()
	root, dir := t.TempDir(), t.TempDir()
	secret := newPageRepo(t, filepath.Join(root, "secret.git"))
	lost := secret.Commit("not in a ref", secret.ID("main"))
	config := filepath.Join(dir, "c.toml")
	write(t, config, "[auth]\ntokens = \""+filepath.Join(dir, "tokens")+"\"\n[[auth.rule]]\nwho = [\"alice\"]\n"+
		"repositories = [\"**\"]\nmay = \"write\"\n[[auth.rule]]\nwho = [\"bob\"]\n"+
		"repositories = [\"other/**\"]\nmay = \"write\"\n")
	tokens := map[string]string{}
	for _, name := range []string{"alice", "bob"} {
		tokens[name] = createToken(t, name, "--config", config)
	}
	anonymous := servePages(t, root, "--config", config)
	signIn := func(name string) *browserClient {
		c := newBrowserClient(t, anonymous.base)
		form := url.Values{"token": {tokens[name]}, "to": {"/"}}
		if status, _, body := c.send("/-/sign-in", c.base, form); status != http.StatusSeeOther {
			t.Fatalf("%s cannot sign in: %d %s", name, status, body)
		}
		return c
	}
	alice, bob := signIn("alice"), signIn("bob")
	id := secret.ID("main").String()
	etag := regexp.MustCompile(`(?m)^Etag: (.*)\r$`)
	for _, path := range strings.Fields(strings.NewReplacer("ID", id, "LOST", lost.String()).Replace(`
		/NAME/ /NAME /NAME.git/ /NAME/?go-get=1 /NAME/-/tree/main /NAME/-/tree/ID /NAME/-/file/main/x.go /NAME/-/file/ID/x.go
		/NAME/-/raw/ID/x.go /NAME/-/blame/main/x.go /NAME/-/blame/ID/x.go /NAME/-/history/main/x.go /NAME/-/log/main
		/NAME/-/log/ID /NAME/-/log/main?author=a /NAME/-/commit/ID /NAME/-/commit/ID.patch /NAME/-/commit/LOST
		/NAME/-/compare/main~1...main /NAME/-/compare/ID...ID /NAME/-/refs /NAME/-/feed/main /NAME/-/archive/main.tar
		/NAME/-/archive/ID.zip /NAME/-/nothing /NAME/tree/ /NAME/plain/x.go /NAME/commit/?id=ID /NAME/snapshot/NAME-1.0.tar.gz
		/?p=NAME;a=tree /NAME/+/main /NAME/-/tree/none /NAME/-/tree/main/none`)) {
		kept := alice.ask(strings.ReplaceAll(path, "NAME", "secret"))
		for name, c := range map[string]*browserClient{"anonymous": anonymous, "bob": bob} {
			headers := []string{"X: y"}
			if found := etag.FindStringSubmatch(kept); found != nil {
				headers[0] = "If-None-Match: " + found[1]
			}
			got := c.ask(strings.ReplaceAll(path, "NAME", "secret"), headers...)
			want := c.ask(strings.ReplaceAll(path, "NAME", "absent"), headers...)
			if strings.ReplaceAll(got, "secret", "absent") != want {
				t.Errorf("%s, %s:\n%.1500s\nfor one that does not exist:\n%.1500s", name, path, got, want)
			}
		}
	}
	for name, c := range map[string]*browserClient{"anonymous": anonymous, "bob": bob} {
		if page := c.ask("/"); strings.Contains(page, "secret") {
			t.Errorf("%s sees the repository in the list", name)
		}
	}
	if page := alice.ask("/secret/-/commit/" + lost.String()); !strings.HasPrefix(page, "404") {
		t.Errorf("a commit that no ref reaches: %.300s", page)
	}
	count := func() int { return strings.Count(string(alice.get("/-/tokens")), `name="revoke"`) }
	before := count()
	revoke := regexp.MustCompile(`name="revoke" value="([^"]+)"`).FindStringSubmatch(string(alice.get("/-/tokens")))
	for _, origin := range []string{"https://evil.example", "null", "http://127.0.0.1:1"} {
		for path, form := range map[string]url.Values{"/-/tokens": {"scope": {"read"}, "days": {"7"}}, "/-/sign-out": {},
			"/-/tokens?": {"revoke": {revoke[1]}}, "/-/sign-in": {"token": {"x"}}} {
			if status, _, _ := alice.send(path, origin, form); status != http.StatusBadRequest {
				t.Errorf("a form of %s for %s: status %d, want 400", origin, path, status)
			}
		}
	}
	if after := count(); after != before || before == 0 {
		t.Errorf("alice has %d tokens, want %d", after, before)
	}
	for _, path := range []string{"/-/sign-out", "/-/tokens?scope=read&days=7", "/-/tokens?revoke=" + revoke[1]} {
		alice.ask(path) // links do nothing
	}
	if after := count(); after != before {
		t.Errorf("after links alice has %d tokens, want %d", after, before)
	}
	if status, _, _ := bob.send("/-/tokens", bob.base, url.Values{"revoke": {revoke[1]}}); status != http.StatusNotFound {
		t.Errorf("bob revokes a token of alice: status %d, want 404", status)
	}
	for _, header := range []string{"Cache-Control: private, no-store", "X-Content-Type-Options: nosniff"} {
		if page := alice.ask("/-/tokens"); !strings.Contains(page, header+"\r\n") || strings.Contains(page, "phk_") {
			t.Errorf("the page of tokens lacks %q, or shows one: %.1000s", header, page)
		}
	}
	if page := alice.ask("/secret/-/tree/" + id); !strings.Contains(page, "Cache-Control: private,") ||
		!strings.Contains(page, "Vary: Authorization, Cookie") {
		t.Errorf("a page for a visitor with a session: %.1000s", page)
	}
}
