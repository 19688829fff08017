package storage

import (
	"context"
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

// version returns the version of a snapshot of an open repository.
func (o *openRepo) version(snap *refs.Snapshot) git.Version {
	return o.place.Version(o.opening, snap.Generation())
}

// maxReopenings is how often a look-up is repeated because the repository was reopened meanwhile.
const maxReopenings = 100

// snapshot opens a repository and takes a snapshot of its refs, with its version. The caller has to release the handle.
//
// A snapshot is valid only if its opening is still the one in the table afterwards. Then every later opening took its
// snapshots later, so that generations and states have the same order.
func (n *Node) snapshot(ctx context.Context, path git.RepoPath) (*handle, *refs.Snapshot, git.Version, error) {
	return n.takeSnapshot(ctx, path, func(r *refs.Store) (*refs.Snapshot, error) { return r.Snapshot(ctx) })
}

// latestSnapshot is snapshot without a check for changes by other nodes.
func (n *Node) latestSnapshot(ctx context.Context, path git.RepoPath) (*handle, *refs.Snapshot, git.Version, error) {
	return n.takeSnapshot(ctx, path, func(r *refs.Store) (*refs.Snapshot, error) { return r.SnapshotOf(ctx, nil) })
}

func (n *Node) takeSnapshot(ctx context.Context, path git.RepoPath,
	take func(*refs.Store) (*refs.Snapshot, error)) (*handle, *refs.Snapshot, git.Version, error) {
	var failed error // of the attempt before
	for range maxReopenings {
		h, err := n.acquire(ctx, path)
		if err != nil {
			return nil, nil, git.Version{}, err
		}
		snap, err := take(h.Refs)
		if err == nil && h.owns(snap) && n.isLatest(h.openRepo) {
			return h, snap, h.version(snap), nil
		}
		isFresh := err != nil && h.isFresh()
		n.drop(n.places.Name(path), h) // it can be in the table although another opening replaced its own
		n.release(h)
		if err != nil && (isFresh || failed != nil) {
			return nil, nil, git.Version{}, err
		}
		failed = err
	}
	return nil, nil, git.Version{}, fault.Retry(fault.Unavailable, fault.RetrySoon,
		"the repository is replaced faster than it can be opened")
}

// owns reports whether a snapshot that was just taken is of this repository, and not of another one that has replaced
// it since the handle was acquired.
func (h *handle) owns(snap *refs.Snapshot) bool {
	if h.last.Load() == snap {
		return true
	}
	if !h.isFresh() {
		return false
	}
	h.last.Store(snap)
	return true
}

// isLatest reports whether no later opening of the same repository exists.
func (n *Node) isLatest(o *openRepo) bool {
	n.handles.mu.Lock()
	defer n.handles.mu.Unlock()
	return n.handles.byKey[o.key] == o
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
