package gc

import (
	"context"
	"io/fs"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/lfs/objects"
)

// Repository describes the LFS objects and locks of a repository.
type Repository struct {
	Repository string `json:"repository"`
	objects.Usage
	Shared objects.Usage `json:"shared"` // those whose files other repositories have, too
	Locks  int           `json:"locks"`
	Quota  int64         `json:"quota"`           // maximum of bytes; 0: none
	Error  string        `json:"error,omitempty"` // why the rest is not complete
}

// Object describes an object of a repository.
type Object struct {
	OID    string    `json:"oid"`
	Size   int64     `json:"size"`
	Time   time.Time `json:"time"`   // of the last upload, or of the last upload that was not necessary
	Shared bool      `json:"shared"` // another repository has the file, too
}

// List calls do for each repository with LFS objects or locks.
func (k *Keeper) List(ctx context.Context, do func(Repository) error) error {
	return k.eachLFS(ctx, func(path git.RepoPath) error {
		d, err := k.describeLFS(ctx, path)
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

func (k *Keeper) describeLFS(ctx context.Context, path git.RepoPath) (d Repository, err error) {
	d.Repository = path.String()
	h, err := k.Open(ctx, path)
	if err != nil {
		return d, err
	}
	defer h.Release()
	d.Quota = k.Store.Quota(h.LFS)
	err = k.walk(ctx, h.LFS, func(o Object) error {
		d.Usage.Add(o.Size)
		if o.Shared {
			d.Shared.Add(o.Size)
		}
		return nil
	})
	if err != nil {
		return d, err
	}
	names, err := h.Place.Locks().Names(ctx)
	d.Locks = len(names)
	return d, err
}

// ListObjects calls do for each object of a repository, in ascending order.
func (k *Keeper) ListObjects(ctx context.Context, path git.RepoPath, do func(Object) error) error {
	h, err := k.Open(ctx, path)
	if err != nil {
		return err
	}
	defer h.Release()
	return k.walk(ctx, h.LFS, do)
}

// walk calls do for each object of a repository, in ascending order.
func (k *Keeper) walk(ctx context.Context, r objects.Repository, do func(Object) error) error {
	if r.Remote != nil {
		return r.Remote.Walk(ctx, func(o lfs.Object, stored time.Time) error {
			return do(Object{OID: o.OID.String(), Size: o.Size, Time: stored})
		})
	}
	return k.Store.Walk(r, func(o lfs.Object, info fs.FileInfo) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		return do(Object{o.OID.String(), o.Size, info.ModTime(), objects.IsShared(info)})
	})
}
