package hydrate

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/disk"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// reserve makes room for need more bytes, for packs of rec.
func (c *Cache) reserve(rec *replog.Record, need int64) error {
	total := int64(0)
	for i := range rec.Packs {
		total += packBytes(&rec.Packs[i])
	}
	if err := c.checkBudget(total); err != nil {
		return err
	}
	return c.take(need, need, c.makeRoom)
}

// take reserves bytes of the cache, and unwritten bytes of the disk.
func (c *Cache) take(bytes, unwritten int64, makeRoom func() error) error {
	c.unreserve(-bytes, -unwritten)
	err := makeRoom()
	if err != nil {
		c.unreserve(bytes, unwritten)
	}
	return err
}

// checkBudget returns an error if a repository has more bytes than the cache may have.
func (c *Cache) checkBudget(bytes int64) error {
	budget := c.options.Budget
	if bytes <= budget {
		return nil
	}
	return fault.New(fault.Unavailable, "the repository has %s, more than the node may keep (store.cache = %s)",
		mebibytes(bytes), mebibytes(budget))
}

// reserveBase makes room for a checkpoint, which is not a part of the cache. The caller calls unreserve(0, bytes) once
// it is written.
func (c *Cache) reserveBase(bytes int64) error {
	if err := c.checkBudget(bytes); err != nil {
		return err
	}
	return c.take(0, bytes, c.MakeRoom)
}

// unreserve gives back a part of a reservation: bytes that will not become packs, and the part of them that was not
// written.
func (c *Cache) unreserve(bytes, unwritten int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bytes -= bytes
	c.unwritten -= unwritten
	c.metrics.bytes.Set(float64(c.bytes))
}

// MakeRoom evicts repositories for writes beside the cache: running pushes and checkpoints. They may use three quarters
// of the free space that hydrations leave. If less than the last quarter is free, the error is Unavailable.
func (c *Cache) MakeRoom() error {
	err := c.makeRoom()
	_, free, spaceErr := disk.Space(c.options.Root)
	c.mu.Lock()
	defer c.mu.Unlock()
	if spaceErr != nil || free-c.unwritten >= c.options.MinFree/4 {
		return nil
	}
	return err
}

// makeRoom evicts repositories until the budget and the floor of free space are kept.
func (c *Cache) makeRoom() error {
	for {
		_, free, err := disk.Space(c.options.Root)
		if err != nil {
			free = math.MaxInt64 // no floor
		}
		c.mu.Lock()
		fits := c.bytes <= c.options.Budget
		above := free-c.unwritten >= c.options.MinFree
		c.mu.Unlock()
		if fits && above {
			return nil
		}
		if c.evictOne() {
			continue
		}
		if !fits {
			return fault.Retry(fault.Unavailable, fault.RetryLater,
				"the node's cache is full of repositories in use (store.cache = %s)", mebibytes(c.options.Budget))
		}
		return fault.Retry(fault.Unavailable, fault.RetryLater, "the node's disk has only %s free, and keeps %s",
			mebibytes(free), mebibytes(c.options.MinFree))
	}
}

// maxEvictions is how often a write to a full disk is tried again.
const maxEvictions = 100

// retryFull calls write, and again after each eviction while the disk is full.
func (c *Cache) retryFull(write func() error) (err error) {
	for range maxEvictions {
		if err = write(); !disk.IsFull(err) || !c.evictOne() {
			break
		}
	}
	return err
}

// evictOne removes what was used least recently and is not in use: the packs of a repository, or a file. It reports
// whether there was one.
func (c *Cache) evictOne() bool {
	c.mu.Lock()
	var r *Repository
	for i := c.recent.Len(); i > 0 && r == nil; i-- {
		oldest, _, _ := c.recent.GetOldest()
		switch x := oldest.(type) {
		case *localFile:
			if x.repository.fetches[x.name] == nil {
				c.removeFileLocked(x)
				c.mu.Unlock()
				c.metrics.evictions.WithLabelValues("object").Inc()
				return true
			}
		case *Repository:
			if x.task == nil && len(x.uses) == 0 {
				r = x
			}
		}
		c.recent.Get(oldest) // it is in use; or it is removed below
	}
	if r == nil {
		c.mu.Unlock()
		return false
	}
	t := newTask(nil)
	r.task = t
	before := c.bytes
	var names []string
	for name := range r.packs {
		names = append(names, name)
		c.dropLocked(r, name)
	}
	freed := before - c.bytes
	c.mu.Unlock()
	r.unlink(names)
	_ = os.Remove(filepath.Join(r.dir, commitGraph)) // the next hydration replaces it
	r.finish(t, nil)
	c.metrics.evictions.WithLabelValues("packs").Inc()
	c.log.Info("a repository was evicted", "repository_id", r.id, "packs", len(names), "bytes", freed)
	return true
}

// sweepLocked removes packs that the applied record does not name and that no running use can need.
func (r *Repository) sweepLocked() {
	c := r.cache
	if r.stale == 0 || r.task != nil || c.ctx.Err() != nil {
		return
	}
	oldest := uint64(math.MaxUint64)
	for number := range r.uses {
		oldest = min(oldest, number)
	}
	var names []string
	for name, p := range r.packs {
		if p.stale != 0 && p.stale <= oldest {
			names = append(names, name)
			c.dropLocked(r, name)
		}
	}
	if len(names) == 0 {
		return
	}
	t := newTask(nil)
	r.task = t
	c.running.Go(func() {
		r.unlink(names)
		r.finish(t, nil)
	})
}

// Keep removes all packs of a repository that its head does not name, also those that its forks borrow. It reports
// whether none is left: downloads and uses of earlier records keep them.
func (c *Cache) Keep(id string, head *replog.Record) (isDone bool) {
	isDone = true
	for _, key := range []string{id, networksDir + "/" + id} {
		c.mu.Lock()
		r := c.repositories[key]
		if r == nil {
			c.mu.Unlock()
			continue
		}
		isUsed := r.task != nil
		for number := range r.uses {
			isUsed = isUsed || number < head.Number
		}
		var names []string
		for name := range r.packs {
			if !slices.ContainsFunc(head.Packs, func(p replog.Pack) bool { return packName(&p) == name }) {
				names = append(names, name)
			}
		}
		if isUsed || len(names) == 0 {
			isDone = isDone && !isUsed
			c.mu.Unlock()
			continue
		}
		t := newTask(nil)
		r.task = t
		for _, name := range names {
			c.dropLocked(r, name)
		}
		c.mu.Unlock()
		r.unlink(names)
		r.finish(t, nil)
	}
	return isDone
}

// unlink removes the files of packs, their indexes first.
func (r *Repository) unlink(names []string) {
	c := r.cache
	for _, name := range names {
		for _, ext := range []string{".idx", ".bitmap", ".rev", replog.TipIdx, replog.TipPack, ".pack"} {
			err := os.Remove(filepath.Join(r.dir, FilePath(name, ext)))
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				c.log.Warn("cannot remove a local pack", "repository_id", r.id, "error", err)
			}
		}
	}
	if c.options.Released == nil || len(names) == 0 {
		return
	}
	for _, id := range r.users() {
		c.options.Released(id)
	}
}

// users returns the IDs of the repositories that read the packs.
func (r *Repository) users() []string {
	r.cache.mu.Lock()
	defer r.cache.mu.Unlock()
	if r.readers == nil {
		return []string{r.id}
	}
	var ids []string
	for reader := range r.readers {
		ids = append(ids, reader.id)
	}
	return ids
}

// addLocked adds a pack whose files are in place.
func (c *Cache) addLocked(r *Repository, name string, p *localPack) {
	if r.packs[name] != nil {
		c.dropLocked(r, name)
	}
	r.packs[name] = p
	c.bytes += p.bytes
	c.touchLocked(r)
	r.markLocked()
	c.metrics.bytes.Set(float64(c.bytes))
}

// dropLocked forgets a pack. Its files are removed or replaced by the caller.
func (c *Cache) dropLocked(r *Repository, name string) {
	p := r.packs[name]
	delete(r.packs, name)
	r.complete = nil
	c.bytes -= p.bytes
	if p.stale != 0 {
		r.stale--
	}
	if len(r.packs) == 0 {
		c.recent.Remove(r)
	}
	c.metrics.bytes.Set(float64(c.bytes))
}

// touchLocked makes r the most recently used repository, if it has packs.
func (c *Cache) touchLocked(r *Repository) {
	if len(r.packs) > 0 {
		c.recent.Add(r, struct{}{})
	}
}

// markLocked notes which packs the applied record does not name.
func (r *Repository) markLocked() {
	rec := r.applied
	if rec == nil {
		return
	}
	named := make(map[string]bool, len(rec.Packs))
	for i := range rec.Packs {
		named[packName(&rec.Packs[i])] = true
	}
	for name, p := range r.packs {
		if p.stale == 0 && p.since < rec.Number && !named[name] {
			p.stale = rec.Number
			r.stale++
		}
	}
}

// packBytes returns the size of all files of a pack.
func packBytes(p *replog.Pack) (total int64) {
	for _, f := range p.Files() {
		total += f.Bytes
	}
	return total
}

// isLocal reports whether err is an error of a local file. Errors of a bucket may have one as their cause.
func isLocal(err error) bool {
	_, ok := err.(*fs.PathError)
	return ok
}
