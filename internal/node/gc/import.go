package gc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/disk"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/lfs/objects"
	"github.com/packhorse-git/packhorse/internal/node/places"
)

// Imported is the result of Import.
type Imported struct {
	Imported objects.Usage `json:"imported"`
	Present  objects.Usage `json:"present"` // the repository had them before
	Missing  []Problem     `json:"missing"` // the directory does not have them
	Damaged  []Problem     `json:"damaged"` // they have other bytes there, or cannot be read
}

// Import adds the objects that the pointer files of a repository name, and that the repository does not have, from a
// directory of Git LFS or of another server. See layouts. The directory is not changed. Quotas do not apply.
func (k *Keeper) Import(ctx context.Context, path git.RepoPath, dir string, progress Progress) (Imported, error) {
	result := Imported{Missing: []Problem{}, Damaged: []Problem{}}
	if info, err := os.Stat(dir); err != nil {
		return result, fault.New(fault.Invalid, "cannot read the directory to import from: %v", err)
	} else if !info.IsDir() {
		return result, fault.New(fault.Invalid, "cannot import from %s: it is not a directory", dir)
	}
	path, err := k.listedPath(ctx, path)
	if err != nil {
		return result, err
	}
	h, err := k.Open(ctx, path)
	if err != nil {
		return result, err
	}
	defer h.Release()
	unhold, err := h.holdAll(ctx) // the packs are here
	if err != nil {
		return result, err
	}
	defer unhold()
	named, err := h.namedObjects(ctx)
	if err != nil {
		return result, err
	}
	states, err := k.Store.Check(ctx, h.LFS, lfs.Batch{Objects: named})
	if err != nil {
		return result, err
	}
	for i, o := range named {
		progress.show(int64(i), int64(len(named)), o.OID.String())
		if states[i].State == lfs.Present {
			result.Present.Add(o.Size)
			continue
		}
		if h.LFS.Purged[o.OID] {
			result.Missing = append(result.Missing, Problem{path.String(), o.OID.String(), "it was purged from the repository"})
			continue
		}
		err := k.importObject(ctx, h.LFS, o, dir)
		damage, isDamaged := errors.AsType[damagedFile](err)
		switch {
		case ctx.Err() != nil:
			return result, ctx.Err()
		case err == nil:
			result.Imported.Add(o.Size)
		case err == errNotInDir:
			result.Missing = append(result.Missing, Problem{path.String(), o.OID.String(), err.Error()})
		case isDamaged:
			result.Damaged = append(result.Damaged, Problem{path.String(), o.OID.String(), damage.Error()})
		default:
			return result, err
		}
	}
	return result, nil
}

// layouts returns the paths below a directory that an object can have in Git LFS, lfs-test-server, Gitea and GitLab.
// The directory can also be one above that of the objects.
func layouts(id lfs.OID) (paths []string) {
	s := id.String()
	for _, top := range []string{"", "objects", "lfs/objects", "lfs", "lfs-objects"} {
		paths = append(paths, filepath.Join(top, s[:2], s[2:4], s), filepath.Join(top, s[:2], s[2:4], s[4:]),
			filepath.Join(top, s[:2], s[2:]), filepath.Join(top, s))
	}
	return paths
}

// errNotInDir is the error of importObject if the directory does not have the object.
var errNotInDir = errors.New("the directory does not have the object")

// damagedFile is the error of importObject if the directory's file of the object is damaged.
type damagedFile string

func (d damagedFile) Error() string { return "the directory's file of the object " + string(d) }

// importObject copies an object from a directory.
func (k *Keeper) importObject(ctx context.Context, r objects.Repository, o lfs.Object, dir string) error {
	for _, path := range layouts(o.OID) {
		f, err := disk.Open(filepath.Join(dir, path))
		if errors.Is(err, fs.ErrNotExist) || fault.Is(err, fault.Corrupt) { // not a file
			continue
		}
		if err != nil {
			return fault.Wrap(fault.Unavailable, "cannot read an object to import", err)
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			return fault.Wrap(fault.Unavailable, "cannot read an object to import", err)
		}
		if info.Size() != o.Size {
			return damagedFile(fmt.Sprintf("has the size %d, not %d", info.Size(), o.Size))
		}
		p, err := k.Store.Create()
		if err != nil {
			return places.WriteError(err)
		}
		defer p.Close()
		for begin := ctx.Err(); begin == nil; begin = ctx.Err() {
			if _, err = io.CopyN(p, f, 1<<20); err != nil {
				break
			}
		}
		if readErr, ok := errors.AsType[*fs.PathError](err); ok && readErr.Op == "read" {
			return damagedFile("cannot be read: " + readErr.Err.Error())
		}
		if err == io.EOF {
			if p.Verify(o) != nil {
				return damagedFile("has other content: its SHA-256 is not the ID")
			}
			if err = p.Commit(r, o); err == nil && r.Remote != nil {
				err = r.Remote.Put(ctx, o)
			}
		}
		return errors.Join(err, ctx.Err())
	}
	return errNotInDir
}
