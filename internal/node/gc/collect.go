package gc

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/lfs/objects"
	"github.com/packhorse-git/packhorse/internal/node/places"
)

// Progress is called during long work with the number of finished steps, the number of all or zero if it is not known,
// and the present step.
type Progress func(done, total int64, what string)

func (p Progress) show(done, total int64, what string) {
	if p != nil {
		p(done, total, what)
	}
}

// Problem is a problem of a repository or of one of its objects.
type Problem struct {
	Repository string `json:"repository"`
	OID        string `json:"oid,omitempty"` // ID of the object; "": it is of the repository itself
	Problem    string `json:"problem"`
}

// CollectOptions configure Collect.
type CollectOptions struct {
	Path     *git.RepoPath // of the only repository to collect from; nil: from all
	DryRun   bool          // nothing is removed
	Grace    time.Duration // instead of Schedule.Grace; 0: not set
	Removed  func(Removed) // called for each object that is removed, or would be with DryRun; may be nil
	Progress Progress
}

// Removed is an object that Collect removes from a repository.
type Removed struct {
	Repository string `json:"repository"`
	OID        string `json:"oid"`
	Size       int64  `json:"size"`
}

// Garbage is the result of Collect.
type Garbage struct {
	Repositories int64         `json:"repositories"` // with LFS objects
	Removed      objects.Usage `json:"removed"`      // from repositories
	Freed        objects.Usage `json:"freed"`        // from the disk or the store, because no repository has them
	Failed       []Problem     `json:"failed"`       // repositories whose objects were all kept
	Skipped      []Problem     `json:"skipped"`      // with a working tree, with linked objects, or without pointer files
}

// Collect removes objects from repositories that no pointer file names, and that were not uploaded within
// Schedule.Grace, or lfs.grace of the repository. Then it removes from the disk what no repository has. Repositories
// that cannot be read, those with a working tree, those whose lfs/objects is a symbolic link, and those without any
// pointer file keep all of their objects. For CollectOptions.Path that is an error. Uploads and pushes may run. In a
// store, see objects.Remote.
func (k *Keeper) Collect(ctx context.Context, o CollectOptions) (Garbage, error) {
	result := Garbage{Failed: []Problem{}, Skipped: []Problem{}}
	if err := k.collecting.Acquire(ctx, 1); err != nil {
		return result, err
	}
	defer k.collecting.Release(1)
	collect := k.collectAll
	if o.Path != nil {
		collect = k.collectOne
	}
	err := collect(ctx, o, &result)
	if err != nil || o.DryRun {
		return result, err
	}
	freed, err := k.Store.CollectPool(ctx.Err)
	result.Freed.Objects += freed.Objects
	result.Freed.Bytes += freed.Bytes
	return result, err
}

// collectOne removes the garbage of the repository at o.Path.
func (k *Keeper) collectOne(ctx context.Context, o CollectOptions, result *Garbage) error {
	path, err := k.listedPath(ctx, *o.Path)
	if err != nil {
		return err
	}
	result.Repositories = 1
	return k.collectRepository(ctx, path, o, result)
}

// collectAll removes the garbage of all repositories.
func (k *Keeper) collectAll(ctx context.Context, o CollectOptions, result *Garbage) error {
	return k.eachLFS(ctx, func(path git.RepoPath) error {
		o.Progress.show(result.Repositories, 0, path.String())
		err := k.collectRepository(ctx, path, o, result)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		result.Repositories++
		switch {
		case err == nil || fault.Is(err, fault.NotFound):
		case errors.Is(err, errWorkingTree) || errors.Is(err, errNoPointers) || errors.Is(err, objects.ErrLinked):
			k.Log.Info("the LFS objects of a repository are left alone", "repository", path.String(), "error", err)
			result.Skipped = append(result.Skipped, Problem{Repository: path.String(), Problem: err.Error()})
		default:
			k.Log.Warn("the LFS garbage of a repository was not collected", "repository", path.String(), "error", err)
			result.Failed = append(result.Failed, Problem{Repository: path.String(), Problem: err.Error()})
		}
		return nil
	})
}

// errWorkingTree is the error of changes of LFS objects in a user's clone. Its index and other clones may need objects
// that its history does not name.
var errWorkingTree = fault.New(fault.Denied, "the repository has a working tree: its LFS objects are left alone")

// errNoPointers is the error of a collection in a repository whose objects are probably for other repositories.
var errNoPointers = fault.New(fault.Denied,
	"no pointer file here names an LFS object: all are kept, because other repositories may use them (lfs.url)")

// collectRepository removes the garbage of one repository, and adds it to the result.
func (k *Keeper) collectRepository(ctx context.Context, path git.RepoPath, o CollectOptions,
	result *Garbage) error {
	h, err := k.Open(ctx, path)
	if err != nil {
		return err
	}
	defer h.Release()
	if !h.IsBare() {
		return errWorkingTree
	}
	grace, isSet, err := h.LFSGrace()
	if err != nil {
		return err
	}
	if !isSet {
		grace = cmp.Or(o.Grace, k.Grace)
	}
	if grace < 0 {
		return nil
	}
	c := objects.Collection{Before: time.Now().Add(-grace), DryRun: o.DryRun,
		Named: func() (map[lfs.OID]bool, error) { return h.namedIDs(ctx) },
		Removed: func(object lfs.Object) {
			result.Removed.Add(object.Size)
			if o.Removed != nil {
				o.Removed(Removed{path.String(), object.OID.String(), object.Size})
			}
		},
		Freed: func(object lfs.Object) { result.Freed.Add(object.Size) },
	}
	if h.LFS.Remote != nil {
		return k.Store.CollectRemote(ctx, h.LFS, c)
	}
	return k.collectFiles(ctx, h, c)
}

// collectFiles removes the garbage of a repository from its directory.
func (k *Keeper) collectFiles(ctx context.Context, h *Handle, o objects.Collection) error {
	c, err := k.Store.NewCollector(h.LFS, o.Before)
	if err != nil {
		return err
	}
	defer c.Close()
	if !o.DryRun {
		if err := c.Recover(); err != nil {
			return err
		}
	}
	old, err := c.Candidates()
	if err != nil || len(old) == 0 {
		return err
	}
	named, err := o.Named()
	if err != nil {
		return err
	}
	// The pointers must be those of the repository that the Collector has open.
	if !h.IsFresh() {
		return fault.New(fault.NotFound, "the repository was removed, renamed or replaced meanwhile")
	}
	for _, candidate := range old {
		if err := ctx.Err(); err != nil {
			return err
		}
		if named[candidate.OID] {
			continue
		}
		gone := o.DryRun
		if !o.DryRun {
			if gone, err = c.Remove(candidate); err != nil {
				return err
			}
		}
		if gone {
			o.Removed(candidate)
		}
	}
	return nil
}

// namedIDs returns the IDs of the objects that pointer files name. The error is errNoPointers if the repository has no
// pointer file.
func (h *Handle) namedIDs(ctx context.Context) (map[lfs.OID]bool, error) {
	release, err := h.holdAll(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	named := make(map[lfs.OID]bool)
	err = h.scanPointers(ctx, func(p lfs.Pointer) error {
		named[p.OID] = true
		return nil
	})
	if err == nil && len(named) == 0 {
		err = errNoPointers
	}
	return named, err
}

// holdAll is Hold that waits for the copy of the packs to this node as long as it makes progress.
func (h *Handle) holdAll(ctx context.Context) (release func(), err error) {
	for before := int64(-1); ; {
		copied := before
		release, err = h.Use(ctx, func(done, _ int64) { copied = done })
		if !fault.Is(err, fault.Unavailable) || copied <= before {
			return release, err
		}
		before = copied
	}
}

// scanPointers calls fn for each pointer file of the repository, see lfs.ScanPointers. Directories with a working tree,
// or without LFS objects and locks, get no cache.
func (h *Handle) scanPointers(ctx context.Context, fn func(lfs.Pointer) error) error {
	var cache *lfs.PointerCache
	if dir := filepath.Join(h.Common, "lfs"); h.IsBare() && isDir(dir) {
		cache = lfs.NewPointerCache(filepath.Join(dir, "pointers"))
	}
	return lfs.ScanPointers(ctx, h.Repo.Objects, cache, fn)
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// listedPath returns the path with which a list names a repository.
func (k *Keeper) listedPath(ctx context.Context, path git.RepoPath) (git.RepoPath, error) {
	place, err := k.Places.Acquire(ctx, k.Places.Name(path))
	if err != nil {
		return path, err
	}
	defer place.Release()
	return place.Path(), nil
}

// eachLFS calls do for each repository that may have LFS objects or locks.
func (k *Keeper) eachLFS(ctx context.Context, do func(git.RepoPath) error) error {
	return k.eachRepository(ctx, places.ListQuery{LFS: true}, do)
}

// eachRepository calls do for each repository of a query.
func (k *Keeper) eachRepository(ctx context.Context, q places.ListQuery, do func(git.RepoPath) error) error {
	for q.Limit = places.MaxPage; ; {
		page, err := k.Places.List(ctx, q)
		if err != nil {
			return err
		}
		for _, below := range page.Paths {
			path, err := git.ParseRepoPath(below)
			if err != nil {
				return err
			}
			if err := do(path); err != nil {
				return err
			}
		}
		if q.After = page.Next; q.After == "" {
			return nil
		}
	}
}
