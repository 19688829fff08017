package command

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// TestAtomicPushCompletedBeforeStart starts a server after one that was killed during an atomic push. The server
// completes the push before it answers requests.
func TestAtomicPushCompletedBeforeStart(t *testing.T) {
	t.Parallel()
	root := socketDir(t)
	repo := gittest.InitAt(t, filepath.Join(root, "app.git"))
	before, after := repo.Commit("before"), repo.Commit("after")
	repo.Git("update-ref", "refs/heads/a", after.String())
	repo.Git("update-ref", "refs/heads/b", before.String())
	note := fmt.Sprintf("push 1\ngit-dir %q\ncommon-dir %[1]q\nstart %d\nref %s \"refs/heads/a\"\nref %[3]s "+
		"\"refs/heads/b\"\n"+
		"old %[4]s \"refs/heads/a\"\nold %[4]s \"refs/heads/b\"\nend\nagreed\n", repo.Dir,
		time.Now().UnixNano(), after, before)
	journal := filepath.Join(root, ".packhorse/pushes")
	if err := os.MkdirAll(journal, 0o700); err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string]string{
		filepath.Join(journal, "earlier"): note, filepath.Join(repo.Dir, "refs/heads/b.lock"): after.String() + "\n",
		filepath.Join(journal, "garbage"): "garbage",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	startServe(t, "--root", root, "--public-read")
	if got := repo.ID("b"); got != after {
		t.Errorf("when the server answers, b is %s, want %s", got, after)
	}
	if _, err := os.Stat(journal + ".bad/garbage"); err != nil {
		t.Error(err)
	}
}
