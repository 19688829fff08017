package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/packhorse-git/packhorse/internal/store/bucket/buckettest"
)

// needGitLFS skips a test where git-lfs is missing. In CI that is a failure.
func needGitLFS(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("git-lfs"); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skipf("*** There is no git-lfs: Git LFS is NOT tested. *** (%v)", err)
	}
}

// newestGitLFS returns the directory of the git-lfs that .ci/clients built, or "" without it.
func newestGitLFS() string {
	dir := filepath.Join(os.Getenv("PACKHORSE_CLIENTS"), "git-lfs-newer", "bin")
	if _, err := os.Stat(filepath.Join(dir, "git-lfs")); err != nil {
		return ""
	}
	return dir
}

// TestLFS runs stories of Git LFS with the installed git-lfs.
func TestLFS(t *testing.T) {
	t.Parallel()
	needGitLFS(t)
	needSSH(t)
	runStoriesWith(t, "testdata/lfs", makeTemplates(t), "")
}

// lfsInAllShapes are stories that are the same in every shape.
var lfsInAllShapes = []string{"testdata/lfs/http.txtar", "testdata/lfs/ssh.txtar"}

// TestLFSNewest repeats stories with the newest git-lfs, through a gateway and a storage node.
func TestLFSNewest(t *testing.T) {
	t.Parallel()
	needGitLFS(t)
	needSSH(t)
	newest := newestGitLFS()
	if newest == "" {
		t.Skip("*** PACKHORSE_CLIENTS has no git-lfs-newer: the newest git-lfs is NOT tested. ***")
	}
	runStoriesIn(t, shape{between: "unix", lfs: newest}, "", makeTemplates(t), "", lfsInAllShapes...)
	if !testing.Short() {
		t.Run("all", func(t *testing.T) {
			runStoriesIn(t, shape{noIndex: true, lfs: newest}, "testdata/lfs", makeTemplates(t), "")
		})
	}
}

// TestLFSInStore repeats stories with the repositories in a store.
func TestLFSInStore(t *testing.T) {
	t.Parallel()
	needGitLFS(t)
	needSSH(t)
	scripts := []string{lfsInAllShapes[0], "testdata/lfs/purge.txtar"}
	if !testing.Short() {
		scripts = append(lfsInAllShapes[1:2:2], scripts...)
	}
	runStoriesIn(t, shape{store: buckettest.Versitygw(t)}, "", makeTemplates(t), "", scripts...)
}
