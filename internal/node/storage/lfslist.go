package storage

import (
	"context"
	"io/fs"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/lfs/objects"
)

// LFSRepository describes the LFS objects and locks of a repository.
type LFSRepository struct {
	Repository string `json:"repository"`
	objects.Usage
	Shared objects.Usage `json:"shared"` // those whose files other repositories have, too
	Locks  int           `json:"locks"`
	Quota  int64         `json:"quota"`           // maximum of bytes; 0: none
	Error  string        `json:"error,omitempty"` // why the rest is not complete
}

// LFSObject describes an object of a repository.
type LFSObject struct {
	OID    string    `json:"oid"`
	Size   int64     `json:"size"`
	Time   time.Time `json:"time"`   // of the last upload, or of the last upload that was not necessary
	Shared bool      `json:"shared"` // another repository has the file, too
}

// LFSList calls do for each repository with LFS objects or locks.
func (n *Node) LFSList(ctx context.Context, do func(LFSRepository) error) error {
	return n.eachLFS(ctx, func(path git.RepoPath) error {
		d, err := n.describeLFS(ctx, path)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case fault.Is(err, fault.NotFound):
			return nil
		case err != nil:
			d.Error = err.Error()
		case d.Objects == 0 && d.Locks == 0:
			return nil
		}
		return do(d)
	})
}

func (n *Node) describeLFS(ctx context.Context, path git.RepoPath) (d LFSRepository, err error) {
	d.Repository = path.String()
	h, r, err := n.lfsRepository(ctx, path)
	if err != nil {
		return d, err
	}
	defer n.release(h)
	d.Quota = n.lfs.Quota(r)
	err = n.walkLFS(ctx, r, func(o LFSObject) error {
		d.Usage.Add(o.Size)
		if o.Shared {
			d.Shared.Add(o.Size)
		}
		return nil
	})
	if err != nil {
		return d, err
	}
	names, err := h.place.Locks().Names(ctx)
	d.Locks = len(names)
	return d, err
}

// LFSListObjects calls do for each object of a repository, in ascending order.
func (n *Node) LFSListObjects(ctx context.Context, path git.RepoPath, do func(LFSObject) error) error {
	h, r, err := n.lfsRepository(ctx, path)
	if err != nil {
		return err
	}
	defer n.release(h)
	return n.walkLFS(ctx, r, do)
}

// walkLFS calls do for each object of a repository, in ascending order.
func (n *Node) walkLFS(ctx context.Context, r objects.Repository, do func(LFSObject) error) error {
	if r.Remote != nil {
		return r.Remote.Walk(ctx, func(o lfs.Object, stored time.Time) error {
			return do(LFSObject{OID: o.OID.String(), Size: o.Size, Time: stored})
		})
	}
	return n.lfs.Walk(r, func(o lfs.Object, info fs.FileInfo) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		return do(LFSObject{o.OID.String(), o.Size, info.ModTime(), objects.IsShared(info)})
	})
}
