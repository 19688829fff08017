package e2e

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// TestMirrorSSH clones with an identity token from a mirror that follows an SSH server with its own key. The mirror
// gets an LFS object over HTTPS, after a login over SSH.
func TestMirrorSSH(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("ssh-keygen"); err != nil {
		t.Skip("there is no ssh-keygen")
	}
	dir, issuer := t.TempDir(), newCIIssuer(t)
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	repo := linear(t)
	if err := os.CopyFS(filepath.Join(dir, "forge", "acme", "app.git"), os.DirFS(repo.Dir)); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "mirror", "-f",
		filepath.Join(dir, "key")).CombinedOutput(); err != nil {
		t.Fatalf("ssh-keygen: %v\n%s", err, out)
	}
	content := []byte(strings.Repeat("object of LFS\n", 50_000))
	oid := fmt.Sprintf("%x", sha256.Sum256(content))
	objects := filepath.Join("forge", "acme", "app.git", "lfs", "objects", oid[:2], oid[2:4])
	if err := os.MkdirAll(filepath.Join(dir, objects), 0o700); err != nil {
		t.Fatal(err)
	}
	write(filepath.Join(objects, oid), string(content))
	start := func(args ...string) *serverProcess {
		p, err := startServer(dir, append(gittest.Env(), "GORACE=atexit_sleep_ms=0"), append(args, "--ops", "127.0.0.1:0",
			"--log-format", "json"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			p.cmd.Process.Signal(syscall.SIGTERM)
			if err := p.wait(); err != nil {
				t.Errorf("the server ended: %v\n%s", err, p.logged())
			}
		})
		return p
	}
	write("ca.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: issuer.Certificate().Raw})))
	private, err := x509.MarshalPKCS8PrivateKey(issuer.TLS.Certificates[0].PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	write("tls.key", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})))
	web, err := freeAddress()
	if err != nil {
		t.Fatal(err)
	}
	write("forge.toml", "[lfs]\nurl = \"https://"+web+"\"\n")
	forge := start("serve", "--root", "forge", "--state", "forge-state", "--ssh", "127.0.0.1:0", "--ssh-keys", "key.pub",
		"--config", "forge.toml", "--http", web, "--tls-cert", "ca.pem", "--tls-key", "tls.key")
	at, err := url.Parse(forge.ssh)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "forge-state", "ssh", "ssh_host_ed25519_key"))
	if err != nil {
		t.Fatal(err)
	}
	host, err := ssh.ParsePrivateKey(text)
	if err != nil {
		t.Fatal(err)
	}
	write("known_hosts", "")
	write("mirror.toml", `
[[mirror]]
from = "ssh://git@`+at.Host+`/"
to = "forge"
auth = "rules"
ssh_key = "key"
known_hosts = "known_hosts"
ca = "ca.pem"
lfs_hosts = ["`+web+`"]

[[auth.oidc]]
issuer = "`+issuer.URL+`"
ca = "ca.pem"
audience = "packhorse"
claims = { owner = "acme" }
repositories = ["forge/{repository}"]
`)
	mirror := start("mirror", "--root", "mirrors", "--config", "mirror.toml", "--http", "127.0.0.1:0")
	bearer := func(repository, owner string) string {
		issuer.claims = map[string]any{"iss": issuer.URL, "repository": repository, "owner": owner}
		return "Bearer " + issuer.sign(t, "packhorse")
	}
	clone := func(to, repository, owner string) (string, error) {
		cmd := exec.Command("git", "clone", "--quiet", mirror.http+"/forge/acme/app", filepath.Join(dir, to))
		cmd.Env = append(gittest.Env(), "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=http.extraHeader",
			"GIT_CONFIG_VALUE_0=Authorization: "+bearer(repository, owner))
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := clone("a", "acme/app", "acme"); err == nil || !strings.Contains(out, "is not trusted") {
		t.Errorf("clone from an unknown host: %v, %q, want a refusal with the reason", err, out)
	}
	write("known_hosts", knownhosts.Line([]string{at.Host}, host.PublicKey())+"\n")
	if out, err := clone("b", "acme/app", "acme"); err != nil {
		t.Fatalf("clone: %v\n%s\n%s", err, out, mirror.logged())
	}
	if got, want := gittest.At(t, filepath.Join(dir, "b")).ID("HEAD"), repo.ID("HEAD"); got != want {
		t.Errorf("HEAD of the clone = %v, want %v", got, want)
	}
	object := func(auth string) (int, []byte) {
		r, err := http.NewRequest(http.MethodGet, fmt.Sprintf("%s/forge/acme/app.git/info/lfs/objects/%s/%d", mirror.http,
			oid, len(content)), nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", auth)
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		body, _ := io.ReadAll(response.Body)
		return response.StatusCode, body
	}
	for range 2 {
		if status, got := object(bearer("acme/app", "acme")); status != http.StatusOK || !bytes.Equal(got, content) {
			t.Errorf("LFS object: status %d, %.300q, want %d bytes\n%s\n%s", status, got, len(content), mirror.logged(),
				forge.logged())
		}
	}
	if status, _ := object(bearer("acme/app", "evil")); status < 400 || status >= 500 {
		t.Errorf("LFS object for another caller: status %d, want a refusal", status)
	}
	for repository, owner := range map[string]string{"acme/other": "acme", "acme/app": "evil"} {
		if out, err := clone("c", repository, owner); err == nil {
			t.Errorf("clone with a token of %s for %s succeeded, want a refusal\n%s", owner, repository, out)
		}
	}
	if log := mirror.logged(); strings.Contains(log, "eyJ") || strings.Contains(log, "PRIVATE") ||
		strings.Contains(log, "RemoteAuth") {
		t.Errorf("the log of the mirror contains a credential:\n%s", log)
	}
}
