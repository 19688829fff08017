package storage

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/lfs/objects"
	"github.com/packhorse-git/packhorse/internal/node/places"
)

// checkPurgeableLFS returns an error if the node or the repository has no such LFS objects, unless they were purged
// before, perhaps by another node.
func (n *Node) checkPurgeableLFS(ctx context.Context, path git.RepoPath, ids []lfs.OID) error {
	if len(ids) == 0 {
		return nil
	}
	h, r, err := n.openLFS(n.acquireCurrent(ctx, path))
	if err != nil {
		return err
	}
	defer n.release(h)
	var b lfs.Batch
	for _, id := range ids {
		if !r.Purged[id] {
			b.Objects = append(b.Objects, lfs.Object{OID: id})
		}
	}
	states, err := n.lfs.Check(ctx, r, b)
	for i, state := range states {
		if err == nil && state.State == lfs.Missing {
			err = fault.New(fault.NotFound, "the repository has no LFS object %s", b.Objects[i].OID)
		}
	}
	return readError(err)
}

// pointerNotes returns remarks about pointer files that are about to be purged without their objects.
func (h *handle) pointerNotes(ctx context.Context, o places.PurgeOptions) (notes []string, err error) {
	release, err := h.Use(ctx, nil)
	if err != nil {
		return nil, err
	}
	defer release()
	for _, id := range o.IDs {
		typ, size, err := h.Objects.Header(id)
		if err != nil || typ != git.Blob || size >= lfs.MaxPointer {
			continue // it does not exist, or is not a pointer file
		}
		_, data, err := h.Objects.Read(id, 0)
		if p, ok := lfs.ParsePointer(data); err == nil && ok && !slices.Contains(o.LFS, p.OID) {
			notes = append(notes, fmt.Sprintf("object %s is a pointer file of Git LFS, whose LFS object remains: to remove it, "+
				"purge sha256:%s, too", id, p.OID))
		}
	}
	return notes, nil
}

// removeLFS removes the files of purged LFS objects from the repositories on the disk that were purged together.
func (n *Node) removeLFS(ctx context.Context, o places.PurgeOptions, done *places.Purged) error {
	for _, id := range o.LFS {
		isShared := false // after the last one
		for _, member := range done.Members {
			h, r, err := n.openLFS(n.acquireAny(ctx, member))
			if err != nil {
				return err
			}
			var files []string
			files, isShared, err = n.lfs.Purge(r, id)
			n.release(h)
			for _, file := range files {
				done.Files = append(done.Files, strings.TrimPrefix(file, n.root+"/"))
			}
			if err != nil {
				return places.WriteError(err)
			}
		}
		if isShared {
			done.Notes = append(done.Notes, fmt.Sprintf("LFS object %s remains in the pool: a repository that is not a fork "+
				"has it, too", id))
		}
	}
	return nil
}

// findLFS adds the files of LFS objects to a search.
func (n *Node) findLFS(ctx context.Context, paths []git.RepoPath, ids []lfs.OID, x *places.Search) error {
	for _, path := range paths {
		if len(ids) == 0 {
			break
		}
		h, r, err := n.openLFS(n.acquireAny(ctx, path))
		if err != nil {
			return err
		}
		for _, id := range ids {
			files, _, filesErr := n.lfs.Files(r, id)
			if err == nil {
				err = readError(filesErr)
			}
			for _, file := range files {
				x.Copies = append(x.Copies, strings.TrimPrefix(file, n.root+"/"))
			}
		}
		n.release(h)
		if err != nil {
			return err
		}
	}
	slices.Sort(x.Copies)
	x.Copies = slices.Compact(x.Copies)
	return nil
}

// recheckLFS returns an error if the repository of an upload was removed or replaced meanwhile, or if the object was
// purged. A purge removes the objects that it finds after it has noted their IDs, and an upload notices these after it
// has added the object. So one of the two removes it.
func (n *Node) recheckLFS(ctx context.Context, path git.RepoPath, before *handle, id lfs.OID) error {
	h, r, err := n.lfsRepositoryForPush(ctx, path)
	if err == nil {
		defer n.release(h)
	}
	switch {
	case fault.Is(err, fault.NotFound) || err == nil && h.Incarnation != before.Incarnation:
		return fault.New(fault.NotFound, "the repository was removed, renamed or replaced during the upload")
	case err != nil || !r.Purged[id]:
		return err
	}
	if r.Remote != nil {
		if _, problem, err := r.Remote.Purge(ctx, id); err != nil || problem != "" {
			n.log.Error("a purged LFS object was uploaded and cannot be removed: repeat the purge", "repository", path.String(),
				"object", id.String(), "error", err, "problem", problem)
		}
	}
	if _, _, err := n.lfs.Purge(r, id); err != nil {
		return err
	}
	return objects.ErrPurged(id)
}

// Index is the search index of this process.
type Index interface {
	// Purge removes the shards of a repository, unless they were made after the purge with this mark (Resolved.Purges). It
	// waits until searches do not use them.
	Purge(ctx context.Context, path git.RepoPath, mark string) error
	// Copies returns the shards of a repository with copies of blobs.
	Copies(ctx context.Context, path git.RepoPath, ids []git.ObjectID) ([]string, error)
}

// SetIndex sets the search index from which objects are purged. Call it before the first request.
func (n *Node) SetIndex(index Index) { n.index = index }

// Reopen opens a repository whose settings another node may have changed, and removes local copies of objects that were
// purged: those of Git LFS, and the search index.
func (n *Node) Reopen(ctx context.Context, path git.RepoPath) error {
	h, err := n.acquireCurrent(ctx, path)
	if err != nil {
		return err
	}
	defer n.release(h)
	if mark := h.PurgeMark(); n.index != nil && mark != "" {
		err = n.index.Purge(ctx, path, mark)
	}
	if n.lfs == nil || err != nil {
		return err
	}
	r, err := h.lfs()
	for id := range r.Purged {
		if err == nil {
			_, _, err = n.lfs.Purge(r, id)
		}
	}
	return err
}
