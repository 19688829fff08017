package storage

import (
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/lfs/objects"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/gc"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/transport/bulk"
)

// errNoLFS is the error of a node without objects of Git LFS.
func errNoLFS() error { return fault.New(fault.NotFound, "Git LFS is not supported by this server") }

// LFSObjects returns the store of the node's LFS objects, or nil if there is none.
func (n *Node) LFSObjects() *objects.Store { return n.lfs }

// LFSKeeper returns what collects, verifies, imports and lists the node's LFS objects, or nil if there are none.
func (n *Node) LFSKeeper() *gc.Keeper { return n.keeper }

// openForGC opens a repository for the keeper.
func (n *Node) openForGC(ctx context.Context, path git.RepoPath) (*gc.Handle, error) {
	h, r, err := n.lfsRepository(ctx, path)
	if err != nil {
		return nil, err
	}
	return &gc.Handle{Repo: h.Repo, Place: h.place, LFS: r, IsFresh: h.isFresh, Release: func() { n.release(h) }}, nil
}

// LFSRepository returns a repository for methods of LFSObjects, also a mirror that must not be read. The caller has to
// release it.
func (n *Node) LFSRepository(ctx context.Context, path git.RepoPath) (r objects.Repository, release func(), err error) {
	h, r, err := n.openLFS(n.acquireAny(ctx, path))
	if err != nil {
		return r, nil, err
	}
	return r, func() { n.release(h) }, nil
}

// lfsRepository returns a repository with objects of Git LFS, and its handle, which the caller has to release.
func (n *Node) lfsRepository(ctx context.Context, path git.RepoPath) (*handle, objects.Repository, error) {
	return n.openLFS(n.acquire(ctx, path))
}

// openLFS is lfsRepository for the result of acquire.
func (n *Node) openLFS(h *handle, err error) (*handle, objects.Repository, error) {
	if err == nil && n.lfs == nil {
		n.release(h)
		err = errNoLFS()
	}
	if err != nil {
		return nil, objects.Repository{}, err
	}
	r, err := h.lfs()
	if err == nil {
		err = n.checkLFSInside(r)
	}
	if err != nil {
		n.release(h)
		return nil, r, err
	}
	return h, r, nil
}

// lfsRepositoryForRead is lfsRepository after a check for objects that another node has purged. While a store is
// unreachable, it uses the last known settings.
func (n *Node) lfsRepositoryForRead(ctx context.Context, path git.RepoPath) (*handle, objects.Repository, error) {
	h, err := n.acquireCurrent(ctx, path)
	if fault.Is(err, fault.Unavailable) {
		h, err = n.acquireKnown(ctx, path, err)
	}
	return n.openLFS(h, err)
}

// lfsRepositoryForPush is lfsRepository for a change, after a check for changes by other nodes. The error is
// Denied if the repository does not accept pushes.
func (n *Node) lfsRepositoryForPush(ctx context.Context, path git.RepoPath) (*handle, objects.Repository, error) {
	if n.pushes == nil {
		return nil, objects.Repository{}, errNoPushes()
	}
	h, r, err := n.openLFS(n.acquireCurrent(ctx, path))
	if err != nil {
		return nil, r, err
	}
	if _, err := h.PushPolicy(); err != nil {
		n.release(h)
		return nil, r, err
	}
	return h, r, nil
}

// checkLFSInside returns an error if the objects of a repository are outside the root, or would be.
func (n *Node) checkLFSInside(r objects.Repository) error {
	for _, dir := range []string{"lfs/objects", "lfs"} {
		real, err := filepath.EvalSymlinks(filepath.Join(r.Dir, dir))
		if err == nil && !n.options.Allows(real) {
			return fault.Wrap(fault.Denied, "the repository's LFS objects are outside the served root", errors.New(real))
		}
		if err == nil {
			break
		}
	}
	return nil
}

// lfs returns the repository for methods of objects.Store. The error is Corrupt if its configuration is not valid.
func (h *handle) lfs() (r objects.Repository, err error) {
	r = objects.Repository{Dir: h.Common, ID: h.Incarnation, Remote: h.place.LFS()}
	quota, isSet, err := h.LFSQuota()
	if isSet {
		r.Quota = cmp.Or(quota, -1)
	}
	r.Purged = make(map[lfs.OID]bool)
	for _, text := range h.PurgedLFS() {
		if id, err := lfs.ParseOID(text); err == nil {
			r.Purged[id] = true
		}
	}
	return r, err
}

// LFSBatch returns what the repository knows about objects, in their order.
func (n *Node) LFSBatch(ctx context.Context, path git.RepoPath, _ node.Session, b lfs.Batch) ([]lfs.Status,
	node.Outcome, error) {
	o := node.Outcome{Command: node.CommandLFSBatch, LFS: node.LFSOutcome{Objects: uint32(len(b.Objects))}}
	open := n.lfsRepositoryForRead
	if b.Upload {
		open = n.lfsRepositoryForPush
	}
	h, r, err := open(ctx, path)
	if err != nil {
		return nil, o, err
	}
	defer n.release(h)
	states, err := n.lfs.Check(ctx, r, b)
	o.LFS.Refused, o.Reason = objects.Refusals(states)
	return states, o, readError(err)
}

// lfsStates returns the function with which a push is checked against the objects of a repository; nil: it has none,
// and pushes are not checked.
func (n *Node) lfsStates(h *handle) func(context.Context, lfs.Batch) ([]lfs.Status, error) {
	if n.lfs == nil {
		return nil
	}
	return func(ctx context.Context, b lfs.Batch) ([]lfs.Status, error) {
		r, err := h.lfs()
		if err != nil {
			return nil, err
		}
		b.Upload = true // so that the objects are not removed before the push is visible
		return n.lfs.Check(ctx, r, b)
	}
}

// readError is the error of a read of objects.
func readError(err error) error {
	if fault.KindOf(err) == fault.Internal {
		return fault.Wrap(fault.Unavailable, "the LFS objects of the repository cannot be read", err)
	}
	return err
}

// minBulk is the number of bytes above which a download is a bulk response.
const minBulk = 64 << 10

// LFSDownload sends an object or a part of it.
func (n *Node) LFSDownload(ctx context.Context, path git.RepoPath, _ node.Session, d lfs.Download,
	response node.ResponseWriter) (o node.Outcome, err error) {
	o = node.Outcome{Command: node.CommandLFSDownload, LFS: node.LFSOutcome{Objects: 1}}
	h, r, err := n.lfsRepositoryForRead(ctx, path)
	if err != nil {
		return o, err
	}
	f, isHit, err := n.openObject(ctx, r, d.Object)
	n.release(h)
	if err != nil {
		return o, err
	}
	defer f.Close()
	if d.Offset < 0 || d.Offset > d.Size {
		return o, fault.New(fault.Invalid, "offset %d is outside of the object's %d bytes", d.Offset, d.Size)
	}
	length := d.Size - d.Offset
	if d.Length >= 0 {
		length = min(length, d.Length)
	}
	if length > minBulk {
		if err := response.StartBulk(!isHit); err != nil {
			return o, err
		}
	}
	response.SetLength(length)
	section := &bulk.Section{File: f, Offset: d.Offset, N: length}
	o.LFS.Cache = "hit"
	if !isHit {
		o.LFS.Cache = "miss"
	}
	o.LFS.Bytes, err = io.Copy(response, section)
	switch {
	case err == nil:
		return o, nil
	case section.Err() != nil:
		return o, fault.Wrap(fault.Corrupt, "the LFS object cannot be read", err)
	}
	return o, &node.ClientConnError{Err: err}
}

// openObject opens an object. isHit is false if it was copied to this node first.
func (n *Node) openObject(ctx context.Context, r objects.Repository, o lfs.Object) (f *os.File, isHit bool, err error) {
	if r.Purged[o.OID] {
		return nil, false, fault.New(fault.NotFound, "the repository has no LFS object %s", o.OID)
	}
	if r.Remote != nil {
		return r.Remote.Open(ctx, o)
	}
	f, err = n.lfs.Open(r, o)
	return f, true, err
}

// LFSUpload stores an object or a part of it. size is the number of bytes that are here.
func (n *Node) LFSUpload(ctx context.Context, path git.RepoPath, _ node.Session, u lfs.Upload,
	content io.Reader) (size int64, o node.Outcome, err error) {
	o = node.Outcome{Command: node.CommandLFSUpload, LFS: node.LFSOutcome{Objects: 1}}
	h, r, err := n.lfsRepositoryForPush(ctx, path)
	if err != nil {
		return 0, o, err
	}
	defer n.release(h)
	size, err = n.lfs.Upload(ctx, r, u, content)
	o.LFS.Bytes = max(size-u.Offset, 0)
	if err == nil && size == u.Size {
		if err = n.recheckLFS(ctx, path, h, u.OID); err != nil {
			size = 0
		}
	}
	if err != nil {
		o.Reason = objects.Reason(err)
	}
	return size, o, places.WriteError(err)
}

// LFSPart returns the number of bytes of an object that are here: all, or those of an interrupted upload.
func (n *Node) LFSPart(ctx context.Context, path git.RepoPath, _ node.Session, object lfs.Object) (int64, node.Outcome,
	error) {
	o := node.Outcome{Command: node.CommandLFSUpload, LFS: node.LFSOutcome{Objects: 1}}
	h, r, err := n.lfsRepositoryForPush(ctx, path)
	if err != nil {
		return 0, o, err
	}
	defer n.release(h)
	size, err := n.lfs.UploadedBytes(ctx, r, object)
	return size, o, readError(err)
}
