package auth

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
)

func newSSHKey(t *testing.T) ssh.Signer {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ssh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func line(key ssh.Signer) string {
	return strings.TrimSuffix(string(ssh.MarshalAuthorizedKey(key.PublicKey())), "\n")
}

// keyWorld are files of keys in a directory, and a clock.
type keyWorld struct {
	t       *testing.T
	dir     string
	now     time.Time
	log     bytes.Buffer
	keys    *Keys
	sources *Sources
}

var someAddress = netip.MustParseAddr("192.0.2.1")

func newKeyWorld(t *testing.T) *keyWorld {
	w := &keyWorld{t: t, dir: t.TempDir(), now: time.Now()}
	if err := os.Mkdir(filepath.Join(w.dir, "keys"), 0o700); err != nil {
		t.Fatal(err)
	}
	w.write("ca", "")
	w.write("revoked", "")
	return w
}

// write writes a file and advances the clock to the next check.
func (w *keyWorld) write(name string, lines ...string) {
	w.t.Helper()
	if err := os.WriteFile(filepath.Join(w.dir, name), []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		w.t.Fatal(err)
	}
	w.now = w.now.Add(keyInterval)
}

func (w *keyWorld) load() *keyWorld {
	w.t.Helper()
	var err error
	w.keys, err = LoadKeys(KeyOptions{
		Authorized: filepath.Join(w.dir, "keys"), Authority: filepath.Join(w.dir, "ca"),
		Revoked: filepath.Join(w.dir, "revoked"), Sources: w.sources,
		Log: slog.New(slog.NewTextHandler(&w.log, nil)), Now: func() time.Time { return w.now },
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return w
}

func (w *keyWorld) identify(login string, key ssh.PublicKey, from netip.Addr) (Identity, error) {
	return w.keys.Identify(w.t.Context(), &Credential{Scheme: ByKey, User: login, Key: key, Address: from.String()})
}

// is holds the answer about a key to a user's name, or to "" and a part of the error.
func (w *keyWorld) is(login string, key ssh.PublicKey, from netip.Addr, name, says string) {
	w.t.Helper()
	id, err := w.identify(login, key, from)
	if id.Name != name || (err == nil) != (name != "") || err != nil && !strings.Contains(err.Error(), says) {
		w.t.Errorf("%q, %v; want %q, %q", id.Name, err, name, says)
	}
}

func TestKeys(t *testing.T) {
	t.Parallel()
	w := newKeyWorld(t)
	alice, bob, shared, gone := newSSHKey(t), newSSHKey(t), newSSHKey(t), newSSHKey(t)
	w.write("keys/alice", "# a comment", "", "restrict,no-pty,environment=\"A=b\" "+line(alice)+" laptop", "garbage",
		line(shared))
	w.write("keys/bob", `from="10.0.0.0/8,!10.1.2.3,2001:db8::/32,198.51.100.*" `+line(bob), line(shared),
		`expiry-time="20200101Z" `+line(gone))
	w.write("keys/.hidden", line(gone))
	w.write("keys/bad name", line(gone))
	w.load()
	w.is("git", alice.PublicKey(), someAddress, "alice", "")
	w.is("bob", alice.PublicKey(), someAddress, "alice", "")
	w.is("git", newSSHKey(t).PublicKey(), someAddress, "", "unknown key")
	w.is("git", gone.PublicKey(), someAddress, "", "expired")
	for address, name := range map[string]string{
		"10.9.9.9": "bob", "10.1.2.3": "", "192.0.2.1": "", "2001:db8::7": "bob", "::ffff:10.1.1.1": "bob",
		"198.51.100.77": "bob", "198.51.101.77": "",
	} {
		w.is("git", bob.PublicKey(), netip.MustParseAddr(address), name, "for this address")
	}
	w.is("git", shared.PublicKey(), someAddress, "", "several users")
	w.is("bob", shared.PublicKey(), someAddress, "bob", "")
	w.is("alice", shared.PublicKey(), someAddress, "alice", "")
	for _, want := range []string{"bad name", "line=4"} {
		if !strings.Contains(w.log.String(), want) {
			t.Errorf("the log does not say %q:\n%s", want, &w.log)
		}
	}
	// Changes apply within a second.
	w.write("keys/alice", line(shared))
	w.is("git", alice.PublicKey(), someAddress, "", "unknown key")
	w.write("revoked", ssh.FingerprintSHA256(shared.PublicKey()))
	w.is("alice", shared.PublicKey(), someAddress, "", "revoked")
	w.write("revoked", "key: "+line(shared))
	w.is("alice", shared.PublicKey(), someAddress, "", "revoked")
	w.write("revoked")
	w.is("alice", shared.PublicKey(), someAddress, "alice", "")
	// Without the list of revoked keys no key is accepted.
	if err := os.Remove(filepath.Join(w.dir, "revoked")); err != nil {
		t.Fatal(err)
	}
	w.now = w.now.Add(keyInterval)
	w.is("alice", shared.PublicKey(), someAddress, "", "cannot read its SSH keys")
	w.write("revoked")
	w.is("alice", shared.PublicKey(), someAddress, "alice", "")
}

func TestLinesThatAreNotUsed(t *testing.T) {
	t.Parallel()
	key := line(newSSHKey(t))
	small, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Skip(err)
	}
	weak, err := ssh.NewPublicKey(&small.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	for text, says := range map[string]string{
		`command="git-shell" ` + key: "command=", `unknown ` + key: "unknown option", `from="host.example" ` +
			key: "host names", `from="" ` + key: "empty",
		`expiry-time="soon" ` + key: "expiry-time", `principals="a" ` + key: "cert-authority", `verify-required ` +
			key: "unknown option",
		"ssh-ed25519 AAAA": "public key", "x": "public key", `from=10.0.0.1 ` + key: "quotes",
		string(ssh.MarshalAuthorizedKey(weak)): "1024 bits",
	} {
		if a, err := parseAuthorized(strings.TrimSpace(text), "alice"); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%.40s: %v, %v; want %q", text, a, err, says)
		}
	}
	if _, err := parseAuthorized(key+" ../x", ""); err == nil {
		t.Error("error for an invalid name as the comment = nil, want one")
	}
	if a, err := parseAuthorized(key+" alice@laptop of hers", ""); err != nil || a.name != "alice@laptop" {
		t.Errorf("line = %v, error = %v, want the name alice@laptop", a, err)
	}
}

func TestCertificates(t *testing.T) {
	t.Parallel()
	w := newKeyWorld(t)
	ca, own, stranger, user := newSSHKey(t), newSSHKey(t), newSSHKey(t), newSSHKey(t)
	w.write("ca", line(ca))
	w.write("keys/carol", "cert-authority "+line(own))
	w.write("keys/dave", `cert-authority,principals="ops" `+line(own))
	w.load()
	sign := func(by ssh.Signer, change func(*ssh.Certificate)) ssh.PublicKey {
		c := &ssh.Certificate{
			Key: user.PublicKey(), CertType: ssh.UserCert, KeyId: "id", Serial: 7, ValidPrincipals: []string{"alice", "staff"},
			ValidAfter: uint64(w.now.Add(-time.Hour).Unix()), ValidBefore: uint64(w.now.Add(24 * time.Hour).Unix()),
		}
		if change != nil {
			change(c)
		}
		if err := c.SignCert(rand.Reader, by); err != nil {
			t.Fatal(err)
		}
		return c
	}
	w.is("git", sign(ca, nil), someAddress, "alice", "")
	w.is("staff", sign(ca, nil), someAddress, "staff", "")
	w.is("git", sign(stranger, nil), someAddress, "", "unknown authority")
	principals := func(names ...string) func(*ssh.Certificate) {
		return func(c *ssh.Certificate) { c.ValidPrincipals = names }
	}
	w.is("git", sign(ca, principals()), someAddress, "", "no principal")
	w.is("git", sign(ca, principals("bad name")), someAddress, "", "not a valid user name")
	w.is("git", sign(ca, func(c *ssh.Certificate) { c.CertType = ssh.HostCert }), someAddress, "", "not for a user")
	w.is("git", sign(ca, func(c *ssh.Certificate) { c.ValidBefore = uint64(w.now.Unix()) }), someAddress, "", "expired")
	w.is("git", sign(ca, func(c *ssh.Certificate) { c.ValidAfter = uint64(w.now.Add(time.Hour).Unix()) }), someAddress, "",
		"not yet valid")
	option := func(name, value string) func(*ssh.Certificate) {
		return func(c *ssh.Certificate) { c.CriticalOptions = map[string]string{name: value} }
	}
	w.is("git", sign(ca, option("force-command", "id")), someAddress, "", "force-command")
	w.is("git", sign(ca, option("source-address", "198.51.100.0/24")), someAddress, "", "for this address")
	w.is("git", sign(ca, option("source-address", "192.0.2.0/24,198.51.100.0/24")), someAddress, "alice", "")
	w.is("git", sign(ca, option("source-address", "")), someAddress, "", "for this address")
	forged := sign(ca, nil).(*ssh.Certificate)
	forged.ValidPrincipals = []string{"root"}
	w.is("git", forged, someAddress, "", "does not verify")
	// An authority of one user's.
	w.is("git", sign(own, principals("carol")), someAddress, "carol", "")
	w.is("git", sign(own, principals("ops")), someAddress, "dave", "")
	w.is("git", sign(own, principals("alice")), someAddress, "", "no principal")
	w.is("alice", sign(own, principals("dave")), someAddress, "", "no principal")
	for text, revoked := range map[string]bool{
		"serial: 7": true, "serial: 5-9": true, "serial: 8": false, "id: id": true, "id: other": false, line(user): true,
		ssh.FingerprintSHA256(ca.PublicKey()): true,
	} {
		w.write("revoked", text)
		if revoked {
			w.is("git", sign(ca, nil), someAddress, "", "revoked")
		} else {
			w.is("git", sign(ca, nil), someAddress, "alice", "")
		}
	}
}

func FuzzAuthorizedKeys(f *testing.F) {
	const key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEuVVOoxQsoKXBQZfXAj0jSqTXVyM2GqGtr7Hc0gJpBk"
	for _, s := range []string{
		key, key + " alice", `restrict,from="10.0.0.0/8,!10.1.*" ` + key, `cert-authority,principals="a,b" ` + key,
		`expiry-time="20300101" ` + key,
		`command="x \" y" ` + key, `from="` + key, `environment="A=b",,` + key,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a, err := parseAuthorized(s, "alice")
		if err != nil {
			return
		}
		if a.key == nil || a.name != "alice" || strings.Contains(s, "command=") && strings.HasPrefix(s, "command=") {
			t.Errorf("parseAuthorized(%q) = %+v, want a key of alice without command=", s, a)
		}
		a.from.match(someAddress)
	})
}

// TestRevokedWhileOthersAreBroken revokes a key while another file is damaged.
func TestRevokedWhileOthersAreBroken(t *testing.T) {
	t.Parallel()
	w := newKeyWorld(t)
	alice, bob := newSSHKey(t), newSSHKey(t)
	w.write("keys/alice", line(alice))
	w.write("keys/bob", line(bob))
	w.load()
	w.write("ca", "garbage")
	w.is("git", alice.PublicKey(), someAddress, "alice", "")
	w.write("revoked", ssh.FingerprintSHA256(alice.PublicKey()))
	w.is("git", alice.PublicKey(), someAddress, "", "revoked")
	w.is("git", bob.PublicKey(), someAddress, "bob", "")
	w.write("revoked", "garbage")
	w.is("git", bob.PublicKey(), someAddress, "", "cannot read its SSH keys")
	w.write("revoked", "")
	w.is("git", alice.PublicKey(), someAddress, "alice", "")
}

func TestMappedNetworks(t *testing.T) {
	t.Parallel()
	p, err := parseAddressPattern("192.0.2.0/24,!::ffff:192.0.2.128/121")
	if err != nil {
		t.Fatal(err)
	}
	for address, want := range map[string]bool{"192.0.2.1": true, "192.0.2.200": false, "::ffff:192.0.2.200": false} {
		if p.match(netip.MustParseAddr(address)) != want {
			t.Errorf("%s: %v", address, !want)
		}
	}
}

// TestOptionsTwice has options that occur twice. The stricter value applies, or the line is invalid.
func TestOptionsTwice(t *testing.T) {
	t.Parallel()
	key := line(newSSHKey(t))
	if a, err := parseAuthorized(`from="10.0.0.1",from="*" `+key, "alice"); err == nil {
		t.Errorf("two from= options = %+v, want an error", a)
	}
	for _, options := range []string{`expiry-time="20200101Z",expiry-time="20990101Z" `,
		`expiry-time="20990101Z",expiry-time="20200101Z" `} {
		a, err := parseAuthorized(options+key, "alice")
		if err != nil || a.expires.Year() != 2020 {
			t.Errorf("%s= %v, %v, want an expiry in 2020", options, a, err)
		}
	}
}
