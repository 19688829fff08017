package e2e

import (
	"encoding/pem"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// TestSignInOfIssuer: only visitors from the issuer have sessions with identity tokens, and create access tokens.
func TestSignInOfIssuer(t *testing.T) {
	t.Parallel()
	issuer, root, dir := newCIIssuer(t), t.TempDir(), t.TempDir()
	gittest.InitAt(t, filepath.Join(root, "secret.git"))
	config, ca := filepath.Join(dir, "c.toml"), filepath.Join(dir, "ca.pem")
	write(t, ca, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: issuer.Certificate().Raw})))
	write(t, config, fmt.Sprintf("[pages]\nissuer = %q\nclient_id = \"packhorse\"\n[auth]\ntokens = %q\n[[auth.oidc]]\n"+
		"issuer = %q\naudience = \"packhorse\"\nname = \"preferred_username\"\nclaims = { email = \"*@example.org\" }\n"+
		"repositories = [\"**\"]\nca = %q\n", issuer.URL, filepath.Join(dir, "tokens"), issuer.URL, ca))
	createToken(t, "alice", "--config", config)
	c := servePages(t, root, "--config", config)

	issuer.claims = map[string]any{"iss": issuer.URL, "preferred_username": "bob", "email": "bob@example.org"}
	job := issuer.sign(t, "packhorse")
	if page := c.ask("/-/tokens", "Authorization: Bearer "+job); !strings.HasPrefix(page, "403") ||
		!strings.Contains(page, "Not permitted") {
		t.Errorf("the tokens of a job: %.1500s", page)
	}
	if status, _, _ := c.send("/-/sign-in", c.base, url.Values{"token": {job}}); status != http.StatusForbidden {
		t.Errorf("a job begins a session: status %d, want 403", status)
	}
	visit := func(nonce string) (status int, page string) {
		found := regexp.MustCompile(`Location: (.*)\r`).FindStringSubmatch(c.ask("/-/sign-in/issuer?to=/secret/"))
		if found == nil {
			t.Fatal("no redirect to the issuer")
		}
		to, err := url.Parse(found[1])
		if err != nil {
			t.Fatal(err)
		}
		if nonce == "" {
			nonce = to.Query().Get("nonce")
		}
		issuer.claims["nonce"] = nonce
		code := issuer.sign(t, "packhorse") // the issuer returns it as the token
		status, _, body := c.try("/-/sign-in/back?state=" + to.Query().Get("state") + "&code=" + code)
		return status, string(body)
	}
	status, page := visit("of another sign-in")
	if status != http.StatusBadRequest || !strings.Contains(page, "begin again") {
		t.Errorf("a token with another nonce: status %d, want 400: %.1000s", status, page)
	}
	if status, page := visit(""); status != http.StatusOK || !strings.Contains(page, ">bob<") {
		t.Fatalf("a visitor from the issuer: status %d, want 200: %.1000s", status, page)
	}
	_, _, body := c.send("/-/tokens", c.base, url.Values{"scope": {"read"}, "days": {"7"}})
	if !strings.Contains(body, `value="phk_`) {
		t.Errorf("no new token for a visitor from the issuer: %.1000s", body)
	}
	if page := c.ask("/-/tokens", "Authorization: Bearer "+job); !strings.HasPrefix(page, "403") {
		t.Errorf("the tokens of a job with a cookie: %.1500s", page)
	}
}
