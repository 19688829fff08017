package auth

import (
	"context"
	"crypto/rand"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// failed reports whether the gauge of a source is 1.
func failed(m *Metrics, name string) bool {
	return testutil.ToFloat64(m.sources.WithLabelValues(name)) == 1
}

// checkSource runs the readiness check of a source.
func checkSource(s *Sources, name string) error {
	for _, one := range s.List() {
		if one.Name == name {
			return one.Check()
		}
	}
	return os.ErrNotExist
}

// TestTokenFileThatIsLost removes or damages the token file. That never gives access, and a valid token is not reported
// as wrong.
func TestTokenFileThatIsLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{OpenUntilKnown: true})
	anonymous := func() string {
		return says(w.May(context.Background(), Identity{}, repoPath(t, "a"), Read))
	}
	if got := anonymous(); got != "ok" {
		t.Fatalf("before the first token: result = %s, want ok", got)
	}
	w.token("gone", Read)
	token := w.token("ci", Read)
	older, err := os.ReadFile(w.file.path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.file.Revoke("gone"); err != nil {
		t.Fatal(err)
	}
	w.token("later", Read)
	good, err := os.ReadFile(w.file.path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.who("Bearer " + token); err != nil {
		t.Fatal(err)
	}
	again := func() { // after a failed read the next one is made after a second
		w.clock = w.clock.Add(time.Second)
	}
	put := func(text []byte) func() {
		return func() {
			if err := w.file.write(w.file.path, text); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, lose := range map[string]func(){
		"gone":        func() { os.Remove(w.file.path) },
		"a directory": func() { os.Remove(w.file.path); os.Mkdir(w.file.path, 0o700) },
		// of which an open waits for a writer
		"a named pipe": func() { os.Remove(w.file.path); unix.Mkfifo(w.file.path, 0o600) },
		"its own gone": func() { os.Rename(filepath.Dir(w.file.path), filepath.Dir(w.file.path)+".away") },
		"empty":        put(nil),
		"half of it":   put(good[:len(good)/2]),
		"older":        put(older),
		"another":      put([]byte(`{"version": 1, "last": 0, "tokens": []}`)),
	} {
		w.log.Reset()
		lose()
		for range 3 {
			again()
			if _, err := w.who("Bearer " + token); !fault.Is(err, fault.Unavailable) || fault.RetryAfter(err) <= 0 {
				t.Errorf("%s: error with a valid token = %v, want kind %v with Retry-After", name, err, fault.Unavailable)
			}
			if got := anonymous(); got != "unauthenticated" || !w.Configured() {
				t.Errorf("%s: result for anonymous callers = %s, want unauthenticated", name, got)
			}
		}
		if err := checkSource(w.Sources(), SourceTokens); err == nil || !failed(w.o.Metrics, SourceTokens) {
			t.Errorf("%s: the source works, want a failure", name)
		}
		if text := w.log.String(); strings.Count(text, "level=ERROR") != 1 {
			t.Errorf("%s: %d errors logged, want 1:\n%s", name, strings.Count(text, "level=ERROR"), text)
		}
		os.Rename(filepath.Dir(w.file.path)+".away", filepath.Dir(w.file.path))
		if info, err := os.Stat(w.file.path); err == nil && info.IsDir() {
			os.Remove(w.file.path)
		}
		put(good)()
		again()
		if _, err := w.who("Bearer " + token); err != nil {
			t.Errorf("after %s: error with a valid token = %v, want none", name, err)
		}
		if err := checkSource(w.Sources(), SourceTokens); err != nil || failed(w.o.Metrics, SourceTokens) {
			t.Errorf("after %s: status of the source = %v, want nil", name, err)
		}
	}
	// Revoking the last token is not a failure.
	for _, name := range []string{"ci", "later"} {
		if _, err := w.file.Revoke(name); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.who("Bearer " + token); !fault.Is(err, fault.Unauthenticated) {
		t.Errorf("who error = %v, want kind %v", err, fault.Unauthenticated)
	}
	if err := checkSource(w.Sources(), SourceTokens); err != nil {
		t.Errorf("all tokens revoked: status of the source = %v, want nil", err)
	}
	if got := anonymous(); got != "unauthenticated" {
		t.Errorf("all tokens revoked: result for anonymous callers = %s, want unauthenticated", got)
	}
}

func TestTokenFileAtTheStart(t *testing.T) {
	t.Parallel()
	f := NewTokenFile(filepath.Join(t.TempDir(), "tokens"))
	if err := f.Check(false); err != nil {
		t.Errorf("Check(false) without a file = %v, want nil", err)
	}
	if err := f.Check(true); err == nil || !strings.Contains(err.Error(), "packhorse token create") {
		t.Errorf("Check(true) without a file = %v, want a hint at packhorse token create", err)
	}
	if _, _, err := f.Create(TokenRequest{Name: "ci"}, time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := f.Check(true); err != nil {
		t.Errorf("Check error = %v, want none", err)
	}
	for _, text := range []string{"", "{", `{"version": 1, "last": 1, "tokens": [{"id": "x/1"}]}`} {
		if err := os.WriteFile(f.path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := f.Check(false); err == nil {
			t.Errorf("Check with the file %q = nil, want an error", text)
		}
	}
	if err := os.Rename(f.path, f.usedPath()); err != nil {
		t.Fatal(err)
	}
	if err := f.Check(false); err == nil || !strings.Contains(err.Error(), "is missing and existed earlier") {
		t.Errorf("Check without the earlier file = %v, want an error that it is missing", err)
	}
	if _, _, err := f.Create(TokenRequest{Name: "x", Scope: Read}, time.Now()); err == nil ||
		!strings.Contains(err.Error(), "is missing and existed earlier") {
		t.Errorf("Create without the earlier file: error = %v, want one that it is missing", err)
	}
	if all, err := f.list(); err == nil || !strings.Contains(err.Error(), "is missing and existed earlier") {
		t.Errorf("List without the earlier file = %v, %v, want an error that it is missing", all, err)
	}
}

// TestRulesThatVanish reloads a configuration without its rules. The previous rules stay in force.
func TestRulesThatVanish(t *testing.T) {
	t.Parallel()
	table := rules(t, "ci team/** read")
	w := newWorld(t, Options{Rules: table, OpenUntilKnown: true})
	ci := Identity{Name: "ci", By: ByToken, Grant: &Grant{Operation: Admin}}
	if err := w.CheckRules(nil); !fault.Is(err, fault.Invalid) || !failed(w.o.Metrics, SourceRules) ||
		checkSource(w.Sources(), SourceRules) == nil {
		t.Errorf("CheckRules(nil) = %v, want kind %v and a failing source", err, fault.Invalid)
	}
	for repo, want := range map[string]string{"team/a": "denied", "other": "not_found"} {
		if err := w.May(context.Background(), ci, repoPath(t, repo), Write); says(err) != want {
			t.Errorf("%s: %v, want %s", repo, err, want)
		}
	}
	if err := w.CheckRules(table); err != nil {
		t.Errorf("CheckRules error = %v, want none", err)
	}
	w.SetRules(table)
	if failed(w.o.Metrics, SourceRules) || checkSource(w.Sources(), SourceRules) != nil {
		t.Error("the source of rules fails, want it to work again")
	}
	none := newWorld(t, Options{})
	if err := none.CheckRules(nil); err != nil {
		t.Errorf("CheckRules(nil) without earlier rules = %v, want nil", err)
	}
}

// TestHookThatFails: it is a source that fails, and is asked again without a request of a client.
func TestHookThatFails(t *testing.T) {
	t.Parallel()
	w, app := newHookWorld(t, Options{}, HookOptions{}, fails)
	ask := func(repo string) error {
		return w.May(context.Background(), Identity{}, repoPath(t, repo), Read)
	}
	for i := range failuresToPause {
		if failed(w.o.Metrics, SourceHook) || checkSource(w.Sources(), SourceHook) != nil {
			t.Fatalf("the source fails after %d failures, want %d", i, failuresToPause)
		}
		if err := ask("a"); !fault.Is(err, fault.Unavailable) {
			t.Errorf("ask error = %v, want kind %v", err, fault.Unavailable)
		}
	}
	if checkSource(w.Sources(), SourceHook) == nil || !failed(w.o.Metrics, SourceHook) {
		t.Error("the source works, want a failure")
	}
	app.answers(func(w http.ResponseWriter, q question) {
		if q.Question != authorize || q.Repository == "" || q.Operation != "read" || q.Client == "" {
			t.Errorf("question = %+v, want authorize of a read", q)
		}
		io.WriteString(w, `{"allow": false}`)
	})
	before := app.questions()
	checkSource(w.Sources(), SourceHook)
	w.o.Hook.trials.Wait()
	if app.questions() != before {
		t.Error("a question during the pause, want none")
	}
	w.clock = w.clock.Add(hookPause)
	checkSource(w.Sources(), SourceHook)
	w.o.Hook.trials.Wait()
	if err := checkSource(w.Sources(), SourceHook); err != nil || failed(w.o.Metrics, SourceHook) ||
		app.questions() != before+1 {
		t.Errorf("status = %v, questions = %d, want nil and 1", err, app.questions()-before)
	}
}

// TestKeyFilesThatAreLost removes or damages key files. Keys in them are neither accepted nor reported as unknown, also
// not by another authenticator.
func TestKeyFilesThatAreLost(t *testing.T) {
	t.Parallel()
	alice, bob, ca := newSSHKey(t), newSSHKey(t), newSSHKey(t)
	w := newKeyWorld(t)
	w.write("keys/alice", line(alice))
	w.write("keys/carol", "cert-authority "+line(bob))
	w.write("ca", line(ca))
	w.write("revoked", "# nobody yet", ssh.FingerprintSHA256(newSSHKey(t).PublicKey()))
	metrics := NewMetrics(nil)
	sources := NewSources(metrics, slog.New(slog.NewTextHandler(&w.log, nil)))
	w.sources = sources
	w.load()
	sign := func(by ssh.Signer, name string) ssh.PublicKey {
		c := &ssh.Certificate{Key: alice.PublicKey(), CertType: ssh.UserCert, ValidPrincipals: []string{name},
			ValidBefore: ssh.CertTimeInfinity}
		if err := c.SignCert(rand.Reader, by); err != nil {
			t.Fatal(err)
		}
		return c
	}
	callers := map[string]ssh.PublicKey{"alice": alice.PublicKey(), "dave": sign(ca, "dave"), "carol": sign(bob, "carol")}
	check := func(step string, in ...string) {
		t.Helper()
		w.now = w.now.Add(keyInterval)
		for name, key := range callers {
			id, err := w.identify("git", key, someAddress)
			want := strings.Contains(" "+strings.Join(in, " ")+" ", " "+name+" ")
			if want && (err != nil || id.Name != name) || !want && !fault.Is(err, fault.Unavailable) {
				t.Errorf("%s: identity of %s = %q, error = %v, want accepted: %v", step, name, id.Name, err, want)
			}
		}
	}
	path := func(name string) string { return filepath.Join(w.dir, name) }
	move := func(from, to string) func() {
		return func() {
			if err := os.Rename(path(from), path(to)); err != nil {
				t.Fatal(err)
			}
		}
	}
	empty := func(name string) func() {
		return func() {
			if err := os.WriteFile(path(name), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, step := range []struct {
		name, source string
		lose, back   func()
		in           []string // who still comes in
	}{
		{"no directory", SourceAuthorizedKeys, move("keys", "away"), move("away", "keys"), []string{"dave"}},
		{"an empty directory", SourceAuthorizedKeys,
			func() { move("keys", "away")(); os.Mkdir(path("keys"), 0o700); w.write("keys/.hidden", "x") },
			func() { os.RemoveAll(path("keys")); move("away", "keys")() }, []string{"dave"}},
		{"garbage", SourceAuthorizedKeys, func() { w.write("keys/alice", "garbage"); w.write("keys/carol", "garbage") },
			func() { w.write("keys/alice", line(alice)); w.write("keys/carol", "cert-authority "+line(bob)) }, []string{"dave"}},
		{"no authorities", SourceUserCA, move("ca", "away"), move("away", "ca"), []string{"alice"}},
		{"empty authorities", SourceUserCA, empty("ca"), func() { w.write("ca", line(ca)) }, []string{"alice"}},
		{"no list of revoked keys", SourceRevokedKeys, move("revoked", "away"), move("away", "revoked"), nil},
		{"an empty list of revoked keys", SourceRevokedKeys, empty("revoked"), func() { w.write("revoked", "# nobody") },
			nil},
		{"a named pipe", SourceRevokedKeys, func() { os.Remove(path("revoked")); unix.Mkfifo(path("revoked"), 0o600) },
			func() { os.Remove(path("revoked")); w.write("revoked", "# nobody") }, nil},
		{"half a fingerprint", SourceRevokedKeys, func() { w.write("revoked", ssh.FingerprintSHA256(bob.PublicKey())[:30]) },
			func() { w.write("revoked", "# nobody") }, nil},
	} {
		check("before "+step.name, "alice", "carol", "dave")
		w.log.Reset()
		step.lose()
		for range 3 {
			check(step.name, step.in...)
		}
		if !failed(metrics, step.source) || checkSource(sources, step.source) == nil {
			t.Errorf("%s: the source works, want a failure", step.name)
		}
		if text := w.log.String(); strings.Count(text, "an identity source failed") != 1 ||
			strings.Count(text, "ignored") > 2 {
			t.Errorf("%s: more than one log line for the failure:\n%s", step.name, text)
		}
		// The next authenticator is not asked about a key of a failing file.
		if _, err := w.identify("git", alice.PublicKey(), someAddress); isNotKnown(err) {
			t.Errorf("%s: the next authenticator is asked about a key of a failing file, want not", step.name)
		}
		step.back()
		check("after "+step.name, "alice", "carol", "dave")
		if failed(metrics, step.source) {
			t.Errorf("after %s: the source fails, want it to work", step.name)
		}
	}
	// A comment states that a file without keys is intended.
	os.Remove(path("keys/carol"))
	w.write("keys/alice", "# left")
	w.now = w.now.Add(keyInterval)
	w.is("git", alice.PublicKey(), someAddress, "", "unknown key")
}
