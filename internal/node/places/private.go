package places

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/packhorse-git/packhorse/internal/git/repo"
)

// Names in private directories (repo.PrivateDir). There is one in the root, and one on each other file system that is
// mounted below it.
const (
	newKind   = "new"   // repositories being created
	trashKind = "trash" // deleted repositories
	// elsewhereFile, in the root's private directory, lists the others by their paths below the root, each followed by a
	// NUL.
	elsewhereFile = "elsewhere"
)

// privateDirectory returns the private directory in a directory below the root. It records those outside the root
// itself, so that the next node finds them. The caller holds Directories.placing.
func (d *Directories) privateDirectory(parent string) (string, error) {
	own := filepath.Join(parent, repo.PrivateDir)
	below, err := filepath.Rel(d.root, own)
	if err != nil || parent == d.root || d.privateDirectories[below] {
		return own, err
	}
	home := filepath.Join(d.root, repo.PrivateDir)
	if err := os.MkdirAll(home, 0o700); err != nil {
		return "", err
	}
	f, err := os.OpenFile(filepath.Join(home, elsewhereFile), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return "", err
	}
	_, err = f.WriteString(below + "\x00")
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return "", err
	}
	d.privateDirectories[below] = true
	return own, d.Sync(home)
}

// removeLeftovers empties the private directories of earlier nodes in the background.
func (d *Directories) removeLeftovers() {
	home := filepath.Join(d.root, repo.PrivateDir)
	d.emptyTrash(home)
	list, err := os.ReadFile(filepath.Join(home, elsewhereFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.Log.Warn("cannot read the list of private directories", "error", err)
	}
	for below := range strings.SplitSeq(string(list), "\x00") {
		own := filepath.Join(d.root, below)
		real, err := filepath.EvalSymlinks(own)
		if err != nil || real != own || filepath.Base(own) != repo.PrivateDir || !filepath.IsLocal(below) {
			continue // not mounted, or not a private directory
		}
		d.privateDirectories[below] = true
		d.emptyTrash(own)
	}
}
