package ingest

import (
	"bufio"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/disk"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/node/places"
)

// peel finds the objects that new annotated tags peel to, and skips branches that are not commits.
func (i *ingestion) peel() error {
	kept := i.packed[:0]
	for _, ref := range i.packed {
		if ref.PeelKnown {
			kept = append(kept, ref)
			continue
		}
		typ, _, err := i.Objects.Header(ref.ID)
		if err == nil && typ == git.Tag {
			ref.Peeled, _, err = i.Graph.Peel(ref.ID)
		}
		if err != nil {
			return err
		}
		if typ != git.Commit && strings.HasPrefix(string(ref.Name), places.BranchPrefix) {
			i.result.Skipped = append(i.result.Skipped, ref.Name)
			continue
		}
		kept = append(kept, ref)
	}
	i.packed = kept
	return nil
}

// moveRefs replaces all refs by one rename: it writes packed-refs, which holds all refs of such a repository. So names
// that differ in case, or of which one is a directory of another, do not disturb each other.
func (i *ingestion) moveRefs(ctx context.Context) (err error) {
	path := filepath.Join(i.Common, "packed-refs")
	lock, err := places.LockFile(ctx, path)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = places.WriteError(errors.Join(err, os.Remove(lock.Name())))
		}
	}()
	if err := errors.Join(writePackedRefs(lock, i.packed), lock.Sync(), lock.Close()); err != nil {
		return err
	}
	if err := os.Rename(lock.Name(), path); err != nil {
		return err
	}
	if err := disk.SyncDir(i.Common); err != nil {
		i.Log.Warn("the update of a repository can be lost in a power failure", "dir", i.Common, "error", err)
	}
	return nil
}

func writePackedRefs(f *os.File, list []refs.Ref) error {
	w := bufio.NewWriterSize(f, 256<<10)
	_, _ = w.WriteString(refs.PackedHeader) // Flush returns the first error
	for i := range list {
		_, _ = w.Write(refs.AppendPacked(w.AvailableBuffer(), &list[i]))
	}
	return w.Flush()
}

// packLooseRefs moves loose refs to packed-refs if there are any.
func (i *ingestion) packLooseRefs(ctx context.Context) error {
	errFound := errors.New("a loose ref")
	err := filepath.WalkDir(filepath.Join(i.Common, "refs"), func(_ string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			return errFound
		}
		return err
	})
	if err != errFound {
		return places.WriteError(err)
	}
	return i.git(ctx, []string{"pack-refs", "--all", "--prune"}, nil)
}
