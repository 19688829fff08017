package hydrate

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// networksDir has, below the root, the packs that forks borrow: ID/objects/pack has packs of the repository ID, for all
// its forks. It is not the local copy of that repository, whose other objects forks must not have.
const networksDir = ".packhorse/networks"

// share is a part of a record: the packs of one directory.
type share struct {
	*Repository
	record *replog.Record
}

// shares returns the parts of a record. A record has its own packs, and those that it borrows.
func (r *Repository) shares(rec *replog.Record) []share {
	list := []share{{r, rec}}
	for _, id := range rec.Lenders() {
		lent := &replog.Record{Number: rec.Number, Txn: rec.Txn}
		for _, p := range rec.Packs {
			if p.From == id {
				p.From = ""
				lent.Packs = append(lent.Packs, p)
			}
		}
		list = append(list, share{r.borrow(id), lent})
	}
	return list
}

// Use makes sure that all packs of rec are here until the caller calls done, which may be called more than once. If
// packs are missing, it waits for a hydration, and calls progress about twice a second with the bytes that have arrived
// and their total. progress may be nil.
//
// If the hydration takes longer than Options.Wait, the error is Unavailable with a retry hint, and the hydration
// continues. An object that is missing in the bucket is Corrupt and wraps bucket.ErrNotFound: if rec is no longer the
// head, the head may not need the object. Other errors are NotFound after Remove, Corrupt if an object is damaged, and
// Unavailable if the bucket does not answer or the packs do not fit.
func (r *Repository) Use(ctx context.Context, rec *replog.Record, progress func(done, total int64)) (done func(),
	err error) {
	var uses []func()
	done = sync.OnceFunc(func() {
		for _, end := range uses {
			end()
		}
	})
	for _, s := range r.shares(rec) {
		end, err := s.use(ctx, s.record, progress)
		if err != nil {
			done()
			return nil, err
		}
		uses = append(uses, end)
	}
	return done, nil
}

// Prefetch begins a hydration for rec, unless the packs are here or a hydration runs. It does not wait for it.
func (r *Repository) Prefetch(rec *replog.Record) {
	for _, s := range r.shares(rec) {
		s.prefetch(s.record)
	}
}

// Complete reports whether all packs of rec are here.
func (r *Repository) Complete(rec *replog.Record) bool {
	for _, s := range r.shares(rec) {
		if !s.has(s.record) {
			return false
		}
	}
	return true
}

// Path returns the place of a file of a pack of the repository or of another one.
func (r *Repository) Path(p *replog.Pack, f replog.File) string {
	if p.From != "" {
		return r.borrow(p.From).path(p, f)
	}
	return r.path(p, f)
}

// Lenders returns the object directories from which a record borrows.
func (r *Repository) Lenders(rec *replog.Record) (dirs []string) {
	for _, id := range rec.Lenders() {
		dirs = append(dirs, filepath.Join(r.borrow(id).dir, "objects"))
	}
	return dirs
}

// borrow returns the directory with the packs of another repository, and notes that the repository reads it.
func (r *Repository) borrow(id string) *Repository {
	r.cache.mu.Lock()
	defer r.cache.mu.Unlock()
	n := r.cache.networkLocked(id)
	n.readers[r] = true
	return n
}

// networkLocked returns the directory with packs of a repository for its forks.
func (c *Cache) networkLocked(id string) *Repository {
	key := networksDir + "/" + id
	n := c.repositories[key]
	if n == nil {
		n = newRepository(c, id)
		n.dir, n.readers = filepath.Join(c.options.Root, key), map[*Repository]bool{}
		c.repositories[key] = n
	}
	return n
}

// writeAlternates makes the local copy borrow from the directories of two records. Requests that began before the
// second record still need those of the first, which may be nil.
func (r *Repository) writeAlternates(before, rec *replog.Record) error {
	dirs := r.Lenders(rec)
	if before != nil {
		dirs = append(dirs, r.Lenders(before)...)
	}
	var text strings.Builder
	for _, dir := range dirs {
		if err := os.MkdirAll(filepath.Join(dir, "pack"), 0o777); err != nil {
			return err
		}
		path, err := filepath.Rel(filepath.Join(r.dir, "objects"), dir)
		if err != nil {
			return err
		}
		if !strings.Contains(text.String(), path) {
			text.WriteString(path + "\n")
		}
	}
	const name = "objects/info/alternates"
	if text.Len() > 0 {
		return r.write(name, text.String())
	}
	if err := os.Remove(filepath.Join(r.dir, name)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// link links a file of a pack for forks from the local copy of the repository that has it, if it is there.
func (r *Repository) link(p *replog.Pack, f replog.File, to string) bool {
	c := r.cache
	c.mu.Lock()
	owner := c.repositories[r.id]
	var has *localPack
	if owner != nil && owner != r {
		has = owner.packs[packName(p)]
	}
	isIntact := has != nil && !has.unchecked
	c.mu.Unlock()
	return isIntact && f.Ext != ".graph" && os.Link(owner.path(p, f), to) == nil
}

// loadNetworks finds the packs that forks borrow.
func (c *Cache) loadNetworks(unchecked bool) error {
	entries, err := os.ReadDir(filepath.Join(c.options.Root, networksDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		n := c.networkLocked(e.Name())
		n.markUnchecked(unchecked)
		if err := n.loadPacks(); err != nil {
			return err
		}
		n.unchecked = false // it has no record
		c.touchLocked(n)
	}
	return nil
}
