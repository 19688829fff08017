package e2e

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/net/html"
)

// TestSignInOfGitea signs visitors in with a real Gitea as the OpenID issuer, behind TLS of a private authority.
func TestSignInOfGitea(t *testing.T) {
	t.Parallel()
	address, err := freeAddress()
	if err != nil {
		t.Fatal(err)
	}
	front := httptest.NewTLSServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(&url.URL{Scheme: "http", Host: address})
		r.Out.Host = r.In.Host
		r.SetXForwarded()
	}})
	t.Cleanup(front.Close)
	g := startGitea(t, address, front.URL)
	discovery, err := front.Client().Get(front.URL + "/.well-known/openid-configuration")
	if err != nil {
		t.Fatal(err)
	}
	defer discovery.Body.Close()
	var about struct{ Issuer string }
	if err := json.NewDecoder(discovery.Body).Decode(&about); err != nil || about.Issuer == "" {
		t.Fatalf("the issuer is %q: %v", about.Issuer, err)
	}
	here, err := freeAddress()
	if err != nil {
		t.Fatal(err)
	}
	made := g.api(http.MethodPost, "user/applications/oauth2", map[string]any{"name": "packhorse",
		"confidential_client": true, "redirect_uris": []string{"http://" + here + "/-/sign-in/back"}})

	root, dir := t.TempDir(), t.TempDir()
	newPageRepo(t, filepath.Join(root, "secret.git"))
	config := filepath.Join(dir, "c.toml")
	write(t, filepath.Join(dir, "ca.pem"), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE",
		Bytes: front.Certificate().Raw})))
	write(t, filepath.Join(dir, "secret"), fmt.Sprint(made["client_secret"]))
	write(t, config, fmt.Sprintf("[pages]\nissuer = %q\nclient_id = %q\nclient_secret_file = %q\n[[auth.oidc]]\n"+
		"issuer = %q\naudience = %q\nname = \"preferred_username\"\nclaims = { email = \"bob@*\" }\n"+
		"repositories = [\"**\"]\nca = %q\n", about.Issuer, made["client_id"], filepath.Join(dir, "secret"), about.Issuer,
		made["client_id"], filepath.Join(dir, "ca.pem")))
	if err := os.Chmod(filepath.Join(dir, "secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := servePages(t, root, "--config", config, "--http", here)

	visit := func(name string) (*browserClient, int, string) {
		b := newBrowserClient(t, c.base)
		b.Transport = front.Client().Transport
		gitea := &browserClient{t, b.Client, front.URL, ""}
		login := string(gitea.get("/user/login"))
		form := url.Values{"user_name": {name}, "password": {name + "-password"}}
		if token := regexp.MustCompile(`name="_csrf" value="([^"]+)"`).FindStringSubmatch(login); token != nil {
			form.Set("_csrf", token[1])
		}
		if status, _, body := gitea.send("/user/login", front.URL, form); status != http.StatusSeeOther {
			t.Fatalf("%s cannot sign in to Gitea: status %d: %.500s", name, status, body)
		}
		form = url.Values{"granted": {"true"}}
		for _, input := range elements(t, b.get("/-/sign-in/issuer?to=/secret/"), func(n *html.Node) bool {
			return n.Data == "input" && attribute(n, "type") == "hidden"
		}) {
			form.Set(attribute(input, "name"), attribute(input, "value"))
		}
		status, back, body := gitea.send("/login/oauth/grant", front.URL, form)
		if !strings.HasPrefix(back, c.base+"/-/sign-in/back?") {
			t.Fatalf("the permission of %s leads to %q with status %d: %.500s", name, back, status, body)
		}
		status, _, page := b.try(strings.TrimPrefix(back, c.base))
		return b, status, string(page)
	}
	b, status, page := visit("bob")
	if status != http.StatusOK || !strings.Contains(page, "README") || !strings.Contains(page, ">bob<") {
		t.Errorf("bob gets status %d, want the page of the repository: %.1000s", status, page)
	}
	if page := string(b.get("/-/tokens")); !strings.Contains(page, ">bob<") {
		t.Errorf("the tokens of bob: %.1000s", page)
	}
	_, status, page = visit("carol")
	if status != http.StatusBadRequest || !strings.Contains(page, "ask the administrator") {
		t.Errorf("carol, for whom there is no rule, gets status %d, want 400: %.1000s", status, page)
	}
}
