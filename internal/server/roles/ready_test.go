package roles

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/server/config"
)

func TestStateCheck(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	c, err := newStateCheck(dir)
	if err != nil {
		t.Fatal(err)
	}
	says := func(want string) {
		t.Helper()
		err := c.look()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	free := room{1 << 40, -1}
	c.room = func(string) (room, error) { return free, nil }
	says("")
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("files after a probe = %v, error = %v, want none", left, err)
	}
	free = room{minRoom - 1, 1 << 20}
	says("has only 16383 KiB free")
	free = room{1 << 40, 0}
	says("has only 0 inodes free")
	free = room{1 << 40, 1 << 20}
	says("")
	// statfs(2) does not report quotas and file systems that became read-only.
	if err := os.Mkdir(filepath.Join(dir, probeFile), 0o700); err != nil {
		t.Fatal(err)
	}
	says("") // within probeInterval
	c.probed = c.probed.Add(-probeInterval)
	says("cannot be written to")
	if err := os.RemoveAll(filepath.Join(dir, probeFile)); err != nil {
		t.Fatal(err)
	}
	says("")
	if err := os.Rename(dir, dir+".away"); err != nil {
		t.Fatal(err)
	}
	says("cannot be used")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	says("was replaced")
	if real, err := roomOf(t.TempDir()); err != nil || real.bytes <= 0 {
		t.Errorf("roomOf = %+v, %v, want free bytes", real, err)
	}
}

func TestRootCheck(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "root")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	look := pushCheck(dir)
	if look == nil {
		t.Fatal("pushCheck of a writable directory = nil, want a check")
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if err := look(); err != nil {
		t.Errorf("check of a missing root = %v, want nil: another check reports it", err)
	}
	if pushCheck(dir) != nil {
		t.Error("pushCheck of a read-only root is a check, want nil")
	}
}

// TestTokensThatAreNamed: a file of tokens that is named and does not exist keeps the server from starting; the one in
// the state directory comes later.
func TestTokensThatAreNamed(t *testing.T) {
	t.Parallel()
	cfg := config.DefaultConfig()
	cfg.State = t.TempDir()
	cfg.Complete(config.RoleGateway, getenv())
	if err := cfg.CheckTokens(); err != nil {
		t.Errorf("CheckTokens error = %v, want none", err)
	}
	cfg.Auth.Tokens = filepath.Join(t.TempDir(), "tokens")
	if err := cfg.CheckTokens(); err == nil || !strings.Contains(err.Error(), "does not exist") {
		t.Errorf("CheckTokens = %v, want that the file does not exist", err)
	}
}
