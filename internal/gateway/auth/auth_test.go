package auth

import (
	"context"
	"encoding/base64"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
)

var discard = slog.New(slog.DiscardHandler)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is an Auth with a token file, a clock, and a log.
type world struct {
	*testing.T
	*Auth
	tokens *Tokens
	file   TokenFile
	clock  time.Time
	log    strings.Builder
}

func newWorld(t *testing.T, o Options) *world {
	t.Helper()
	w := &world{T: t, file: NewTokenFile(filepath.Join(t.TempDir(), "tokens")), clock: time.Now()}
	w.start(o)
	t.Cleanup(func() { w.Auth.Close() })
	return w
}

// start makes the Auth. Tokens come first, and the hook last.
func (w *world) start(o Options) {
	o.Log = slog.New(slog.NewTextHandler(&w.log, nil))
	o.Now = func() time.Time { return w.clock }
	if o.Metrics == nil {
		o.Metrics = NewMetrics(nil)
	}
	if o.Sources == nil {
		o.Sources = NewSources(o.Metrics, o.Log)
	}
	w.tokens = NewTokens(TokenOptions{File: w.file, All: o.Hook == nil && o.Origins == nil, Sources: o.Sources, Log: o.Log,
		Now: o.Now})
	o.Authenticators = append([]Authenticator{w.tokens}, o.Authenticators...)
	if o.Hook != nil {
		o.Authenticators = append(o.Authenticators, o.Hook)
	}
	w.Auth = New(o)
}

func (w *world) token(name string, scope Operation, repositories ...string) string {
	w.Helper()
	token, _, err := w.file.Create(TokenRequest{Name: name, Scope: scope, Repositories: repositories}, w.clock)
	if err != nil {
		w.Fatal(err)
	}
	return token
}

func basic(user, password string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
}

func (w *world) from(address string, authorization ...string) (Identity, error) {
	return w.HTTP(&http.Request{RemoteAddr: address + ":1234", Header: http.Header{"Authorization": authorization}})
}

func (w *world) who(authorization ...string) (Identity, error) {
	return w.from("192.0.2.1", authorization...)
}

// says is the kind of an error, "ok" for none.
func says(err error) string { return result(err) }

// Create is Access.Mint at a time.
func (f TokenFile) Create(r TokenRequest, now time.Time) (secret string, token Token, err error) {
	a := Access{&watchedFile{TokenFile: f}, func() time.Time { return now }}
	return a.Mint(context.Background(), r)
}

// Revoke is Access.Revoke.
func (f TokenFile) Revoke(which string) ([]Token, error) {
	return AccessInFile(f).Revoke(context.Background(), which)
}

func TestTokens(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	if w.Configured() {
		t.Error("Configured() = true before the first token, want false")
	}
	token := w.token("ci", Write)
	if !w.Configured() {
		t.Error("Configured() = false with a token, want true")
	}
	for name, header := range map[string]string{
		"basic": basic("whoever", token), "basic, no user": basic("", token), "bearer": "Bearer " + token, "token": "token " +
			token, "case": "bEARER  " + token + " ",
		"as the user": basic(token, ""), "as the user, with a password": basic(token, "x-oauth-basic"),
	} {
		id, err := w.who(header)
		if err != nil || id.Name != "ci" || id.By != ByToken || id.Credential != "ci/1" || id.Address != "192.0.2.1" {
			t.Errorf("%s: identity = %+v, error = %v, want ci/1 by token", name, id, err)
		}
	}
	text, err := os.ReadFile(w.file.path)
	if err != nil || strings.Contains(string(text), token) || strings.Contains(string(text), token[len(tokenPrefix):]) {
		t.Errorf("the token file contains the token itself, want its hash only (read error: %v)", err)
	}
	if info, err := os.Stat(w.file.path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode of the token file = %v (error %v), want 0600", info.Mode(), err)
	}
	// Each change holds from the very next look on, however fast one follows the other.
	for i := range 50 {
		other := w.token("other", Read)
		if _, err := w.who(basic("x", other)); err != nil {
			t.Fatalf("round %d: error with a new token = %v, want none", i, err)
		}
		if _, err := w.file.Revoke("other"); err != nil {
			t.Fatal(err)
		}
		if _, err := w.from("192.0.2.99", basic("x", other)); !fault.Is(err, fault.Unauthenticated) {
			t.Fatalf("round %d: error with a revoked token = %v, want kind %v", i, err, fault.Unauthenticated)
		}
	}
	if _, err := w.file.Revoke("other"); !fault.Is(err, fault.NotFound) {
		t.Errorf("Revoke error = %v, want kind %v", err, fault.NotFound)
	}
	if again := w.token("ci", Read); again == token {
		t.Error("Create returned an earlier token, want a new one")
	} else if id, err := w.who("Bearer " + again); err != nil || id.Credential != "ci/52" {
		t.Errorf("identity = %+v, error = %v, want credential ci/52: numbers are not used again", id, err)
	}
}

func TestTokensExpire(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	token, _, err := w.file.Create(TokenRequest{Name: "ci", Expires: w.clock.Add(time.Hour)}, w.clock)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.who("Bearer " + token); err != nil {
		t.Errorf("who error = %v, want none", err)
	}
	w.clock = w.clock.Add(time.Hour)
	if _, err := w.who("Bearer " + token); !fault.Is(err, fault.Unauthenticated) ||
		!strings.Contains(err.Error(), "expired") {
		t.Errorf("who error = %v, want kind %v", err, fault.Unauthenticated)
	}
	if _, _, err := w.file.Create(TokenRequest{Name: "ci", Expires: w.clock}, w.clock); !fault.Is(err, fault.Invalid) {
		t.Errorf("Create error = %v, want kind %v", err, fault.Invalid)
	}
}

// TestTokenFileThatCannotBeRead damages the token file. Earlier tokens are not accepted until it is repaired.
func TestTokenFileThatCannotBeRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{OpenUntilKnown: true})
	token := w.token("ci", Read)
	if _, err := w.who("Bearer " + token); err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(w.file.path)
	if err != nil {
		t.Fatal(err)
	}
	replace := func(text string, mode os.FileMode) {
		if err := w.file.write(w.file.path, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(w.file.path, mode); err != nil {
			t.Fatal(err)
		}
	}
	for name, bad := range map[string]func(){
		"no JSON":         func() { replace("{", 0o600) },
		"another version": func() { replace(`{"version":2}`, 0o600) },
		"a bad hash":      func() { replace(strings.Replace(string(good), `"sha256": "`, `"sha256": "zz`, 1), 0o600) },
		"a bad name":      func() { replace(strings.Replace(string(good), `"name": "ci"`, `"name": "c;i"`, 1), 0o600) },
		"writable":        func() { replace(string(good), 0o666) },
	} {
		replace(string(good), 0o600)
		w.clock = w.clock.Add(time.Second) // after a failed read the next one is made after a second
		if _, err := w.who("Bearer " + token); err != nil {
			t.Fatalf("before %s: error = %v, want none", name, err)
		}
		bad()
		if _, err := w.who("Bearer " + token); !fault.Is(err, fault.Unavailable) {
			t.Errorf("%s: error = %v, want kind %v", name, err, fault.Unavailable)
		}
		if err := w.May(context.Background(), Identity{}, repoPath(t, "a"), Read); !fault.Is(err, fault.Unauthenticated) {
			t.Errorf("%s: error for anonymous callers = %v, want kind %v", name, err, fault.Unauthenticated)
		}
	}
	if !strings.Contains(w.log.String(), "an identity source failed") || strings.Contains(w.log.String(), token) {
		t.Error(w.log.String())
	}
}

func TestLastUse(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	token := w.token("ci", Read)
	w.token("idle", Read)
	if _, err := w.who("Bearer " + token); err != nil {
		t.Fatal(err)
	}
	used := w.clock.Unix()
	w.clock = w.clock.Add(time.Minute)
	w.Auth.Close()
	list, err := w.file.list()
	if err != nil || len(list) != 2 || list[0].Used.Unix() != used || !list[1].Used.IsZero() {
		t.Fatalf("List() = %+v, %v, want ci used at %d and idle never", list, err, used)
	}
	// A restarted server keeps the record although it sees no use of the token.
	next := NewTokens(TokenOptions{File: w.file, Sources: NewSources(NewMetrics(nil), discard), Log: discard})
	defer next.Close()
	if err := next.writeUsed(); err != nil {
		t.Fatal(err)
	}
	if list, err := w.file.list(); err != nil || list[0].Used.Unix() != used {
		t.Errorf("List() after a restart = %+v, %v, want ci used at %d", list, err, used)
	}
}

// TestHeaders sends invalid Authorization headers. All are refused, and errors never contain them.
func TestHeaders(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	token := w.token("ci", Read)
	if id, err := w.who(); err != nil || !id.Anonymous() {
		t.Errorf("without a header: identity = %+v, error = %v, want an anonymous caller", id, err)
	}
	wrong := token[:10] + strings.Map(func(r rune) rune {
		if r == 'a' {
			return 'b'
		}
		return 'a'
	}, token[10:])
	for name, headers := range map[string][]string{
		"empty":           {""},
		"no scheme":       {token},
		"wrong":           {"Bearer " + wrong},
		"another":         {"Bearer " + newToken()},
		"half":            {"Bearer " + token[:20]},
		"upper case":      {"Bearer " + strings.ToUpper(token)},
		"more":            {"Bearer " + token + "a"},
		"as the user":     {basic(wrong, "x-oauth-basic")},
		"both":            {basic(token, wrong)},
		"no base64":       {"Basic !!!" + token},
		"URL base64":      {"Basic " + base64.URLEncoding.EncodeToString([]byte("\xff\xfe:x"))},
		"no colon":        {"Basic " + base64.StdEncoding.EncodeToString([]byte(token))},
		"NUL":             {basic("a\x00b", token)},
		"newline":         {basic("a\r\nX-User: root", token)},
		"no UTF-8":        {basic("\xff", token)},
		"NUL in password": {basic("a", token+"\x00")},
		"digest":          {"Digest username=" + token},
		"two words":       {"Bearer " + token + " " + token},
		"long":            {"Bearer " + strings.Repeat("x", 60<<10)},
		"long base64":     {basic(strings.Repeat("u", 60<<10), token)},
		"no secret":       {"Bearer"},
		"Basic alone":     {"Basic"},
		"two":             {"Bearer " + token, "Bearer " + token},
	} {
		w.Auth.guesses = newGuesses(0, w.o.Now)
		want := fault.Unauthenticated
		if name == "two" {
			want = fault.Invalid
		}
		id, err := w.who(headers...)
		if !fault.Is(err, want) || !id.Anonymous() {
			t.Errorf("%s: identity = %+v, error = %v, want kind %v", name, id, err, want)
		}
		if err != nil && strings.Contains(err.Error(), token[4:20]) {
			t.Errorf("%s: error = %v, want one without the token", name, err)
		}
	}
}

func TestRedact(t *testing.T) {
	t.Parallel()
	token := newToken()
	for text, want := range map[string]string{
		"/team/app":                          "/team/app",
		"/" + token + "/x":                   "/phk_" + strings.Repeat("*", 45) + "/x",
		token[:20]:                           "phk_" + strings.Repeat("*", 16),
		"a" + token + "@h phk_ " + token[:8]: "aphk_" + strings.Repeat("*", 45) + "@h phk_ phk_****",
	} {
		if got := Redact(text); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}

// TestMay checks the permissions of callers by rules, by the scope of a token, and without either.
func TestMay(t *testing.T) {
	t.Parallel()
	alice := Identity{Name: "alice", By: ByKey}
	ci := Identity{Name: "ci", By: ByToken, Grant: &Grant{Operation: Write}}
	reader := Identity{Name: "reader", By: ByToken, Grant: &Grant{Operation: Read}}
	narrow := Identity{Name: "narrow", By: ByToken, Grant: &Grant{Operation: Write,
		Repositories: mustPatterns(t, "team/app")}}
	table := rules(t,
		"mallory ** none",
		"anonymous pub/secret none",
		"anonymous pub/** read",
		"* pub/** write",
		"token:ci team/** write",
		"key:alice team/locked read",
		"alice,narrow,reader team/** admin",
		"key:ci own/** admin",
	)
	const none, read, denied = "unauthenticated", "not_found", "denied"
	for _, test := range []struct {
		o    Options
		id   Identity
		repo string
		want [3]string // read, write, admin
	}{
		{Options{}, Identity{}, "a", [3]string{none, denied, denied}},
		{Options{OpenUntilKnown: true}, Identity{}, "a", [3]string{"ok", denied, denied}},
		{Options{OpenRead: true}, Identity{}, "a", [3]string{"ok", denied, denied}},
		{Options{}, ci, "a", [3]string{"ok", "ok", denied}},
		{Options{}, alice, "a", [3]string{"ok", "ok", "ok"}},
		{Options{}, narrow, "team/app.git", [3]string{"ok", "ok", denied}},
		{Options{}, narrow, "team/apps", [3]string{read, read, read}},
		{Options{OpenRead: true}, narrow, "team/apps", [3]string{"ok", denied, denied}},

		{Options{Rules: table}, Identity{}, "pub/a", [3]string{"ok", none, none}},
		{Options{Rules: table}, Identity{}, "pub/secret", [3]string{none, none, none}},
		{Options{Rules: table, OpenRead: true}, Identity{}, "pub/secret", [3]string{none, none, none}},
		{Options{Rules: table, OpenRead: true}, Identity{}, "other", [3]string{"ok", none, none}},
		{Options{Rules: table, OpenUntilKnown: true}, Identity{}, "other", [3]string{none, none, none}},
		{Options{Rules: table}, Identity{}, "team/app", [3]string{none, none, none}},
		{Options{Rules: table}, alice, "pub/secret", [3]string{"ok", "ok", denied}},
		{Options{Rules: table}, alice, "team/app", [3]string{"ok", "ok", "ok"}},
		{Options{Rules: table}, alice, "team/locked.git", [3]string{"ok", denied, denied}},
		{Options{Rules: table}, Identity{Name: "alice", By: ByToken}, "team/locked", [3]string{"ok", "ok", "ok"}},
		{Options{Rules: table}, alice, "other", [3]string{read, read, read}},
		{Options{Rules: table}, ci, "team/x/y", [3]string{"ok", "ok", denied}},
		{Options{Rules: table}, ci, "own/x", [3]string{read, read, read}},
		{Options{Rules: table}, reader, "team/app", [3]string{"ok", denied, denied}},
		{Options{Rules: table}, narrow, "team/other", [3]string{read, read, read}},
		{Options{Rules: table}, narrow, "pub/a", [3]string{"ok", denied, denied}}, // as anybody
		{Options{Rules: table}, Identity{Name: "mallory", By: ByKey}, "team/app", [3]string{read, read, read}},
		{Options{Rules: table}, Identity{Name: "mallory", By: ByKey}, "pub/a", [3]string{"ok", denied, denied}},
	} {
		w := newWorld(t, test.o)
		for op := Read; op <= Admin; op++ {
			err := w.May(context.Background(), test.id, repoPath(t, test.repo), op)
			if says(err) != test.want[op] {
				t.Errorf("%s %s (by %s) on %s: %v, want %s", op, test.id.Name, test.id.By, test.repo, err, test.want[op])
			}
			if says(err) == read && err.Error() != NoRepository(repoPath(t, test.repo)).Error() {
				t.Error(err)
			}
		}
		reads := w.Reader(context.Background(), test.id)
		may := []bool{true}
		if reads != nil {
			may, _ = reads([]git.RepoPath{repoPath(t, test.repo)})
		}
		if may[0] != (test.want[Read] == "ok") {
			t.Errorf("Reader(%s)(%s) = %v, want %v", test.id.Name, test.repo, may[0], !may[0])
		}
	}
}

func mustPatterns(t *testing.T, list ...string) []Pattern {
	t.Helper()
	all, err := ParsePatterns(list)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestOpenUntilThereIsAToken(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{OpenUntilKnown: true})
	may := func() error { return w.May(context.Background(), Identity{}, repoPath(t, "a"), Read) }
	if err := may(); err != nil {
		t.Errorf("may error = %v, want none", err)
	}
	w.token("ci", Read)
	if err := may(); !fault.Is(err, fault.Unauthenticated) {
		t.Errorf("may error = %v, want kind %v", err, fault.Unauthenticated)
	}
}

// TestForeignHosts: without known callers, only requests for the machine itself are open. A web page cannot read by DNS
// rebinding. Where something else than the loopback address permits to read, the host does not matter.
func TestForeignHosts(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		o       Options
		covered bool   // by an origin
		foreign string // result for a foreign host
	}{
		"loopback":          {Options{OpenUntilKnown: true}, false, "denied"},
		"public":            {Options{OpenUntilKnown: true, OpenRead: true}, false, "ok"},
		"rules":             {Options{OpenUntilKnown: true, Rules: rules(t, "anonymous ** read")}, false, "ok"},
		"origin, not its":   {Options{OpenUntilKnown: true}, true, "denied"},
		"no loopback":       {Options{}, false, "unauthenticated"},
		"rules that forbid": {Options{OpenUntilKnown: true, Rules: rules(t, "anonymous ** none")}, false, "unauthenticated"},
	} {
		w := newWorld(t, test.o)
		if test.covered {
			w = newOriginWorld(t, newForge(), test.o)
		}
		for host, want := range map[string]string{
			"localhost:8080": "", "127.0.0.1": "", "[::1]:80": "", "": "", // "": as if by the address alone
			"evil.example": test.foreign, "evil.example:8080": test.foreign, "127.0.0.1.evil.example": test.foreign,
		} {
			repo := repoPath(t, "own/app")
			if want == "" {
				want = says(w.May(context.Background(), Identity{}, repo, Read))
			}
			id, err := w.HTTP(&http.Request{RemoteAddr: "127.0.0.1:1234", Host: host})
			if err == nil {
				readable := []bool{true}
				if all := w.Reader(context.Background(), id); all != nil {
					readable, _ = all([]git.RepoPath{repo})
				}
				if readable[0] != (want == "ok") {
					t.Errorf("%s: for host %q: a search may read: %v, want %v", name, host, readable[0], want == "ok")
				}
				err = w.May(context.Background(), id, repo, Read)
			}
			if says(err) != want || want == "denied" && !strings.Contains(err.Error(), "token create") {
				t.Errorf("%s: for host %q: %v, want %s", name, host, err, want)
			}
		}
	}
}

func TestHoldsToken(t *testing.T) {
	t.Parallel()
	token := newToken()
	for text, want := range map[string]bool{
		"": false, "phk_": false, token: true, "a/" + token + "/b": true, "phk_" + token: true, token[1:]: false,
		token[:48]:         false,
		token[:20] + token: true, strings.Repeat("phk_", 1000): false,
	} {
		if HoldsToken(text) != want {
			t.Errorf("%.100s: %v", text, !want)
		}
	}
}

func TestKeysAreCallersToo(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{OpenUntilKnown: true,
		Authenticators: []Authenticator{&Keys{o: KeyOptions{Authorized: "keys"}}}})
	if err := w.May(context.Background(), Identity{}, repoPath(t, "a"), Read); !fault.Is(err, fault.Unauthenticated) ||
		!w.Configured() {
		t.Errorf("May error = %v, want kind %v", err, fault.Unauthenticated)
	}
}

// TestLastTokenRevoked: what needed a token is not for everybody once the last one is gone.
func TestLastTokenRevoked(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{OpenUntilKnown: true})
	may := func() string { return says(w.May(context.Background(), Identity{}, repoPath(t, "a"), Read)) }
	if got := may(); got != "ok" {
		t.Errorf("before the first token: result = %s, want ok", got)
	}
	w.token("ci", Read)
	if got := may(); got != "unauthenticated" {
		t.Errorf("with a token: result = %s, want unauthenticated", got)
	}
	if _, err := w.file.Revoke("ci"); err != nil {
		t.Fatal(err)
	}
	if got := may(); got != "unauthenticated" || !w.Configured() {
		t.Errorf("after its revocation: result = %s, want unauthenticated", got)
	}
}
