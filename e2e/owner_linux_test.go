package e2e

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// TestOwner has root run commands on the root of another user, where no server runs: all that they make is that user's.
func TestOwner(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root makes files of others")
	}
	const uid, gid = 65534, 65533
	dir, err := os.MkdirTemp("", "owner")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	root, source := filepath.Join(dir, "root"), gittest.Init(t)
	source.Git("update-ref", "refs/heads/main", source.Commit("x").String())
	bundle := filepath.Join(dir, "a.bundle")
	source.Git("bundle", "create", bundle, "--all")
	secret := filepath.Join(dir, "secret.bundle")
	for _, err := range []error{
		os.Mkdir(root, 0o755), os.Chown(root, uid, gid), os.Chmod(bundle, 0o644), os.WriteFile(secret, nil, 0o600),
		os.Chmod(dir, 0o755),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	run := func(args ...string) ([]byte, error) {
		return exec.Command(filepath.Join(binDir, "packhorse"), append(args, "--root", root)...).CombinedOutput()
	}
	for _, args := range [][]string{
		{"token", "create", "me"}, {"repo", "create", "team/app"}, {"repo", "import", "team/tool", bundle},
		{"repo", "maintain", "team/tool"},
		{"repo", "create", "team/old"}, {"repo", "remove", "team/old", "--yes"}, {"repo", "list"},
	} {
		if out, err := run(args...); err != nil {
			t.Fatalf("packhorse %q: %v\n%s", args, err, out)
		}
	}
	if out, err := run("repo", "import", "team/secret", secret); err == nil {
		t.Errorf("a file of root's alone was imported: %s", out)
	}
	err = filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		if s := info.Sys().(*syscall.Stat_t); s.Uid != uid {
			return fmt.Errorf("%s belongs to %d", path, s.Uid)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
