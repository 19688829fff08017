package gc

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/time/rate"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/lfs/objects"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
)

// Verification is the result of Verify.
type Verification struct {
	Verified objects.Usage `json:"verified"`
	Damaged  []Problem     `json:"damaged"` // objects that were moved aside, for each repository that had them
	Missing  []Problem     `json:"missing"` // other objects that pointer files name, but the repository does not have
	Failed   []Problem     `json:"failed"`  // repositories that could not be read
	Skipped  []Problem     `json:"skipped"` // repositories with a working tree, whose objects were not verified
}

// Verify reads all objects of a repository, or of all if path is nil, and compares them with their IDs. A damaged
// object is moved aside, so that clients upload it again. It also finds missing objects, except of repositories whose
// objects are at another server.
func (k *Keeper) Verify(ctx context.Context, path *git.RepoPath, progress Progress) (Verification, error) {
	v := verifier{Keeper: k, progress: progress}
	v.result = Verification{Damaged: []Problem{}, Missing: []Problem{}, Failed: []Problem{},
		Skipped: []Problem{}}
	if k.Copies {
		return v.result, fault.New(fault.Denied, "LFS objects are in the object store: use packhorse store check --deep")
	}
	if path != nil {
		listed, err := k.listedPath(ctx, *path)
		if err == nil {
			err = v.repository(ctx, listed, true)
		}
		if err == nil {
			err = v.missing(ctx, listed)
		}
		return v.result, err
	}
	err := v.all(ctx)
	if err == nil {
		err = k.eachRepository(ctx, places.ListQuery{}, func(path git.RepoPath) error {
			v.progress.show(v.result.Verified.Objects, 0, path.String())
			return v.tolerate(ctx, path, v.missing(ctx, path))
		})
	}
	return v.result, err
}

// verifier verifies objects.
type verifier struct {
	*Keeper
	limiter  *rate.Limiter // nil: no limit
	after    lfs.OID       // the objects of the pool up to this one were verified before
	done     func(lfs.OID) // called after each object of the pool; may be nil
	progress Progress
	result   Verification
}

// all verifies the objects of the pool, and then those that repositories do not share with it. With an object store it
// verifies the local copies.
func (v *verifier) all(ctx context.Context) error {
	if v.Copies {
		return v.verifyCopies(ctx)
	}
	err := v.Store.WalkPool(func(o lfs.Object, _ uint64) error {
		if bytes.Compare(o.OID[:], v.after[:]) <= 0 && v.after != (lfs.OID{}) {
			return ctx.Err()
		}
		if err := v.object(ctx, o, v.Store.VerifyPooled(ctx, o, v.limiter)); err != nil {
			return err
		}
		if v.done != nil {
			v.done(o.OID)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return v.eachLFS(ctx, func(path git.RepoPath) error {
		return v.tolerate(ctx, path, v.repository(ctx, path, false))
	})
}

// verifyCopies verifies the local copies of objects in an object store. It removes a damaged one, so that the next
// download makes it again.
func (v *verifier) verifyCopies(ctx context.Context) error {
	entries, err := os.ReadDir(v.Root)
	if err != nil {
		return err
	}
	for _, e := range entries {
		r := objects.Repository{Dir: filepath.Join(v.Root, e.Name())}
		err := v.Store.Walk(r, func(o lfs.Object, _ fs.FileInfo) error {
			err := v.Store.Verify(ctx, r, o, v.limiter)
			damage, isDamaged := errors.AsType[*objects.Damage](err)
			if err != nil && !isDamaged {
				return err
			}
			v.result.Verified.Add(o.Size)
			if !isDamaged {
				return nil
			}
			v.result.Damaged = append(v.result.Damaged, Problem{e.Name(), o.OID.String(), damage.Error()})
			v.Log.Error("a local copy of an LFS object is damaged and is downloaded again", "dir", r.Dir,
				"object", o.OID.String(), "error", damage)
			return v.Store.RemoveDamaged(r, damage)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// tolerate adds the error of a repository to the result, once. The verification goes on with others.
func (v *verifier) tolerate(ctx context.Context, path git.RepoPath, err error) error {
	if ctx.Err() != nil || err == nil || fault.Is(err, fault.NotFound) {
		return ctx.Err()
	}
	problem := Problem{Repository: path.String(), Problem: err.Error()}
	if errors.Is(err, errWorkingTree) {
		v.result.Skipped = append(v.result.Skipped, problem)
		return nil
	}
	if slices.Contains(v.result.Failed, problem) {
		return nil
	}
	v.Log.Warn("the LFS objects of a repository were not verified", "repository", path.String(), "error", err)
	v.result.Failed = append(v.result.Failed, problem)
	return nil
}

// repository verifies the objects of a repository. pooled reports whether to verify those of the pool, too.
func (v *verifier) repository(ctx context.Context, path git.RepoPath, pooled bool) error {
	h, err := v.Open(ctx, path)
	if err != nil {
		return err
	}
	defer h.Release()
	if !h.IsBare() {
		return errWorkingTree
	}
	return v.Store.Walk(h.LFS, func(o lfs.Object, info fs.FileInfo) error {
		if !pooled && v.Store.InPool(o, info) {
			return ctx.Err()
		}
		return v.object(ctx, o, v.Store.Verify(ctx, h.LFS, o, v.limiter))
	})
}

// object counts an object, and moves it aside if the error of its verification says that it is damaged.
func (v *verifier) object(ctx context.Context, o lfs.Object, err error) error {
	v.progress.show(v.result.Verified.Objects, 0, o.OID.String())
	damage, isDamaged := errors.AsType[*objects.Damage](err)
	if err != nil && !isDamaged {
		return err
	}
	v.result.Verified.Add(o.Size)
	if !isDamaged {
		return nil
	}
	repositories := []string{}
	err = v.Store.SetAside(damage, func(remove func(objects.Repository) (bool, error)) error {
		return v.eachLFS(ctx, func(path git.RepoPath) error {
			h, err := v.Open(ctx, path)
			if err != nil {
				return ctx.Err() // a repository that cannot be opened is not served
			}
			defer h.Release()
			removed, err := remove(h.LFS)
			if removed {
				repositories = append(repositories, path.String())
				v.result.Damaged = append(v.result.Damaged, Problem{path.String(), o.OID.String(), damage.Error()})
			}
			return err
		})
	})
	if len(repositories) == 0 {
		v.result.Damaged = append(v.result.Damaged, Problem{"", o.OID.String(), damage.Error()})
	}
	v.Log.Error("an LFS object is damaged", "object", o.OID.String(), "repositories", repositories, "error", damage)
	return err
}

// isElsewhere reports whether the objects of a repository need not be here: it is a mirror, or the .lfsconfig of its
// HEAD names another server.
func (h *Handle) isElsewhere(ctx context.Context) (bool, error) {
	if h.Place.MirrorMarks().Any() {
		return true, nil
	}
	snap, err := h.Refs.Snapshot(ctx)
	if err != nil || snap.Head().ID.IsZero() {
		return false, err
	}
	return receivepack.NamesLFSServer(func(id git.ObjectID) (git.ObjectType, []byte, error) {
		return h.Repo.Objects.Read(id, 0)
	}, snap.Head().ID, h.Format)
}

// missing finds the objects that pointer files of a repository name, but the repository does not have. It leaves out
// those that were damaged.
func (v *verifier) missing(ctx context.Context, path git.RepoPath) error {
	h, err := v.Open(ctx, path)
	if err != nil {
		return err
	}
	defer h.Release()
	if isElsewhere, err := h.isElsewhere(ctx); err != nil || isElsewhere {
		return err
	}
	named, err := h.namedObjects(ctx)
	if err != nil {
		return err
	}
	states, err := v.Store.Check(ctx, h.LFS, lfs.Batch{Objects: named})
	if err != nil {
		return err
	}
	damaged := make(map[string]bool)
	for _, p := range v.result.Damaged {
		if p.Repository == path.String() {
			damaged[p.OID] = true
		}
	}
	for i, s := range states {
		if s.State != lfs.Present && !damaged[named[i].OID.String()] {
			problem := "a pointer file names the object, but the repository does not have it"
			if s.Err != nil {
				problem = fault.Message(s.Err)
			}
			v.result.Missing = append(v.result.Missing, Problem{path.String(), named[i].OID.String(), problem})
		}
	}
	return nil
}

// namedObjects returns the objects that pointer files name, each once.
func (h *Handle) namedObjects(ctx context.Context) (named []lfs.Object, err error) {
	known := make(map[lfs.OID]bool)
	err = h.scanPointers(ctx, func(p lfs.Pointer) error {
		if !known[p.OID] {
			known[p.OID] = true
			named = append(named, p.Object)
		}
		return nil
	})
	return named, err
}
