package command

import (
	"encoding/base64"
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
	dir := base64.StdEncoding.EncodeToString([]byte(repo.Dir))
	note := fmt.Sprintf("{\"version\":1,\"git_dir\":%q,\"common_dir\":%[1]q,\"start\":%d,\"refs\":2,\"old\":2}\n"+
		"%s \"refs/heads/a\"\n%[3]s \"refs/heads/b\"\n%[4]s \"refs/heads/a\"\n%[4]s \"refs/heads/b\"\nagreed\n",
		dir, time.Now().UnixNano(), after, before)
	journal := filepath.Join(root, ".packhorse/pushes")
	if err := os.MkdirAll(journal, 0o700); err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string]string{
		filepath.Join(journal, "earlier"): note, filepath.Join(repo.Dir, "refs/heads/b.lock"): after.String() + "\n",
		filepath.Join(journal, "garbage"): "garbage\n",
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
