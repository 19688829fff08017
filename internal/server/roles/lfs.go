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
	file := cfg.KeyFile
	if file == "" {
		file = filepath.Join(d.cfg.State, "lfs.key")
		if err := makeLFSKey(file); err != nil {
			return nil, fmt.Errorf("make the key of tokens for Git LFS: %w", err)
		}
	}
	key, err := credfile.LoadSecret(file, d.log)
	if err != nil {
		return nil, err
	}
	return &gateway.LFS{URL: cfg.PublicURL(), Tokens: auth.NewLFSTokens(key.Get, identify, nil)}, nil
}

// makeLFSKey makes a file with a random key, readable by its owner only, unless the file exists.
func makeLFSKey(file string) error {
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	secret := make([]byte, 32)
	rand.Read(secret) // never fails
	return disk.ReplaceFile(file, []byte(hex.EncodeToString(secret)+"\n"))
}
