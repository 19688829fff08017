package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// TestUpgradeOfClusters has processes of this version and of the previous release work together: a gateway and a node,
// each of either version.
func TestUpgradeOfClusters(t *testing.T) {
	t.Parallel()
	if *update {
		t.Skip("it has no fixture")
	}
	old := buildPrevious(t)
	for name, programs := range map[string]struct{ gateway, node string }{
		"new-node": {old, binDir}, "new-gateway": {binDir, old},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := newUpgrade(t, false)
			start := func(name, programs string, args ...string) *serverProcess {
				t.Helper()
				p, err := startProcess(name, exec.Command(filepath.Join(programs, "packhorse"), append([]string{name, "--ops",
					"127.0.0.1:0", "--log-format", "json"}, args...)...), u.dir, gittest.Env())
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { killAll(t, p) })
				return p
			}
			if err := os.Mkdir(u.path("repos"), 0o755); err != nil {
				t.Fatal(err)
			}
			node := start("storage", programs.node, "--root", u.path("repos"), "--listen", "127.0.0.1:0")
			write(t, u.path("gateway.toml"), "[[node]]\nname = \"one\"\naddress = \""+node.listen+"\"\n")
			token := exec.Command(filepath.Join(programs.gateway, "packhorse"), "token", "create", "ada", "--scope", "admin",
				"--config", u.path("gateway.toml"), "--state", u.path("gateway"))
			token.Env = gittest.Env()
			secret, err := token.Output()
			if err != nil {
				t.Fatal(err)
			}
			u.notes.Token = strings.TrimSpace(string(secret))
			u.serverProcess = start("gateway", programs.gateway, "--config", u.path("gateway.toml"), "--state",
				u.path("gateway"), "--http", "127.0.0.1:0")

			// Calls of the gateway, Git and LFS at the gateway, and calls of programs at the node.
			u.call("POST", "/-/api/v1/repos", `{"repository": "team/app", "settings": {"description": "Mixed"}}`)
			work := gittest.Init(t)
			work.Git("update-ref", "refs/heads/main", work.Commit("mixed").String())
			u.git(work.Dir, "push", "-q", u.http+"/team/app", "main")
			u.call("POST", "/-/api/v1/repos/team/app/commits",
				`{"branch": "main", "message": "Call", "changes": [{"put": {"path": "a", "text": "b"}}]}`)
			u.notes.Objects = map[string]int{}
			u.putObject("mixed")
			u.clone("team/app")
			u.git("", "clone", "-q", "--depth", "1", u.http+"/team/app", u.TempDir())
			_, text := u.as("", "POST", "http://"+node.listen+"/packhorse.v1.RefService/Resolve",
				`{"repository": "team/app", "name": "refs/heads/main"}`)
			if tip, _, _ := strings.Cut(u.git("", "ls-remote", u.http+"/team/app", "main"), "\t"); !strings.Contains(text, tip) {
				t.Errorf("the node resolves main to %s, and clients to %s", text, tip)
			}
			u.call("DELETE", "/-/api/v1/repos/team/app?force=true", "")
		})
	}
}
