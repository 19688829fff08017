package mirror

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"syscall"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/disk"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/lfs/objects"
)

// lfsBudget limits the disk space of the LFS objects of mirrors. It walks the mirrors for the size and the last use of
// their objects when it begins, and when it has to remove some. Then objects that own repositories have as well do not
// count, because their removal frees no space. It is safe for concurrent use.
type lfsBudget struct {
	m     *Mirrors
	store *objects.Store
	limit int64 // bytes

	walking sync.Mutex // held during a walk; locked before mu

	mu       sync.Mutex
	measured bool  // used is known
	used     int64 // bytes of objects and of running downloads
	running  int64 // bytes of running downloads
	inUse    map[lfs.OID]int
}

// newLFSBudget returns a budget of so many bytes, or of a quarter of the file system if limit is zero.
func newLFSBudget(m *Mirrors, store *objects.Store, limit int64) *lfsBudget {
	if size, _, err := disk.Space(m.node.Root()); limit == 0 && err == nil {
		limit = size / 4
	}
	limit = cmp.Or(limit, 10<<30)
	return &lfsBudget{m: m, store: store, limit: limit, inUse: make(map[lfs.OID]int)}
}

func (b *lfsBudget) tooLarge(o lfs.Object) error {
	return fault.Wrap(fault.Invalid, fmt.Sprintf(
		"object %s has %d bytes, more than the cache of the mirrors may have: %d (lfs.cache)", o.OID, o.Size, b.limit),
		objects.TooLarge)
}

// use keeps an object from being removed until the result is called.
func (b *lfsBudget) use(id lfs.OID) (release func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.inUse[id]++
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.inUse[id]--; b.inUse[id] == 0 {
			delete(b.inUse, id)
		}
	}
}

// reserve takes n bytes of space for a download. It removes the objects that were not used for the longest time if
// there is not enough. After an error there is nothing to release.
func (b *lfsBudget) reserve(ctx context.Context, n int64) error {
	if b.take(n) {
		return nil
	}
	b.walking.Lock()
	defer b.walking.Unlock()
	if b.take(n) { // another download has made room
		return nil
	}
	if _, err := b.shrink(ctx, b.limit-n); err != nil {
		return err
	}
	if !b.take(n) {
		return fault.Retry(fault.Unavailable, fault.RetryLater,
			"the cache of LFS objects is full with objects that are in use (lfs.cache)")
	}
	return nil
}

// measure walks the mirrors once after a start.
func (b *lfsBudget) measure(ctx context.Context) error {
	isMeasured := func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.measured
	}
	if isMeasured() {
		return nil
	}
	b.walking.Lock()
	defer b.walking.Unlock()
	if isMeasured() {
		return nil
	}
	_, err := b.shrink(ctx, b.limit)
	return err
}

// take reserves space if there is enough.
func (b *lfsBudget) take(n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.measured || b.used+n > b.limit {
		return false
	}
	b.used += n
	b.running += n
	return true
}

// release ends a download for which space was reserved. kept reports whether its object is in the cache now.
func (b *lfsBudget) release(n int64, kept bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.running -= n
	if !kept {
		b.used -= n
	}
}

// bytes returns the size of the cache. It is zero until the first download.
func (b *lfsBudget) bytes() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// free removes objects of n bytes together because the disk is full. It reports whether it removed some.
func (b *lfsBudget) free(ctx context.Context, n int64) bool {
	b.walking.Lock()
	defer b.walking.Unlock()
	removed, err := b.shrink(ctx, max(b.bytes()-n, 0))
	return removed && err == nil
}

// copyOf is an object in one mirror.
type copyOf struct {
	lfs.Object
	repository int    // index
	used       int64  // when, in ns since 1970
	file       uint64 // its number; zero: unknown
	links      uint64 // names of the file
}

// shrink removes objects until the cache has at most so many bytes, and then a tenth more, so that the next walk is not
// soon. removed reports whether it removed any. The caller holds walking.
func (b *lfsBudget) shrink(ctx context.Context, to int64) (removed bool, err error) {
	b.mu.Lock()
	before := b.used - b.running // the walk replaces it; objects that arrive meanwhile may count twice until the next one
	b.mu.Unlock()
	repositories, copies, err := b.walk(ctx)
	if err != nil {
		return false, err
	}
	groups := slices.DeleteFunc(groupByFile(copies), isOwned)
	slices.SortFunc(groups, func(x, y []copyOf) int { return cmp.Compare(x[0].used, y[0].used) })
	total := int64(0)
	for _, g := range groups {
		total += g[0].Size
	}
	pending := b.bytes() - before
	if total+pending > to {
		to -= to / 10
	}
	for _, g := range groups {
		if total+pending <= to || ctx.Err() != nil {
			break
		}
		if b.remove(ctx, repositories, g) {
			removed = true
			total -= g[0].Size
			b.m.metrics.evictedBytes.Add(float64(g[0].Size))
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.measured = true
	b.used += total - before
	return removed, ctx.Err()
}

// isOwned reports whether a repository that is not a mirror has the file of an object, too. The pool has one of the
// links.
func isOwned(group []copyOf) bool { return group[0].links > uint64(len(group))+1 }

// groupByFile returns the copies of each file. The one that was used last is the first.
func groupByFile(copies []copyOf) (groups [][]copyOf) {
	slices.SortFunc(copies, func(x, y copyOf) int {
		return cmp.Or(bytes.Compare(x.OID[:], y.OID[:]), cmp.Compare(x.file, y.file), cmp.Compare(y.used, x.used))
	})
	for i := 0; i < len(copies); {
		j := i + 1
		for j < len(copies) && copies[j].OID == copies[i].OID && copies[j].file == copies[i].file {
			j++
		}
		groups = append(groups, copies[i:j])
		i = j
	}
	return groups
}

// remove removes the copies of one object, and the object from the pool if no other repository has it. It does not
// remove an object that is in use.
func (b *lfsBudget) remove(ctx context.Context, repositories []git.RepoPath, group []copyOf) bool {
	b.mu.Lock()
	isUsed := b.inUse[group[0].OID] > 0
	b.mu.Unlock()
	if isUsed {
		return false
	}
	for _, c := range group {
		r, release, err := b.m.node.LFSRepository(ctx, repositories[c.repository])
		if err == nil {
			err = b.store.Remove(r, c.Object)
			release()
		}
		if err != nil && !fault.Is(err, fault.NotFound) {
			b.m.log.Warn("cannot remove an LFS object of a mirror", "repository", repositories[c.repository].String(),
				"object", c.OID.String(), "error", err)
			return false
		}
	}
	if group[0].links != uint64(len(group))+1 { // the pool does not have it, or another repository got it meanwhile
		return true
	}
	return b.store.RemovePooled(group[0].Object) == nil
}

// walk returns the objects of all mirrors, and notes from which origins they are.
func (b *lfsBudget) walk(ctx context.Context) (repositories []git.RepoPath, copies []copyOf, err error) {
	for after := ""; ; {
		paths, next, err := b.m.list(ctx, after)
		if err != nil {
			return nil, nil, err
		}
		for _, path := range paths {
			r, release, err := b.m.node.LFSRepository(ctx, path)
			if fault.Is(err, fault.NotFound) {
				continue
			}
			if err != nil {
				return nil, nil, err
			}
			host := ""
			if rule, _, ok := b.m.find(path); ok {
				host = rule.Origin.Host()
			}
			err = b.store.Walk(r, func(o lfs.Object, info fs.FileInfo) error {
				b.m.lfs.proven.Add(downloadKey{host, o}, struct{}{})
				c := copyOf{Object: o, repository: len(repositories), used: objects.LastUse(info).UnixNano()}
				if st, ok := info.Sys().(*syscall.Stat_t); ok {
					c.file, c.links = st.Ino, uint64(st.Nlink)
				}
				copies = append(copies, c)
				return ctx.Err()
			})
			release()
			if err != nil {
				return nil, nil, err
			}
			repositories = append(repositories, path)
		}
		if after = next; after == "" {
			return repositories, copies, nil
		}
	}
}
