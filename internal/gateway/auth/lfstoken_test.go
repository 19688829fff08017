package auth

import (
	"bytes"
	"context"
	"crypto/rand"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
)

func bearer(authorization string) *http.Request {
	return &http.Request{Header: http.Header{"Authorization": {authorization}}, RemoteAddr: "192.0.2.1:1"}
}

func TestLFSTokens(t *testing.T) {
	t.Parallel()
	now, secret := time.Unix(1e9, 0), "the first key"
	app, other := repoPath(t, "team/app"), repoPath(t, "team/other")
	alice := Identity{Name: "alice", By: ByKey, Credential: "SHA256:abc", Address: "192.0.2.9"}
	key := newSSHKey(t).PublicKey()
	tokens := NewLFSTokens(func() string { return secret }, func(_ context.Context, login string, k ssh.PublicKey,
		_ netip.Addr) (Identity, bool, error) {
		if login != "git" || !bytes.Equal(k.Marshal(), key.Marshal()) {
			t.Errorf("identify(%q, %v), want git and the key of the token", login, k)
		}
		return alice, false, nil
	}, func() time.Time { return now })
	token := tokens.New("git", key, app, Read)
	if anonymous := tokens.New("git", nil, app, Read); anonymous != "" {
		t.Errorf("token of an anonymous caller = %q, want none", anonymous)
	}
	toApp, toOther := target{components: pathOf(app)}, target{components: pathOf(other)}
	for _, grant := range []*Grant{nil, {Operation: Write}, {Repositories: []Pattern{{components: pathOf(app)}}}} {
		alice.Grant = grant
		for _, path := range []string{"team/app", "team/app.git"} {
			id, left, ok, err := tokens.Identify(bearer(token), repoPath(t, path))
			if !ok || err != nil || left != LFSTokenLife || id.Name != "alice" || id.By != ByKey ||
				id.Credential != "SHA256:abc" || id.Address != "192.0.2.1" ||
				!id.Grant.allows(toApp, Read) || id.Grant.allows(toApp, Write) ||
				id.Grant.allows(toOther, Read) != grant.allows(toOther, Read) {
				t.Errorf("Identify for %s = %+v, %s, %t, %v, want alice who may read it", path, id, left, ok, err)
			}
		}
	}
	wrong := func(name, authorization string, repo git.RepoPath) {
		t.Helper()
		if id, _, ok, err := tokens.Identify(bearer(authorization), repo); !ok || !fault.Is(err, fault.Unauthenticated) ||
			!id.Anonymous() {
			t.Errorf("%s: Identify = %+v, %t, %v, want Unauthenticated", name, id, ok, err)
		}
	}
	wrong("another repository", token, other)
	for i := len("Bearer phk_"); i < len(token); i += 7 {
		changed := []byte(token)
		if changed[i]++; changed[i] == '8' || changed[i] == '{' {
			changed[i] = 'a'
		}
		wrong("a changed token", string(changed), app)
	}
	for _, text := range []string{"Bearer alice", "Basic abc", "Bearer " + newToken(), ""} {
		if _, _, ok, err := tokens.Identify(bearer(text), app); ok || err != nil {
			t.Errorf("Identify(%q) = %t, %v, want that it is another credential", text, ok, err)
		}
	}
	if _, _, err := fromHeader(bearer(token).Header); !fault.Is(err, fault.Unauthenticated) {
		t.Errorf("error of the token for other requests = %v, want Unauthenticated", err)
	}
	if text := Redact("error: " + token); strings.Contains(text, token[len("Bearer phk_"):]) ||
		!strings.Contains(text, "***") {
		t.Errorf("Redact = %q, want the token removed", text)
	}
	now = now.Add(LFSTokenLife)
	wrong("expired", token, app)
	now, secret = now.Add(-time.Minute), "the second key"
	wrong("another key", token, app)
}

// A token is good for nothing when its key is: after it was removed or revoked, has expired, or from another address.
func TestLFSTokensOfKeys(t *testing.T) {
	t.Parallel()
	w := newKeyWorld(t)
	key, bound, ca := newSSHKey(t), newSSHKey(t), newSSHKey(t)
	w.write("ca", line(ca))
	w.write("keys/alice", line(key), `from="192.0.2.0/24",expiry-time="20991231Z" `+line(bound))
	w.load()
	a := New(Options{Authenticators: []Authenticator{w.keys}, Sources: NewSources(NewMetrics(nil), discard)})
	defer a.Close()
	tokens := NewLFSTokens(func() string { return "a secret" }, a.Key, func() time.Time { return time.Unix(1e9, 0) })
	app := repoPath(t, "team/app")
	is := func(what, token, address, name string) {
		t.Helper()
		r := bearer(token)
		r.RemoteAddr = address + ":1"
		id, _, ok, err := tokens.Identify(r, app)
		if !ok || id.Name != name || (err == nil) != (name != "") || err != nil && !fault.Is(err, fault.Unauthenticated) {
			t.Errorf("%s: Identify = %q, %t, %v, want %q", what, id.Name, ok, err, name)
		}
	}
	token, ofBound := tokens.New("git", key.PublicKey(), app, Read), tokens.New("git", bound.PublicKey(), app, Read)
	is("a key", token, "198.51.100.1", "alice")
	is("a key for an address", ofBound, "192.0.2.7", "alice")
	is("a key for another address", ofBound, "198.51.100.1", "")
	w.write("keys/alice", `expiry-time="20010101Z" `+line(key))
	is("an expired key", token, "198.51.100.1", "")
	is("a removed key", ofBound, "192.0.2.7", "")
	w.write("keys/alice", line(key))
	w.write("revoked", ssh.FingerprintSHA256(key.PublicKey()))
	is("a revoked key", token, "198.51.100.1", "")
	cert := &ssh.Certificate{Key: newSSHKey(t).PublicKey(), CertType: ssh.UserCert, ValidPrincipals: []string{"bob"},
		ValidBefore: uint64(w.now.Add(time.Minute).Unix())}
	if err := cert.SignCert(rand.Reader, ca); err != nil {
		t.Fatal(err)
	}
	token = tokens.New("git", cert, app, Read)
	is("a certificate", token, "198.51.100.1", "bob")
	w.now = w.now.Add(2 * time.Minute)
	is("an expired certificate", token, "198.51.100.1", "")
}
