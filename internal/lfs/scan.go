package lfs

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
)

// Pointer is a pointer file.
type Pointer struct {
	Object
	Blob git.ObjectID // with the pointer file
}

const (
	// minPointer is the size of the shortest pointer file: a version, the line "oid sha256:" with 64 digits, and a size.
	minPointer = 32 + 76 + 6
	// maxPacks is the maximum number of packs. They are all open during a scan.
	maxPacks = 2000
	// keptBytes is the memory for bases of deltas.
	keptBytes = 8 << 20
)

// ScanPointers calls fn for each pointer file among the objects of a store and its alternates, in no particular order.
// It can report a pointer file several times. cache may be nil.
//
// It reads all blobs that are small enough for a pointer file, in all packs and loose objects, reachable or not. So an
// object that any ref, reflog or recent unreachable commit needs is always found, and no walk through history is
// necessary. The price is that an object is named until Git has removed the blob itself.
//
// The pointers are complete only if there is no error: a damaged pack or object is an error of kind Corrupt. Other
// errors are those of fn, of ctx, and of reading files.
func ScanPointers(ctx context.Context, store *pack.Store, cache *PointerCache, fn func(Pointer) error) error {
	report := func(id git.ObjectID, data []byte) error {
		if o, ok := ParsePointer(data); ok {
			return fn(Pointer{o, id})
		}
		return nil
	}
	if err := store.Refresh(); err != nil { // for alternates
		return err
	}
	small := pack.SmallBlobs{Least: minPointer, Most: MaxPointer - 1, Read: report}
	if err := small.Loose(ctx, store); err != nil { // before the packs, because objects are packed meanwhile
		return err
	}
	return store.Raw(maxPacks, func(packs []*pack.Raw) error {
		names := make(map[string]bool, len(packs))
		for _, p := range packs {
			names[filepath.Base(p.Path)] = true
		}
		cache.retain(names)
		for _, p := range packs {
			if err := scanPack(ctx, store, packs, p, cache, small, fn); err != nil {
				return err
			}
		}
		return nil
	})
}

// scanPack reports the pointer files of a pack.
func scanPack(ctx context.Context, store *pack.Store, packs []*pack.Raw, p *pack.Raw, cache *PointerCache,
	small pack.SmallBlobs, fn func(Pointer) error) error {
	name := filepath.Base(p.Path)
	known, ok := cache.load(name)
	if !ok {
		small.Read = func(id git.ObjectID, data []byte) error {
			if o, ok := ParsePointer(data); ok {
				known = append(known, Pointer{o, id})
			}
			return nil
		}
		reader := pack.NewReader(store, packs, keptBytes)
		defer reader.Close()
		if err := small.InPack(ctx, reader, p); err != nil {
			return fault.Wrap(fault.KindOf(err), fmt.Sprintf("cannot read the blobs of pack %s", name), err)
		}
		cache.save(name, known)
	}
	for _, pointer := range known {
		if err := fn(pointer); err != nil {
			return err
		}
	}
	return nil
}
