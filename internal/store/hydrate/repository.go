package hydrate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sync"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// Repository is the local copy of one repository. It is safe for concurrent use.
type Repository struct {
	cache    *Cache
	id       string
	dir      string
	applying chan struct{} // has one element while Apply or Applied runs

	// Guarded by cache.mu. A task owns the files of packs while it runs, and removes or adds them.
	applied   *replog.Record // nil: none, or not in memory
	loaded    bool           // the record file was read, and applied is its content
	unchecked bool           // the machine crashed since the record and the refs were written and compared
	removed   bool
	packs     map[string]*localPack // by base name of the key; both files are here
	uses      map[uint64]int        // running uses by number of their record
	complete  *replog.Record        // a record whose packs are all here, or nil
	stale     int                   // packs whose stale is not 0
	task      *task                 // the running one, or nil
	failed    *task                 // the last hydration, if it failed
	files     map[string]*localFile // by name
	fetches   map[string]*fetch     // running, by name
	readers   map[*Repository]bool  // of packs for forks: the local copies that borrow them; otherwise nil
}

// localPack is a pack on the local disk.
type localPack struct {
	bytes     int64
	since     uint64 // number of the record for which it was added; 0 if it was here at the start
	stale     uint64 // number of the first applied record that does not name it; 0 if none
	unchecked bool   // it has to be compared with its checksum before its next use
}

func newRepository(c *Cache, id string) *Repository {
	return &Repository{cache: c, id: id, dir: filepath.Join(c.options.Root, id+".git"),
		applying: make(chan struct{}, 1), packs: map[string]*localPack{}, uses: map[uint64]int{},
		files: map[string]*localFile{}, fetches: map[string]*fetch{}}
}

// ID returns the repository's ID.
func (r *Repository) ID() string { return r.id }

// Dir returns the path of the bare repository. It exists after Apply.
func (r *Repository) Dir() string { return r.dir }

const commitGraph = "objects/info/commit-graph"

// packName returns the name of a pack in objects/pack, without an extension. Unlike replog.Pack.Name it is as unique as
// the key: two pushes of the same objects have two packs.
func packName(p *replog.Pack) string { return path.Base(p.Key) }

func (r *Repository) packDir() string { return filepath.Join(r.dir, "objects", "pack") }

// use is Use for the repository's own packs.
func (r *Repository) use(ctx context.Context, rec *replog.Record, progress func(done, total int64)) (done func(),
	err error) {
	c := r.cache
	c.mu.Lock()
	r.uses[rec.Number]++
	c.mu.Unlock()
	release := sync.OnceFunc(func() { r.release(rec.Number) })
	w := waiter{ctx: ctx, progress: progress}
	defer w.stop()
	for {
		c.mu.Lock()
		if r.hasAllLocked(rec) {
			c.touchLocked(r)
			c.mu.Unlock()
			return release, nil
		}
		t, err := r.hydrateLocked(rec)
		c.mu.Unlock()
		if err == nil {
			err = w.wait(t, rec.Txn, c.options.Wait)
		}
		if err != nil {
			release()
			return nil, err
		}
	}
}

// hasAllLocked reports whether all own packs of rec can be used.
func (r *Repository) hasAllLocked(rec *replog.Record) bool {
	if r.complete == rec {
		return true
	}
	if r.removed {
		return false
	}
	for i := range rec.Packs {
		if rec.Packs[i].From != "" {
			continue
		}
		if p := r.packs[packName(&rec.Packs[i])]; p == nil || p.unchecked {
			return false
		}
	}
	r.complete = rec
	return true
}

// release ends a use.
func (r *Repository) release(number uint64) {
	c := r.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.uses[number]--; r.uses[number] == 0 {
		delete(r.uses, number)
	}
	r.sweepLocked()
}

// prefetch is Prefetch for the repository's own packs.
func (r *Repository) prefetch(rec *replog.Record) {
	r.cache.mu.Lock()
	defer r.cache.mu.Unlock()
	if r.task == nil && !r.hasAllLocked(rec) {
		_, _ = r.hydrateLocked(rec) // the log has its error
	}
}

// has is Complete for the repository's own packs.
func (r *Repository) has(rec *replog.Record) bool {
	r.cache.mu.Lock()
	defer r.cache.mu.Unlock()
	return r.hasAllLocked(rec)
}

// Check makes the next use compare all local packs with their checksums and download damaged ones again. Call it if
// reading an object failed with fault.Corrupt.
func (r *Repository) Check() {
	r.cache.mu.Lock()
	defer r.cache.mu.Unlock()
	for _, x := range r.cache.repositories {
		if x != r && !x.readers[r] {
			continue
		}
		x.complete = nil
		for _, p := range x.packs {
			p.unchecked = true
		}
	}
}

// Install moves a pack that rec adds into the local copy, so that it does not have to be downloaded. The file at from,
// a path without an extension, has the pack's content, and its index and other files are next to it. The bucket has
// them too. An error costs only a download.
func (r *Repository) Install(rec *replog.Record, p *replog.Pack, from string) error {
	for _, f := range p.Files() {
		info, err := os.Stat(from + f.Ext)
		if err == nil && info.Size() != f.Bytes {
			err = fmt.Errorf("%s: it has %d bytes, and its record says %d", from+f.Ext, info.Size(), f.Bytes)
		}
		if err != nil {
			return fault.Wrap(fault.Internal, "cannot add a pack to the local copy", err)
		}
	}
	if err := r.publish(p, func(f replog.File) string { return from + f.Ext }); err != nil {
		return diskError(err)
	}
	c := r.cache
	c.mu.Lock()
	c.addLocked(r, packName(p), &localPack{bytes: packBytes(p), since: rec.Number})
	c.mu.Unlock()
	_ = c.makeRoom() // the next hydration tries again
	return nil
}

// publish renames the files of a pack into the local copy, the index last. A tip pack replaces that of an earlier
// record.
func (r *Repository) publish(p *replog.Pack, from func(replog.File) string) error {
	if slices.ContainsFunc(p.Extra, replog.File.IsTip) {
		dir := filepath.Join(r.dir, tipDir)
		err := os.RemoveAll(dir)
		if err == nil {
			err = os.MkdirAll(dir, 0o777)
		}
		if err != nil {
			return err
		}
	}
	files := p.Files()
	files = append(append(files[:1:1], files[2:]...), files[1])
	for _, f := range files {
		to := r.path(p, f)
		err := r.cache.retryFull(func() error { return os.Rename(from(f), to) })
		if err != nil && !(isExtra(f) && errors.Is(err, fs.ErrNotExist)) {
			return err
		}
	}
	return nil
}

// path returns the place of one file of a pack.
func (r *Repository) path(p *replog.Pack, f replog.File) string {
	return filepath.Join(r.dir, FilePath(packName(p), f.Ext))
}

// FilePath returns the place of a file of a pack in a repository, from the name of the pack and the file's extension.
func FilePath(name, ext string) string {
	switch ext {
	case ".graph":
		return commitGraph
	case replog.TipPack:
		return filepath.Join(tipDir, name+".pack")
	case replog.TipIdx:
		return filepath.Join(tipDir, name+".idx")
	}
	return filepath.Join("objects/pack", name+ext)
}

const tipDir = "objects/" + pack.TipDir

// isExtra reports whether a file of a pack only saves work.
func isExtra(f replog.File) bool { return f.Ext != ".pack" && f.Ext != ".idx" }

var errRemoved = fault.New(fault.NotFound, "the repository was deleted")

func (r *Repository) isRemoved() bool {
	r.cache.mu.Lock()
	defer r.cache.mu.Unlock()
	return r.removed
}

// Remove removes the local copy of a repository that was deleted. Uses that run may fail.
func (r *Repository) Remove() error {
	r.applying <- struct{}{}
	defer func() { <-r.applying }()
	c := r.cache
	c.mu.Lock()
	r.removed, r.complete = true, nil
	t := newTask(nil)
	for r.task != nil {
		running := r.task
		c.mu.Unlock()
		running.cancel()
		<-running.done
		c.mu.Lock()
	}
	r.task = t
	r.endFetchesLocked()
	for name := range r.packs {
		c.dropLocked(r, name)
	}
	for _, f := range r.files {
		c.dropFileLocked(f)
	}
	for _, n := range c.repositories {
		delete(n.readers, r)
	}
	if c.repositories[r.id] == r {
		delete(c.repositories, r.id)
	}
	c.mu.Unlock()
	defer r.finish(t, nil)
	if err := c.Discard(r.dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fault.Wrap(fault.Unavailable, "cannot remove the local copy of a deleted repository", err)
	}
	return nil
}
