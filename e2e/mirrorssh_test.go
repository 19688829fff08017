package e2e

import (
	"encoding/pem"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/packhorse-git/packhorse/internal/gittest"
)

// TestMirrorSSH clones with an identity token from a mirror that follows an SSH server with its own key.
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
	start := func(args ...string) *serverProcess {
		p, err := startServer(dir, append(gittest.Env(), "GORACE=atexit_sleep_ms=0"), append(args, "--ops", "127.0.0.1:0",
			"--log-format", "json", "--http", "127.0.0.1:0"))
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
	forge := start("serve", "--root", "forge", "--state", "forge-state", "--ssh", "127.0.0.1:0", "--ssh-keys", "key.pub")
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
	write("ca.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: issuer.Certificate().Raw})))
	write("mirror.toml", `
[[mirror]]
from = "ssh://git@`+at.Host+`/"
to = "forge"
auth = "rules"
ssh_key = "key"
known_hosts = "known_hosts"

[[auth.oidc]]
issuer = "`+issuer.URL+`"
ca = "ca.pem"
audience = "packhorse"
claims = { owner = "acme" }
repositories = ["forge/{repository}"]
`)
	mirror := start("mirror", "--root", "mirrors", "--config", "mirror.toml")
	clone := func(to, repository, owner string) (string, error) {
		issuer.claims = map[string]any{"iss": issuer.URL, "repository": repository, "owner": owner}
		cmd := exec.Command("git", "clone", "--quiet", mirror.http+"/forge/acme/app", filepath.Join(dir, to))
		cmd.Env = append(gittest.Env(), "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=http.extraHeader",
			"GIT_CONFIG_VALUE_0=Authorization: Bearer "+issuer.sign(t, "packhorse"))
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
	for repository, owner := range map[string]string{"acme/other": "acme", "acme/app": "evil"} {
		if out, err := clone("c", repository, owner); err == nil {
			t.Errorf("clone with a token of %s for %s succeeded, want a refusal\n%s", owner, repository, out)
		}
	}
	if log := mirror.logged(); strings.Contains(log, "eyJ") || strings.Contains(log, "PRIVATE") {
		t.Errorf("the log of the mirror contains a credential:\n%s", log)
	}
}
