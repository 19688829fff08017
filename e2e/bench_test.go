package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestBenchNeighbour sends the small request of `bench neighbour` through a gateway, and to its node by the control API.
func TestBenchNeighbour(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	repo, root, secret := linear(t), filepath.Join(dir, "root"), filepath.Join(dir, "secret")
	if err := os.CopyFS(filepath.Join(root, "team/app.git"), os.DirFS(repo.Dir)); err != nil {
		t.Fatal(err)
	}
	config := fmt.Sprintf("[storage]\nlisten = %q\nsecret_file = %q\n", "unix:"+filepath.Join(dir, "node.sock"), secret)
	table := fmt.Sprintf("[http]\naddress = \"127.0.0.1:0\"\n[[node]]\nname = \"a\"\naddress = %q\nsecret_file = %q\n",
		"unix:"+filepath.Join(dir, "node.sock"), secret)
	for name, text := range map[string]string{"secret": strings.Repeat("5", 32), "node.toml": config, "gateway.toml": table} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	node := startRole(t, "storage", "--root", root, "--config", filepath.Join(dir, "node.toml")).Listen
	gateway := startRole(t, "gateway", "--state", filepath.Join(dir, "gateway"), "--config", filepath.Join(dir, "gateway.toml")).HTTP
	for _, more := range [][]string{nil, {"--rpc", node, "--secret-file", secret}} {
		args := append([]string{"bench", "neighbour", gateway + "/team/app", "--clients", "2", "--duration", "300ms", "--json"}, more...)
		out, err := exec.Command(filepath.Join(binDir, "packhorse"), args...).CombinedOutput()
		if err != nil || !strings.Contains(string(out), `"errors": 0`) {
			t.Errorf("%q: %v\n%s", args, err, out)
		}
	}
}
