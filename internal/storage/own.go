package storage

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

const (
	// ownDir is the name of directories in which the node keeps what is on its way into the root or out of it. No repository below one is
	// served or listed. Mostly there is one, in the root; where another file system is mounted below it, that has its own.
	ownDir    = ".packhorse"
	newKind   = "new"   // what is being made, in a directory each
	trashKind = "trash" // what was deleted
	// elsewhereFile, in the root's own directory, names the others, each by its path below the root with a NUL behind it.
	elsewhereFile = "elsewhere"
)

// isOwn tells whether a path leads through such a directory.
func isOwn(path string) bool {
	for component := range strings.SplitSeq(path, "/") {
		if component == ownDir {
			return true
		}
	}
	return false
}

// own is the own directory in a directory of the root. One elsewhere than in the root is written down first, so that a node that ends
// early finds it again. The caller has Node.making.
func (n *Node) own(parent string) (string, error) {
	own := filepath.Join(parent, ownDir)
	below, err := filepath.Rel(n.root, own)
	if err != nil || parent == n.root || n.elsewhere[below] {
		return own, err
	}
	home := filepath.Join(n.root, ownDir)
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
	n.elsewhere[below] = true
	return own, n.sync(home)
}

// sweepAll removes, in the background, what a node before this one left in its own directories.
func (n *Node) sweepAll() {
	home := filepath.Join(n.root, ownDir)
	n.trash.sweep(home)
	list, err := os.ReadFile(filepath.Join(home, elsewhereFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		n.log.Warn("cannot read where deleted repositories may be left", "error", err)
	}
	for below := range strings.SplitSeq(string(list), "\x00") {
		own := filepath.Join(n.root, below)
		real, err := filepath.EvalSymlinks(own)
		if err != nil || real != own || filepath.Base(own) != ownDir || !filepath.IsLocal(below) {
			continue // not mounted now, or nothing of ours
		}
		n.elsewhere[below] = true
		n.trash.sweep(own)
	}
}
