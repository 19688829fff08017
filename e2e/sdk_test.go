package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// TestClientsOfAPI runs the examples of the Python and TypeScript packages against a node, as in docs/reference/api.md,
// and checks with git what they made.
func TestClientsOfAPI(t *testing.T) {
	t.Parallel()
	installed := os.Getenv("PACKHORSE_CLIENTS")
	for name, scheme := range map[string]string{"python": "", "typescript": "http://"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			program := filepath.Join(installed, "bin", "sdk-"+name)
			if _, err := os.Stat(program); installed == "" || err != nil {
				t.Skipf("*** the package for %s is not installed: NOT tested ***", name)
			}
			n := startStorage(t, nil)
			out, err := exec.CommandContext(t.Context(), program, scheme+n.address, n.secret).CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			repo := gittest.At(t, filepath.Join(n.root, name, "app.git"))
			repo.Git("fsck", "--strict")
			if got, want := repo.Git("ls-tree", "-r", "--name-only", "main"), "a.txt\nb.txt\nc.txt"; got != want {
				t.Errorf("main has the files %q, want %q", got, want)
			}
			merge := strings.TrimSpace(repo.Git("rev-parse", "--verify", "main^2~0"))
			if topic := strings.TrimSpace(repo.Git("rev-parse", "topic")); merge != topic {
				t.Errorf("main merges %s, want %s", merge, topic)
			}
			for _, want := range []string{
				repo.Git("diff", "--full-index", "main^1...topic") + "\n",
				"merged " + strings.TrimSpace(repo.Git("rev-parse", "main")) + " 0\n",
				"archive true\n",
				"moved true\n",
			} {
				if !strings.Contains(strings.ToLower(string(out)), want) {
					t.Errorf("the output has no %q:\n%s", want, out)
				}
			}
		})
	}
}
