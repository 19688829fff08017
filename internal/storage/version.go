package storage

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/refs"
)

// changeBits is how much of a generation counts the changes that one opening of a repository has seen: the rest, above it, counts the
// node's openings. So generations rise whatever is evicted, and nothing is kept of repositories that are not open.
const changeBits = 28

// version is that of a snapshot which the open repository gave.
func (n *Node) version(o *opened, snap *refs.Snapshot) git.Version {
	return git.Version{Incarnation: o.incarnation(), Epoch: n.epoch, Generation: o.opening<<changeBits | min(snap.Generation(), 1<<changeBits-1)}
}

// incarnation is the repository's, without what it says of the file system, and with the way it is reached: a ".git" file and the
// directory that it names are opened apart, and their generations cannot be compared.
func (o *opened) incarnation() string {
	sum := sha256.Sum256([]byte(o.Incarnation + "\x00" + o.dir))
	return hex.EncodeToString(sum[:16])
}

// maxReopenings bounds how often a look-up begins anew because its repository was opened anew meanwhile.
const maxReopenings = 100

// snapshot opens a repository and takes a snapshot of its refs, with its version. The caller releases the handle.
//
// A snapshot counts only if its opening still is the one in the map afterwards: then every later opening took its own after this one, so
// generations and states have the same order.
func (n *Node) snapshot(ctx context.Context, path git.RepoPath) (*handle, *refs.Snapshot, git.Version, error) {
	for range maxReopenings {
		h, err := n.acquire(path)
		if err != nil {
			return nil, nil, git.Version{}, err
		}
		snap, err := h.Refs.Snapshot(ctx)
		if err == nil && h.stands(snap, h.path) && n.latest(h.opened) {
			return h, snap, n.version(h.opened, snap), nil
		}
		n.drop(path, h) // it may be in its map while its opening is not in its own: opened at the same time as another
		n.release(h)
		if err != nil {
			return nil, nil, git.Version{}, err
		}
	}
	return nil, nil, git.Version{}, fault.Retry(fault.Unavailable, fault.RetrySoon, "the repository changes faster than it can be opened")
}

// stands tells whether a snapshot that was taken just now is of this repository, and not of another one that was put in its place since
// the handle was acquired.
func (o *opened) stands(snap *refs.Snapshot, path string) bool {
	if o.last.Load() == snap {
		return true
	}
	if !o.Fresh(path) {
		return false
	}
	o.last.Store(snap)
	return true
}

func (n *Node) latest(o *opened) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.opened[o.dir] == o
}

// NextEpoch is the epoch of a node that starts with this state directory: greater than all before, and also after the directory was
// lost greater than those of earlier clock times. It is on disk when this returns. Only one process at a time may call it.
func NextEpoch(stateDir string) (uint64, error) {
	path := filepath.Join(stateDir, "epoch")
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("read the node's epoch: %w", err)
	}
	var last uint64
	if s := strings.TrimSpace(string(text)); s != "" {
		if last, err = strconv.ParseUint(s, 10, 63); err != nil {
			return 0, fmt.Errorf("%s holds no epoch; remove it if the clock is right: %w", path, err)
		}
	}
	next := max(last+1, uint64(max(time.Now().UnixNano(), 0)))
	if err := replaceFile(path, strconv.FormatUint(next, 10)+"\n"); err != nil {
		return 0, fmt.Errorf("write the node's epoch: %w", err)
	}
	return next, nil
}

// replaceFile writes a file that is there whole or not at all, and stays.
func replaceFile(path, text string) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
		return err
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
