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
	"github.com/packhorse-git/packhorse/internal/git/disk"
	"github.com/packhorse-git/packhorse/internal/git/refs"
)

// changeBits is the number of bits of a generation that count the changes since the repository was opened. The higher
// bits have the number of the opening. So generations always increase, although the node forgets closed repositories.
const changeBits = 28

// version returns the version of a snapshot of an open repository. That of a repository in a store is the same on every
// node.
func (n *Node) version(o *openRepo, snap *refs.Snapshot) git.Version {
	if o.place != nil {
		return git.Version{Incarnation: o.Incarnation, Epoch: o.place.Epoch(), Generation: snap.Generation()}
	}
	return git.Version{Incarnation: o.incarnation(), Epoch: n.epoch,
		Generation: o.opening<<changeBits | min(snap.Generation(), 1<<changeBits-1)}
}

// incarnation returns a hash of the repository's incarnation and the path by which it was opened. A ".git" file and the
// directory that it names are opened separately, and their generations cannot be compared.
func (o *openRepo) incarnation() string {
	sum := sha256.Sum256([]byte(o.Incarnation + "\x00" + o.dir))
	return hex.EncodeToString(sum[:16])
}

// maxReopenings is how often a look-up is repeated because the repository was reopened meanwhile.
const maxReopenings = 100

// snapshot opens a repository and takes a snapshot of its refs, with its version. The caller has to release the handle.
//
// A snapshot is valid only if its opening is still the one in the table afterwards. Then every later opening took its
// snapshots later, so that generations and states have the same order.
func (n *Node) snapshot(ctx context.Context, path git.RepoPath) (*handle, *refs.Snapshot, git.Version, error) {
	if n.places != nil {
		return n.placeSnapshot(ctx, path, func(r *refs.Store) (*refs.Snapshot, error) { return r.Snapshot(ctx) })
	}
	for range maxReopenings {
		h, err := n.acquire(ctx, path)
		if err != nil {
			return nil, nil, git.Version{}, err
		}
		snap, err := h.Refs.Snapshot(ctx)
		if err == nil && h.owns(snap, h.path) && n.isLatest(h.openRepo) {
			return h, snap, n.version(h.openRepo, snap), nil
		}
		n.drop(path, h) // it can be in the table although another opening replaced its own
		n.release(h)
		if err != nil {
			return nil, nil, git.Version{}, err
		}
	}
	return nil, nil, git.Version{}, fault.Retry(fault.Unavailable, fault.RetrySoon,
		"the repository is replaced faster than it can be opened")
}

// owns reports whether a snapshot that was just taken is of this repository, and not of another one that has replaced
// it since the handle was acquired.
func (o *openRepo) owns(snap *refs.Snapshot, path string) bool {
	if o.last.Load() == snap {
		return true
	}
	if !o.Fresh(path) {
		return false
	}
	o.last.Store(snap)
	return true
}

// isLatest reports whether no later opening of the same repository exists.
func (n *Node) isLatest(o *openRepo) bool {
	n.handles.mu.Lock()
	defer n.handles.mu.Unlock()
	return n.handles.byDir[o.dir] == o
}

// NextEpoch returns an epoch for a node with this state directory, and stores it there. It is greater than all earlier
// ones. If the directory was lost, it is still greater than those of earlier times. Only one process at a time may call
// it.
func NextEpoch(stateDir string) (uint64, error) {
	path := filepath.Join(stateDir, "epoch")
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("cannot read the node's epoch: %w", err)
	}
	var last uint64
	if s := strings.TrimSpace(string(text)); s != "" {
		if last, err = strconv.ParseUint(s, 10, 63); err != nil {
			return 0, fmt.Errorf("%s: invalid epoch; remove the file if the clock is right: %w", path, err)
		}
	}
	next := max(last+1, uint64(max(time.Now().UnixNano(), 0)))
	if err := disk.ReplaceFile(path, []byte(strconv.FormatUint(next, 10)+"\n")); err != nil {
		return 0, fmt.Errorf("cannot write the node's epoch: %w", err)
	}
	return next, nil
}
