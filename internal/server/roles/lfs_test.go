package roles

import (
	"context"
	"crypto/ed25519"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/server/config"
)

// TestLFSKey: the key is made once, for its owner only, so that tokens survive a restart.
func TestLFSKey(t *testing.T) {
	t.Parallel()
	d := &deps{log: slog.New(slog.DiscardHandler), cfg: config.DefaultConfig()}
	d.cfg.State = t.TempDir()
	identify := func(_ context.Context, login string, _ ssh.PublicKey, _ netip.Addr) (auth.Identity, bool, error) {
		return auth.Identity{Name: login}, false, nil
	}
	first, err := newLFS(d, identify)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(d.cfg.State, "lfs.key"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("key = %v, %v, want a file with mode 0600", info, err)
	}
	second, err := newLFS(d, identify)
	if err != nil {
		t.Fatal(err)
	}
	repo, err := git.ParseRepoPath("team/app")
	if err != nil {
		t.Fatal(err)
	}
	public, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ssh.NewPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	token := first.Tokens.New("alice", key, repo, auth.Read)
	r := &http.Request{Header: http.Header{"Authorization": {token}}}
	if id, _, ok, err := second.Tokens.Identify(r, repo); !ok || err != nil || id.Name != "alice" {
		t.Errorf("token after a restart: %+v, %t, %v, want alice", id, ok, err)
	}
	d.cfg.LFS.Enabled = false
	if off, err := newLFS(d, identify); off != nil || err != nil {
		t.Errorf("newLFS with lfs.enabled = false: %v, %v, want nil", off, err)
	}
}
