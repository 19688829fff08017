package gitssh

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"
)

// TestHostKeys loads host keys from an empty directory, which makes all kinds, and from one with some kinds. Missing
// kinds are made only if add is set.
func TestHostKeys(t *testing.T) {
	t.Parallel()
	log := slog.New(slog.DiscardHandler)
	dir := filepath.Join(t.TempDir(), "ssh")
	load := func(add bool) (kinds, prints []string) {
		t.Helper()
		keys, err := LoadHostKeys(dir, add, log)
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range keys {
			kinds = append(kinds, key.PublicKey().Type())
			prints = append(prints, ssh.FingerprintSHA256(key.PublicKey()))
		}
		return kinds, prints
	}
	all := []string{ssh.KeyAlgoED25519, ssh.KeyAlgoECDSA256, ssh.KeyAlgoRSA}
	kinds, first := load(false)
	if !slices.Equal(kinds, all) {
		t.Fatalf("kinds = %v, want %v", kinds, all)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		want := os.FileMode(0o600)
		if strings.HasSuffix(e.Name(), ".pub") {
			want = 0o644
		}
		if info, err := e.Info(); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: mode = %v, error = %v, want %v", e.Name(), info.Mode(), err, want)
		}
	}
	if len(entries) != 6 {
		t.Errorf("files = %v, want 6", entries)
	}
	if _, again := load(true); !slices.Equal(again, first) {
		t.Errorf("keys = %v, want %v", again, first)
	}
	// As of a version that made one kind.
	if err := os.Remove(filepath.Join(dir, "ssh_host_ecdsa_key")); err != nil {
		t.Fatal(err)
	}
	if kinds, prints := load(false); !slices.Equal(kinds, []string{all[0], all[2]}) || prints[0] != first[0] {
		t.Errorf("without add: kinds = %v, keys = %v, want the existing ones", kinds, prints)
	}
	kinds, added := load(true)
	if !slices.Equal(kinds, all) || added[0] != first[0] || added[1] == first[1] || added[2] != first[2] {
		t.Errorf("with add: kinds = %v, keys = %v, want the missing key made, and %v", kinds, added, first)
	}
	public, err := os.ReadFile(filepath.Join(dir, "ssh_host_ecdsa_key.pub"))
	if err != nil {
		t.Fatal(err)
	}
	if key, _, _, _, err := ssh.ParseAuthorizedKey(public); err != nil || ssh.FingerprintSHA256(key) != added[1] {
		t.Errorf("public key = %v, error = %v, want that of the private key", key, err)
	}
	if err := os.Chmod(filepath.Join(dir, "ssh_host_rsa_key"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadHostKeys(dir, true, log); err == nil || !strings.Contains(err.Error(), "readable by other users") {
		t.Errorf("key with permissions for others: error = %v, want that it is readable", err)
	}
}

// TestHostKeysThatCannotBeMade: a key that is there is enough.
func TestHostKeysThatCannotBeMade(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, kind := range hostKeyKinds[1:] {
		if _, err := makeHostKey(filepath.Join(dir, kind.file), hostKeyKinds[1].generate); err != nil {
			t.Fatal(err)
		}
	}
	missing := hostKeyKinds[0].file
	if err := os.MkdirAll(filepath.Join(dir, missing+".pub", "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	keys, err := LoadHostKeys(dir, true, slog.New(slog.NewTextHandler(&text, nil)))
	said := strings.Contains(text.String(), "cannot create an SSH host key") && strings.Contains(text.String(), missing)
	if err != nil || len(keys) != 2 || !said {
		t.Fatalf("keys = %d, error = %v, want 2 and a warning; log: %s", len(keys), err, text.String())
	}
	if _, err := os.Stat(filepath.Join(dir, missing)); err == nil {
		t.Error("a part of a key exists, want none")
	}
}
