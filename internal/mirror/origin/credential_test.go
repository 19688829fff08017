package origin

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

var discard = slog.New(slog.DiscardHandler)

// writePrivate writes a file that other users cannot read.
func writePrivate(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// login returns the user and the password of a credential.
func login(t *testing.T, s Secret) string {
	t.Helper()
	text, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(s.Reveal(), "Basic "))
	if err != nil {
		t.Errorf("credential is not Basic: %v", err)
	}
	return string(text)
}

func TestTokenFile(t *testing.T) {
	t.Parallel()
	file := writePrivate(t, "glpat-1\n")
	s, err := NewTokenFile(file, "", discard)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := s.Authorization(t.Context())
	if got := login(t, secret); err != nil || got != "x-access-token:glpat-1" {
		t.Errorf("credential = %q, error %v, want the token of the file", got, err)
	}
	if text := fmt.Sprintf("%v %+v %#v", secret, secret, secret); strings.Contains(text, "glpat") {
		t.Errorf("printed credential = %s, want it hidden", text)
	}
	if s, err := NewTokenFile(file, "bot", discard); err != nil {
		t.Error(err)
	} else if secret, _ := s.Authorization(t.Context()); login(t, secret) != "bot:glpat-1" {
		t.Errorf("credential of bot = %q", login(t, secret))
	}
	for text, user := range map[string]string{"": "", "two words": "", "a\x01b": "", "tok3n": "a:b"} {
		_, err := NewTokenFile(writePrivate(t, text), user, discard)
		if err == nil || len(text) > 3 && strings.Contains(err.Error(), text) {
			t.Errorf("NewTokenFile(%q, %q) = %v, want an error without the text", text, user, err)
		}
	}
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := NewTokenFile(file, "", discard); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("NewTokenFile of a public file = %v, want an error with the remedy", err)
	}
}

// githubHost is a host with the API of GitHub Enterprise.
type githubHost struct {
	*httptest.Server
	asked  atomic.Int32
	answer atomic.Pointer[http.HandlerFunc] // instead of a token
	gate   chan struct{}                    // answers wait for it, if not nil
}

func newGitHubHost(t *testing.T, key *rsa.PrivateKey) *githubHost {
	t.Helper()
	h := &githubHost{}
	h.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := h.asked.Add(1)
		if h.gate != nil {
			<-h.gate
		}
		if f := h.answer.Load(); f != nil {
			(*f)(w, r)
			return
		}
		bearer := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		token, err := jwt.ParseSigned(bearer, []jose.SignatureAlgorithm{jose.RS256})
		var claims jwt.Claims
		if err == nil {
			err = token.Claims(key.Public(), &claims)
		}
		if body, _ := io.ReadAll(r.Body); err != nil || claims.Issuer != "7" ||
			string(body) != `{"permissions":{"contents":"read"}}` ||
			r.Method != http.MethodPost || r.URL.Path != "/api/v3/app/installations/8/access_tokens" ||
			claims.Expiry.Time().Sub(claims.IssuedAt.Time()) > 10*time.Minute {
			t.Errorf("%s %s %s: claims = %+v, error = %v, want the app's", r.Method, r.URL.Path, body, claims, err)
		}
		w.WriteHeader(http.StatusCreated)
		expires := time.Now().Add(time.Duration(n) * time.Hour)
		json.NewEncoder(w).Encode(map[string]any{"token": fmt.Sprint("ghs_", n), "expires_at": expires})
	}))
	t.Cleanup(h.Close)
	return h
}

func TestGitHubApp(t *testing.T) {
	t.Parallel()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	h := newGitHubHost(t, key)
	h.gate = make(chan struct{})
	at, err := url.Parse(h.URL)
	if err != nil {
		t.Fatal(err)
	}
	file := writePrivate(t, string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY",
		Bytes: x509.MarshalPKCS1PrivateKey(key)})))
	if _, err := parseRSAKey(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})); err != nil {
		t.Errorf("parseRSAKey(PKCS #8) = %v, want none", err)
	}
	var log strings.Builder
	a, err := NewGitHubApp(GitHubAppOptions{Origin: Options{URL: at}, App: 7, Installation: 8, KeyFile: file,
		Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	a.now = func() time.Time { return now }
	want := func(step, want string, asked int32) {
		t.Helper()
		secret, err := a.Authorization(t.Context())
		got := ""
		if err == nil {
			got = login(t, secret)
		}
		a.tokens.Wait()
		if got != want || h.asked.Load() != asked {
			t.Errorf("%s: credential = %q, error %v, requests = %d, want %q after %d", step, got, err, h.asked.Load(), want,
				asked)
		}
	}
	ctx, cancel := context.WithCancel(t.Context()) // a caller that leaves does not end the exchange for others
	cancel()
	if _, err := a.Authorization(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("error of a caller that left = %v, want canceled", err)
	}
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if secret, err := a.Authorization(t.Context()); err != nil || login(t, secret) != "x-access-token:ghs_1" {
				t.Errorf("credential = %v, error %v, want the first token", secret, err)
			}
		})
	}
	close(h.gate)
	all.Wait()
	want("cached", "x-access-token:ghs_1", 1)
	now = now.Add(time.Hour - 2*time.Minute) // a new one is requested while the old one is still used
	want("early", "x-access-token:ghs_1", 2)
	want("renewed", "x-access-token:ghs_2", 2)
	fails := func(f http.HandlerFunc) { h.answer.Store(&f) }
	fails(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "secret-in-page", http.StatusBadGateway) })
	now = now.Add(time.Hour)
	want("fails with a valid token", "x-access-token:ghs_2", 3)
	want("fails again", "x-access-token:ghs_2", 3)
	now = now.Add(2 * time.Minute)
	want("fails without a token", "", 4)
	if _, err := a.Authorization(t.Context()); !IsDown(err) || h.asked.Load() != 4 {
		t.Errorf("error = %v, IsDown = %v, requests = %d, want an outage without a request", err, IsDown(err), h.asked.Load())
	}
	for name, test := range map[string]struct {
		answer http.HandlerFunc
		isDown bool
		text   string
	}{
		"no installation": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusNotFound)
			io.WriteString(w, `{"message": "Not Found"}`)
		}, false, "404 (Not Found)"},
		"rate limit": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(http.StatusForbidden)
		}, true, "403"},
		"redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.2/",
				http.StatusFound)
		},
			false, "302"},
		"no token": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) }, false, "invalid"},
	} {
		fails(test.answer)
		now = now.Add(appRetryInterval)
		_, err := a.Authorization(t.Context())
		if err == nil || IsDown(err) != test.isDown || !strings.Contains(err.Error(), test.text) {
			t.Errorf("%s: error = %v, IsDown = %v, want %q, %v", name, err, IsDown(err), test.text, test.isDown)
		}
	}
	if strings.Contains(log.String(), "ghs_") || strings.Contains(log.String(), "secret-in-page") ||
		strings.Contains(log.String(), "eyJ") {
		t.Errorf("the log contains a secret: %s", log.String())
	}
	for origin, want := range map[string]string{"https://github.com/": "https://api.github.com",
		"https://GitHub.com/acme/": "https://api.github.com", "https://acme.ghe.com": "https://api.acme.ghe.com",
		"https://git.example:8443/x/": "https://git.example:8443/api/v3"} {
		u, _ := url.Parse(origin)
		if got := githubAPI(u); got != want {
			t.Errorf("githubAPI(%s) = %s, want %s", origin, got, want)
		}
	}
	if _, err := NewGitHubApp(GitHubAppOptions{Origin: Options{URL: at}, KeyFile: writePrivate(t, "no key"),
		Log: discard}); err == nil {
		t.Error("NewGitHubApp without a key = nil, want an error")
	}
}
