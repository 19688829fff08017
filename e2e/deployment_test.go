package e2e

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// TestDeploymentPage makes certificates and a secret by the recipe of docs/how-to/deployment.md, and clones through a
// gateway and a node that trust each other by them, and by nothing less.
func TestDeploymentPage(t *testing.T) {
	t.Parallel()
	if out, err := exec.Command("openssl", "version").Output(); err != nil || !bytes.HasPrefix(out, []byte("OpenSSL 3")) {
		t.Skipf("*** there is no OpenSSL 3 here: the recipe of docs/how-to/deployment.md is NOT tested *** (%s, %v)", out,
			err)
	}
	page, err := os.ReadFile("../docs/how-to/deployment.md")
	if err != nil {
		t.Fatal(err)
	}
	recipe := regexp.MustCompile("(?s)```sh\n(openssl req.*?)```").FindSubmatch(page)
	if recipe == nil {
		t.Fatal("docs/how-to/deployment.md has no recipe")
	}
	dir := t.TempDir()
	sh := exec.Command("sh", "-euc", string(recipe[1]))
	sh.Dir = dir
	if out, err := sh.CombinedOutput(); err != nil {
		t.Fatalf("the recipe: %v\n%s", err, out)
	}
	file := func(name string) string { return filepath.Join(dir, name) }
	write := func(name, text string) string {
		t.Helper()
		if err := os.WriteFile(file(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file(name)
	}
	repo := linear(t)
	root := file("root")
	if err := os.CopyFS(filepath.Join(root, "app.git"), os.DirFS(repo.Dir)); err != nil {
		t.Fatal(err)
	}
	storage := startRole(t, "storage", "--root", root, "--config", write("storage.toml", fmt.Sprintf(
		"[storage]\nlisten = %q\ntls_cert = %q\ntls_key = %q\nclient_ca = %q\nsecret_file = %q\n",
		"127.0.0.1:0", file("storage-a.example.pem"), file("storage-a.example.key"), file("ca.pem"),
		file("node.secret")))).Listen
	table := fmt.Sprintf("[http]\naddress = \"127.0.0.1:0\"\n[[node]]\nname = \"a\"\naddress = %q\ntls_ca = "+
		"%q\nserver_name = \"storage-a.example\"\n",
		storage, file("ca.pem"))
	certificate := fmt.Sprintf("tls_cert = %q\ntls_key = %q\n", file("gateway-1.example.pem"),
		file("gateway-1.example.key"))
	secret := fmt.Sprintf("secret_file = %q\n", file("node.secret"))
	for name, what := range map[string]string{"without-secret": certificate, "without-certificate": secret} {
		gateway := startRole(t, "gateway", "--state", file(name), "--config", write(name+".toml", table+what)).HTTP
		response, err := http.Get(gateway + "/app/info/refs?service=git-upload-pack")
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode < 500 {
			t.Errorf("%s: got %s, want a status of 500 or more", name, response.Status)
		}
	}
	gateway := startRole(t, "gateway", "--state", file("gateway"), "--config",
		write("gateway.toml", table+certificate+secret)).HTTP
	clone := file("clone.git")
	gittest.Run(t, dir, "", "clone", "--quiet", "--bare", gateway+"/app", clone)
	gittest.At(t, clone).Git("fsck", "--strict")
	if got, want := gittest.At(t, clone).Git("rev-parse", "main"), repo.Git("rev-parse", "main"); got != want {
		t.Errorf("the clone's main is %s, want %s", got, want)
	}
}
