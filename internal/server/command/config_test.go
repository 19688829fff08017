package command

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/server/config"
)

// manyMistakes has a mistake on each line that ends with "# !".
const manyMistakes = `rot = "x"         # !
[http]
adress = "x"          # !
idle_timeout = 30     # !
max_header = 1        # !
[cache]
max_bytes = "many"    # !
[lanes]
cold = -1             # !
[[auth.rule]]
who = ["alice", "a:b:c"] # !
repositories = ["team/**", "a//b"] # !
may = "rule"          # !
[[auth.rule]]
who = ["anonymous"]
repositories = ["**"]
may = "write"
wo = 3                # !
[[node]]
name = "a b"          # !
address = "x"
[[node]]
name = "b"
address = "b"         # !
weight = 5000         # !
[[route]]
prefix = "team"
nodes = ["c"]         # !
[[webhook]]
name = "w"
url = "ftp://x"       # !
events = [
  "never",
]
[[app.pool]]
name = "p"
share = 50            # !
workers = ["nonsense"] # !
`

func TestEveryMistakeIsReported(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "packhorse.toml")
	if err := os.WriteFile(file, []byte(manyMistakes), 0o600); err != nil {
		t.Fatal(err)
	}
	var want []int
	for i, line := range strings.Split(manyMistakes, "\n") {
		if strings.HasSuffix(line, "# !") {
			want = append(want, i+1)
		}
	}
	want = append(want, 14, 32) // the second rule as a whole, and webhook.events
	slices.Sort(want)
	code, out, errs := runMain("config", "check", "--json", file)
	var report struct {
		Good     bool
		Findings []config.Mistake
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil || code != exitUsage || report.Good {
		t.Fatalf("%d %v %s", code, err, out)
	}
	var got []int
	for _, m := range report.Findings {
		if m.Line == 0 || m.File != file || m.Warning {
			t.Errorf("a mistake without a place: %+v", m)
		}
		got = append(got, m.Line)
	}
	if got = slices.Compact(got); !slices.Equal(got, want) {
		t.Errorf("mistakes on lines %d, want %d\n%s", got, want, errs)
	}
	// A server says the same.
	_, _, atStart := runMain("serve", "--root", dir, "--config", file)
	for line := range strings.Lines(errs) {
		if strings.HasPrefix(line, "packhorse: "+file) && !strings.Contains(atStart, line) {
			t.Errorf("a server does not say %s", line)
		}
	}
}

func TestWarnings(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	makeRepository(t, filepath.Join(root, "team/app.git"))
	if err := os.WriteFile(filepath.Join(root, "team/app.git/HEAD"), []byte("ref: refs/heads/main\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	expired, expiredKey := makeCertificate(t, t.TempDir(), -time.Hour)
	soon, soonKey := makeCertificate(t, t.TempDir(), 100*time.Hour)
	good, goodKey := makeCertificate(t, t.TempDir(), 1000*time.Hour)
	rule := func(pattern string) string {
		return fmt.Sprintf("[[auth.rule]]\nwho = [\"*\"]\nrepositories = [%q]\nmay = \"read\"\n", pattern)
	}
	hook := func(url string) string { return fmt.Sprintf("[[webhook]]\nname = \"w\"\nurl = %q\n", url) }
	tls := func(cert, key string) string { return fmt.Sprintf("[http]\ntls_cert = %q\ntls_key = %q\n", cert, key) }
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	byRules := fmt.Sprintf("[[mirror]]\nfrom = \"http://127.0.0.1:1/\"\nauth = \"rules\"\ntoken_file = %q\n", token)
	for _, test := range []struct{ text, want string }{
		{tls(expired, expiredKey), ":3: warning: http.tls_cert: " + expired + ": the certificate expired on "},
		{tls(soon, soonKey), "in 4 days; renew it"},
		{tls(good, goodKey), ""},
		{rule("team/*"), ""},
		{rule("**"), ""},
		{rule("Team/*"), `"Team/*" matches no repository`},
		{strings.Replace(rule("Team/*"), "read", "none", 1), ""}, // ignores case
		{rule("tem/**"), `:4: warning: auth.rule.repositories: "tem/**" matches no repository below ` + root},
		{"[[mirror]]\nfrom = \"http://127.0.0.1:1/\"\n" + rule("127.0.0.1/team/*"), ""},
		{hook("http://127.0.0.1:1/x"),
			`:4: warning: webhook "w" cannot be delivered: its host only has addresses of a private network`},
		{hook("http://no-such-host.invalid/x"), "the host no-such-host.invalid has no address"},
		{hook("http://127.0.0.1:1/x") + "allow_private = true\n", ""},
		{"[[mirror]]\nfrom = \"http://127.0.0.1:1/\"\n", ""},
		{"[[mirror]]\nfrom = \"http://no-such-host.invalid/\"\n",
			`:3: warning: mirror "http://no-such-host.invalid/" cannot be reached`},
		{byRules, ""},
		{"http.public_read = true\n" + byRules,
			`:5: warning: mirror "http://127.0.0.1:1/": with http.public_read everybody can read`},
		{"[auth.hook]\nurl = \"http://no-such-host.invalid/\"\n", "auth.hook.url: the hook is unreachable"},
		{"push.enabled = false\nmaintenance.enabled = false\n[auth.origin]\nurl = \"http://no-such-host.invalid/\"\n",
			"auth.origin.url: the forge is unreachable"},
	} {
		file := filepath.Join(t.TempDir(), "packhorse.toml")
		if err := os.WriteFile(file, fmt.Appendf(nil, "root = %q\n%s", root, test.text), 0o600); err != nil {
			t.Fatal(err)
		}
		code, out, errs := runMain("config", "check", file)
		if code != 0 || (errs == "") != (test.want == "") || !strings.Contains(errs, test.want) {
			t.Errorf("%s\nexits with %d: %s%s; want %q", test.text, code, out, errs, test.want)
		}
	}
	file := filepath.Join(t.TempDir(), "packhorse.toml")
	if err := os.WriteFile(file, fmt.Appendf(nil, "root = %q\n%sallow_private = true\n", root,
		hook("http://127.0.0.1:1/x")), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, errs := runMain("config", "check", "--connect", file); !strings.Contains(errs, "refused") {
		t.Errorf("with --connect: %s", errs)
	}
}

// TestCheckOfSeveralFiles: of the files that one table names each that is missing is reported.
func TestCheckOfSeveralFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "packhorse.toml")
	text := fmt.Sprintf("root = %q\n[storage]\nlisten = \"127.0.0.1:9100\"\ntls_cert = \"/nope/cert\"\ntls_key = "+
		"\"/nope/key\"\n"+
		"client_ca = \"/nope/ca\"\nsecret_file = \"/nope/secret\"\n[push.fsck]\nbadZone = \"warn\"\nbadDate = \"off\"\n", dir)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, errs := runMain("config", "check", "--role", "storage", file)
	for _, want := range []string{"/nope/cert", "/nope/ca", "/nope/secret", "badZone", "badDate"} {
		if !strings.Contains(errs, want) {
			t.Errorf("no line about %s:\n%s", want, errs)
		}
	}
}

// makeCertificate writes a certificate that is valid for so long from now, and its key.
func makeCertificate(t *testing.T, dir string, valid time.Duration) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"},
		DNSNames:  []string{"localhost"},
		NotBefore: now.Add(min(-time.Hour, valid-time.Hour)), NotAfter: now.Add(valid)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	pkcs, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for file, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der},
		key: {Type: "PRIVATE KEY", Bytes: pkcs}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

func makeRepository(t *testing.T, dir string) {
	t.Helper()
	for _, name := range []string{"objects", "refs"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "HEAD"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestConfigInit(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "packhorse.toml")
	if code, out, errs := runMain("config", "init", file); code != exitOK || !strings.Contains(out, "wrote "+file) {
		t.Fatalf("got %d %s%s, want 0", code, out, errs)
	}
	if code, out, errs := runMain("config", "check", "--values-only", file); code != exitOK {
		t.Errorf("config check of the file: got %d %s%s, want 0", code, out, errs)
	}
	if code, _, errs := runMain("config", "init", file); code != exitFailed || !strings.Contains(errs, "exists already") {
		t.Errorf("a file that exists: got %d %s, want %d", code, errs, exitFailed)
	}
	for _, args := range [][]string{{"config", "init"}, {"config", "init", "-"}} {
		if code, out, _ := runMain(args...); code != exitOK || out != config.Starter {
			t.Errorf("%q: got %d %s", args, code, out)
		}
	}
}
