package roles

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/packhorse-git/packhorse/internal/gateway"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/git/disk"
	"github.com/packhorse-git/packhorse/internal/transport/credfile"
)

// newLFS makes the part of a gateway for Git LFS. It returns nil if Git LFS is disabled.
func newLFS(d *deps, identify auth.KeyIdentifier) (*gateway.LFS, error) {
	cfg := d.cfg.LFS
	if !cfg.Enabled {
		return nil, nil
	}
	key, err := keyFile(d, cfg.KeyFile, "lfs.key")
	if err != nil {
		return nil, err
	}
	return &gateway.LFS{URL: cfg.PublicURL(), Tokens: auth.NewLFSTokens(key.Get, identify, nil)}, nil
}

// keyFile reads a key from a file, by default one in the state directory, which is made if it does not exist.
func keyFile(d *deps, file, usual string) (*credfile.Secret, error) {
	if file == "" {
		file = filepath.Join(d.cfg.State, usual)
		if err := makeKey(file); err != nil {
			return nil, fmt.Errorf("make the key %s: %w", file, err)
		}
	}
	return credfile.LoadSecret(file, d.log)
}

// makeKey makes a file with a random key, readable by its owner only, unless the file exists.
func makeKey(file string) error {
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	secret := make([]byte, 32)
	rand.Read(secret) // never fails
	return disk.ReplaceFile(file, []byte(hex.EncodeToString(secret)+"\n"))
}
