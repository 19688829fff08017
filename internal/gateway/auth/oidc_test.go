package auth

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// issuer is an OpenID issuer.
type issuer struct {
	*httptest.Server
	t       *testing.T
	ca      string // file with the server's certificate
	asked   atomic.Int32
	bearer  atomic.Value // Authorization of the latest request for keys
	mu      sync.Mutex
	keys    []jose.JSONWebKey
	answer  http.HandlerFunc // instead of the keys, if not nil
	name    string           // the issuer in its configuration
	keysURL string           // the URL of keys in its configuration
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	i := &issuer{t: t}
	i.Server = httptest.NewTLSServer(http.HandlerFunc(i.serve))
	i.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	t.Cleanup(i.Close)
	i.name, i.keysURL = i.URL, i.URL+"/keys"
	i.ca = filepath.Join(t.TempDir(), "ca.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: i.Certificate().Raw})
	if err := os.WriteFile(i.ca, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return i
}

func (i *issuer) serve(w http.ResponseWriter, r *http.Request) {
	i.mu.Lock()
	defer i.mu.Unlock()
	switch {
	case r.URL.Path == "/.well-known/openid-configuration":
		json.NewEncoder(w).Encode(map[string]string{"issuer": i.name, "jwks_uri": i.keysURL})
	case i.answer != nil:
		i.answer(w, r)
	default:
		i.asked.Add(1)
		i.bearer.Store(r.Header.Get("Authorization"))
		var public []json.RawMessage
		for _, key := range i.keys {
			text, _ := key.Public().MarshalJSON()
			public = append(public, text)
		}
		public = append(public, json.RawMessage(`{"kty": "OKP", "crv": "future", "kid": "other"}`),
			json.RawMessage(`{"kty": "oct", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LTEyMzQ", "kid": "symmetric"}`))
		json.NewEncoder(w).Encode(map[string]any{"keys": public})
	}
}

// answers makes the issuer answer requests for keys with f, or with its keys if f is nil.
func (i *issuer) answers(f http.HandlerFunc) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.answer = f
}

var testKeys = sync.OnceValue(func() []crypto.Signer {
	first, err1 := rsa.GenerateKey(rand.Reader, 2048)
	second, err2 := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err1 != nil || err2 != nil {
		panic(fmt.Sprint(err1, err2))
	}
	return []crypto.Signer{first, second}
})

// rotate makes the issuer sign with a key, and forget earlier ones.
func (i *issuer) rotate(id string, key crypto.Signer) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.keys = []jose.JSONWebKey{{Key: key, KeyID: id, Use: "sig"}}
}

// sign makes a token with the issuer's key.
func (i *issuer) sign(claims map[string]any) string {
	i.mu.Lock()
	key := i.keys[0]
	i.mu.Unlock()
	algorithm := jose.RS256
	if _, ok := key.Key.(*ecdsa.PrivateKey); ok {
		algorithm = jose.ES256
	}
	return signWith(i.t, jose.SigningKey{Algorithm: algorithm, Key: key}, claims)
}

func signWith(t *testing.T, key jose.SigningKey, claims any) string {
	t.Helper()
	signer, err := jose.NewSigner(key, nil)
	if err != nil {
		t.Fatal(err)
	}
	token, err := jwt.Signed(signer).Claims(claims).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// oidcWorld is an Auth with an issuer and one rule for "packhorse".
type oidcWorld struct {
	*world
	*issuer
	oidc *OIDC
}

func newOIDCWorld(t *testing.T, change ...func(*OIDCRule)) *oidcWorld {
	t.Helper()
	w := &oidcWorld{issuer: newIssuer(t), world: &world{T: t, file: NewTokenFile(filepath.Join(t.TempDir(), "tokens")),
		clock: time.Now()}}
	w.rotate("1", testKeys()[0])
	rule := OIDCRule{Issuer: w.URL, Audience: "packhorse", CA: w.ca, May: "read",
		Repositories: []string{"github.com/{repository}"}, Claims: map[string]string{"repository_owner": "acme"}}
	rules := []OIDCRule{rule}
	for n, f := range change {
		if n > 0 {
			rules = append(rules, rule)
		}
		f(&rules[n])
	}
	metrics := NewMetrics(nil)
	sources := NewSources(metrics, slog.New(slog.NewTextHandler(&w.log, nil)))
	var err error
	w.oidc, err = NewOIDC(OIDCOptions{Rules: rules, Sources: sources, Now: func() time.Time { return w.clock }})
	if err != nil {
		t.Fatal(err)
	}
	w.start(Options{Metrics: metrics, Sources: sources, Guesses: 3, Authenticators: []Authenticator{w.oidc}})
	w.Auth.o.Authenticators = []Authenticator{w.oidc, w.tokens} // the order of a server
	t.Cleanup(func() { w.Auth.Close() })
	return w
}

// claims returns those of a job, changed by pairs of a name and a value. A nil value removes the claim.
func (w *oidcWorld) claims(changes ...any) map[string]any {
	c := map[string]any{"iss": w.URL, "aud": "packhorse", "sub": "repo:acme/app:ref:refs/heads/main",
		"iat": w.clock.Unix(), "nbf": w.clock.Unix(), "exp": w.clock.Add(5 * time.Minute).Unix(),
		"repository": "acme/app", "repository_owner": "acme", "ref": "refs/heads/main", "ref_protected": true, "id": 42}
	for i := 0; i < len(changes); i += 2 {
		if name := changes[i].(string); changes[i+1] == nil {
			delete(c, name)
		} else {
			c[name] = changes[i+1]
		}
	}
	return c
}

func TestOIDC(t *testing.T) {
	t.Parallel()
	w := newOIDCWorld(t)
	token := w.sign(w.claims())
	for _, header := range []string{"Bearer " + token, basic("any", token), basic("", token)} {
		id, err := w.who(header)
		if err != nil {
			t.Fatalf("error of a valid token = %v, want none", err)
		}
		if id.By != ByOIDC || CheckName(id.Name) != nil || !strings.HasPrefix(id.Name, "oidc-repo-acme-app-ref-") ||
			id.Credential != "repo:acme/app:ref:refs/heads/main" {
			t.Errorf("identity = %+v, want one by oidc with a name from the subject", id)
		}
		for repo, want := range map[string]string{"github.com/acme/app": "ok", "github.com/acme/app.git": "ok",
			"github.com/acme/other": "not_found", "acme/app": "not_found"} {
			if got := says(w.May(t.Context(), id, repoPath(t, repo), Read)); got != want {
				t.Errorf("read of %s = %s, want %s", repo, got, want)
			}
		}
		if got := says(w.May(t.Context(), id, repoPath(t, "github.com/acme/app"), Write)); got != "denied" {
			t.Errorf("write = %s, want denied", got)
		}
	}
	if got := w.asked.Load(); got != 1 {
		t.Errorf("requests for keys = %d, want 1", got)
	}
	if a, b := oidcName("i", "a/b"), oidcName("i", "a-b"); a == b || oidcName("j", "a/b") == a {
		t.Errorf("names of different subjects and issuers are equal: %s", a)
	}
	if name := oidcName("i", strings.Repeat("\u00e4:", 300)); CheckName(name) != nil {
		t.Errorf("the name of a long subject is %q, which is invalid", name)
	}
}

// A rule can take the name of a caller from a claim. A name that rules could not name is refused.
func TestOIDCNames(t *testing.T) {
	t.Parallel()
	r, err := parseOIDCRule(OIDCRule{Issuer: "https://ci.example", Audience: "a", Repositories: []string{"h/{r}"}, May: "read",
		Name: "preferred_username"})
	if err != nil {
		t.Fatal(err)
	}
	for claim, want := range map[any]string{"alice": "alice", "a@example.org": "a@example.org", "anonymous": "", "-x": "",
		"a b": "", "group:devs": "", "": "", nil: "", true: "true"} {
		name, err := r.callerName(jwt.Claims{}, map[string]any{"preferred_username": claim})
		if err == nil && name != want || err != nil && want != "" {
			t.Errorf("name %v: %q, %v; want %q", claim, name, err, want)
		}
	}
}

func TestOIDCRefusals(t *testing.T) {
	t.Parallel()
	w := newOIDCWorld(t)
	other := newIssuer(t)
	otherKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	now := w.clock
	public := testKeys()[0].Public().(*rsa.PublicKey)
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	header := func(algorithm string) string {
		return base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"` + algorithm + `","kid":"1"}`))
	}
	good := w.sign(w.claims())
	parts := strings.Split(good, ".")
	for name, token := range map[string]string{
		"another audience":         w.sign(w.claims("aud", "github")),
		"no audience":              w.sign(w.claims("aud", nil)),
		"audience as a part":       w.sign(w.claims("aud", "packhorse2")),
		"expired":                  w.sign(w.claims("exp", now.Add(-61*time.Second).Unix())),
		"no expiry":                w.sign(w.claims("exp", nil)),
		"not valid yet":            w.sign(w.claims("nbf", now.Add(61*time.Second).Unix())),
		"issued in the future":     w.sign(w.claims("iat", now.Add(61*time.Second).Unix())),
		"no subject":               w.sign(w.claims("sub", nil)),
		"unknown issuer":           w.sign(w.claims("iss", other.URL)),
		"issuer with a slash":      w.sign(w.claims("iss", w.URL+"/")),
		"another owner":            w.sign(w.claims("repository_owner", "evil")),
		"owner as a part":          w.sign(w.claims("repository_owner", "acme2")),
		"no owner":                 w.sign(w.claims("repository_owner", nil)),
		"owner as a list":          w.sign(w.claims("repository_owner", []string{"acme"})),
		"no repository":            w.sign(w.claims("repository", nil)),
		"empty repository":         w.sign(w.claims("repository", "")),
		"all repositories":         w.sign(w.claims("repository", "**")),
		"a pattern":                w.sign(w.claims("repository", "acme/a?p")),
		"a parent":                 w.sign(w.claims("repository", "../gitlab.com/x")),
		"a slash at the beginning": w.sign(w.claims("repository", "/acme/app")),
		"a slash at the end":       w.sign(w.claims("repository", "acme/")),
		"another name":             w.sign(w.claims("repository", "acme/.git")),
		"a control character":      w.sign(w.claims("repository", "acme/a\nb")),
		"braces":                   w.sign(w.claims("repository", "{ref}")),
		"another key": signWith(t, jose.SigningKey{Algorithm: jose.RS256,
			Key: jose.JSONWebKey{Key: otherKey, KeyID: "1"}}, w.claims()),
		"no key ID": signWith(t, jose.SigningKey{Algorithm: jose.RS256, Key: testKeys()[0]}, w.claims()),
		"public key as the secret": signWith(t, jose.SigningKey{Algorithm: jose.HS256,
			Key: jose.JSONWebKey{Key: pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), KeyID: "1"}}, w.claims()),
		"symmetric key": signWith(t, jose.SigningKey{Algorithm: jose.HS256,
			Key: jose.JSONWebKey{Key: []byte("secret-secret-secret-secret-1234"), KeyID: "symmetric"}}, w.claims()),
		"no signature":              header("none") + "." + parts[1] + ".",
		"signature of another kind": header("ES256") + "." + parts[1] + "." + parts[2],
		"other claims": parts[0] + "." + strings.Split(w.sign(w.claims("repository", "acme/x")), ".")[1] + "." +
			parts[2],
		"not JSON": "eyJx.eyJx.eyJx",
	} {
		id, err := w.oidc.Identify(t.Context(), &Credential{Scheme: "bearer", Secret: token})
		if !fault.Is(err, fault.Unauthenticated) || !id.Anonymous() {
			t.Errorf("%s: identity = %+v, error = %v, want unauthenticated", name, id, err)
		}
		if got, want := isNotKnown(err), name == "unknown issuer" || name == "issuer with a slash" || name == "not JSON" ||
			strings.Contains(name, "symmetric") || name == "public key as the secret" || name == "no signature"; got != want {
			t.Errorf("%s: the next authenticator is asked = %v, want %v", name, got, want)
		}
	}
	// A token that is out of date, or for another server, is not a guess.
	for n := range 5 {
		for _, token := range []string{w.sign(w.claims("exp", now.Unix()-100-int64(n))),
			w.sign(w.claims("aud", fmt.Sprint(n)))} {
			if _, err := w.who("Bearer " + token); !fault.Is(err, fault.Unauthenticated) {
				t.Errorf("error = %v, want unauthenticated", err)
			}
		}
	}
	for name, token := range map[string]string{
		"clock of the issuer behind": w.sign(w.claims("exp", now.Add(-59*time.Second).Unix())),
		"clock of the issuer ahead":  w.sign(w.claims("nbf", now.Add(59*time.Second).Unix())),
		"several audiences":          w.sign(w.claims("aud", []string{"x", "packhorse"})),
	} {
		if _, err := w.who("Bearer " + token); err != nil {
			t.Errorf("%s: error = %v, want none", name, err)
		}
	}
	if got := w.asked.Load(); got != 1 {
		t.Errorf("requests for keys = %d, want 1", got)
	}
}

func TestOIDCRotation(t *testing.T) {
	t.Parallel()
	w := newOIDCWorld(t)
	old := w.sign(w.claims("exp", w.clock.Add(24*time.Hour).Unix()))
	want := func(step, token, want string) {
		t.Helper()
		if _, err := w.who("Bearer " + token); says(err) != want {
			t.Errorf("%s: error = %v, want %s", step, err, want)
		}
	}
	want("first key", old, "ok")
	w.rotate("2", testKeys()[1])
	fresh := w.sign(w.claims("exp", w.clock.Add(24*time.Hour).Unix()))
	want("new key just after a fetch", fresh, "unauthenticated")
	w.clock = w.clock.Add(keysInterval)
	var all sync.WaitGroup // concurrent callers share one fetch
	for range 20 {
		all.Go(func() {
			if _, err := w.oidc.Identify(t.Context(), &Credential{Secret: fresh}); err != nil {
				t.Errorf("new key: error = %v, want none", err)
			}
		})
	}
	all.Wait()
	if got := w.asked.Load(); got != 2 {
		t.Errorf("requests for keys = %d, want 2", got)
	}
	want("withdrawn key", old, "unauthenticated")

	// While the issuer does not answer, its keys are used for an hour, and nothing is accepted after that.
	w.answers(func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(http.StatusBadGateway) })
	w.clock = w.clock.Add(keysRefresh)
	want("no answer", fresh, "ok")
	for _, issuer := range w.oidc.issuers {
		issuer.keys.sets.Wait()
	}
	want("no answer, unknown key", old, "unavailable")
	w.clock = w.clock.Add(keysMaxAge - keysRefresh)
	want("no answer for an hour", fresh, "unavailable")
	want("no answer just before", fresh, "unavailable")
	if log := w.log.String(); !strings.Contains(log, "status 502") || strings.Count(log, "level=ERROR") != 1 {
		t.Errorf("log = %q, want one error with the status", log)
	}
	for name, answer := range map[string]http.HandlerFunc{
		"redirect":   func(rw http.ResponseWriter, r *http.Request) { http.Redirect(rw, r, w.URL+"/keys", http.StatusFound) },
		"no JSON":    func(rw http.ResponseWriter, _ *http.Request) { io.WriteString(rw, "<html>") },
		"no keys":    func(rw http.ResponseWriter, _ *http.Request) { io.WriteString(rw, `{"keys": []}`) },
		"large keys": func(rw http.ResponseWriter, _ *http.Request) { rw.Write(make([]byte, maxKeysBytes+1)) },
	} {
		w.answers(answer)
		w.clock = w.clock.Add(keysInterval)
		want(name, fresh, "unavailable")
	}
	w.answers(nil)
	w.clock = w.clock.Add(keysInterval)
	want("answers again", fresh, "ok")
}

func TestOIDCDiscovery(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(w *oidcWorld){
		"another issuer": func(w *oidcWorld) { w.name += "/" },
		"another host":   func(w *oidcWorld) { w.keysURL = "https://127.0.0.2/keys" },
		"another scheme": func(w *oidcWorld) { w.keysURL = "http" + strings.TrimPrefix(w.keysURL, "https") },
		"no URL":         func(w *oidcWorld) { w.keysURL = "" },
		"not reachable":  func(w *oidcWorld) { w.Server.Close() },
		"untrusted": func(w *oidcWorld) {
			if err := os.WriteFile(w.ca, []byte("nothing"), 0o600); err != nil {
				t.Error(err)
			}
		},
	} {
		w := newOIDCWorld(t)
		change(w)
		if _, err := w.who("Bearer " + w.sign(w.claims())); !fault.Is(err, fault.Unavailable) || fault.RetryAfter(err) == 0 {
			t.Errorf("%s: error = %v, want unavailable with a hint", name, err)
		}
		if w.asked.Load() != 0 {
			t.Errorf("%s: keys were fetched, want no request", name)
		}
	}
	// The API server of Kubernetes: its keys need a token, and its name is not their host.
	secret := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(secret, []byte("of-the-pod\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w := newOIDCWorld(t, func(r *OIDCRule) {
		r.JWKSURL, r.Issuer, r.TokenFile = r.Issuer+"/openid/v1/jwks", "https://kubernetes.default.svc.cluster.local", secret
		r.Repositories, r.Claims = []string{"github.com/acme/**"}, map[string]string{"sub": "system:serviceaccount:ci:*"}
	})
	token := w.sign(w.claims("iss", "https://kubernetes.default.svc.cluster.local", "sub",
		"system:serviceaccount:ci:runner"))
	if id, err := w.who("Bearer " + token); err != nil || w.May(t.Context(), id, repoPath(t, "github.com/acme/x"),
		Read) != nil {
		t.Errorf("identity = %+v, error = %v, want one that may read", id, err)
	}
	if got := w.bearer.Load(); got != "Bearer of-the-pod" {
		t.Errorf("Authorization = %q, want the pod's token", got)
	}
}

func TestOIDCRules(t *testing.T) {
	t.Parallel()
	w := newOIDCWorld(t,
		func(r *OIDCRule) { // branches that are protected may push
			r.May, r.Claims = "write", map[string]string{"ref": "refs/heads/*", "ref_protected": "true", "id": "42"}
		},
		func(r *OIDCRule) {
			r.Repositories = []string{"github.com/{repository}", "{repository_owner}/tools/*", "x/{none}"}
		})
	for name, c := range map[string]struct {
		claims []any
		want   string // repositories
		op     Operation
	}{
		"first":           {nil, "github.com/acme/app", Write},
		"slashes match":   {[]any{"ref", "refs/heads/a/b"}, "github.com/acme/app", Write},
		"second":          {[]any{"ref", "refs/tags/v1"}, "github.com/acme/app acme/tools/*", Read},
		"another boolean": {[]any{"ref_protected", false}, "github.com/acme/app acme/tools/*", Read},
		"another number":  {[]any{"id", 43}, "github.com/acme/app acme/tools/*", Read},
	} {
		id, err := w.who("Bearer " + w.sign(w.claims(c.claims...)))
		if err != nil {
			t.Errorf("%s: error = %v, want none", name, err)
			continue
		}
		if got := strings.Trim(fmt.Sprint(id.Grant.Repositories), "[]"); got != c.want || id.Grant.Operation != c.op {
			t.Errorf("%s: grant = %s of %s, want %s of %s", name, id.Grant.Operation, got, c.op, c.want)
		}
	}
	good := OIDCRule{Issuer: "https://ci.example", Audience: "a", May: "read", Repositories: []string{"h/{r}"}}
	if err := good.Check(); err != nil {
		t.Errorf("Check() = %v, want nil", err)
	}
	for name, change := range map[string]func(r *OIDCRule){
		"no issuer":        func(r *OIDCRule) { r.Issuer, r.JWKSURL = "", "https://ci.example/keys" },
		"http":             func(r *OIDCRule) { r.Issuer = "http://ci.example" },
		"user":             func(r *OIDCRule) { r.Issuer = "https://a:b@ci.example" },
		"keys by http":     func(r *OIDCRule) { r.JWKSURL = "http://ci.example/keys" },
		"no audience":      func(r *OIDCRule) { r.Audience = "" },
		"no repositories":  func(r *OIDCRule) { r.Repositories = nil },
		"everybody":        func(r *OIDCRule) { r.Repositories = []string{"h/{r}", "**"} },
		"not restrictive":  func(r *OIDCRule) { r.Repositories, r.Claims = []string{"**"}, map[string]string{"sub": "*"} },
		"open brace":       func(r *OIDCRule) { r.Repositories = []string{"h/{r"} },
		"no name":          func(r *OIDCRule) { r.Repositories = []string{"h/{}"} },
		"invalid pattern":  func(r *OIDCRule) { r.Repositories = []string{"h/{r}/../x"} },
		"pattern of claim": func(r *OIDCRule) { r.Claims = map[string]string{"ref": "[a]"} },
		"admin":            func(r *OIDCRule) { r.May = "admin" },
	} {
		bad := good
		if change(&bad); bad.Check() == nil {
			t.Errorf("%s: Check() = nil, want an error", name)
		}
	}
	other := good
	other.CA = "/other"
	_, err := NewOIDC(OIDCOptions{Rules: []OIDCRule{good, other}, Sources: NewSources(NewMetrics(nil), discard)})
	if !fault.Is(err, fault.Invalid) {
		t.Errorf("NewOIDC(an issuer with two authorities) = %v, want invalid", err)
	}
}
