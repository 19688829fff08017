package packcache

import (
	"maps"
	"slices"
)

// Cause is the reason why entries are dropped.
type Cause string

const (
	Requested Cause = evictDropped // by an administrator
	Damaged   Cause = evictDamaged // the repository is damaged
)

// Dropped is the result of Drop and DropAll.
type Dropped struct {
	Entries int
	Bytes   int64 // of the packs, as they are sent
}

// Drop removes all packs of a repository, which is named by its Incarnation. Readers of an entry are not interrupted. A
// pack that is being made for the repository is sent to its current readers and not kept. Borrowers keep what they have
// open. Entries of an earlier run whose repository is not known are removed, too.
func (c *Cache) Drop(repository string, why Cause) Dropped {
	return c.drops(func(repo string) bool { return repo == repository || repo == "" }, why)
}

// DropAll removes all packs, like Drop.
func (c *Cache) DropAll() Dropped { return c.drops(func(string) bool { return true }, Requested) }

// Files returns the paths of the packs of a repository, and of those whose repository is not known.
func (c *Cache) Files(repository string) (paths []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, e := range c.index.entries {
		if e.repo == repository || e.repo == "" {
			paths = append(paths, c.path(key, dataExt))
		}
	}
	return paths
}

func (c *Cache) drops(match func(repository string) bool, why Cause) (d Dropped) {
	c.mu.Lock()
	for _, f := range c.fills {
		if match(f.spec.Repo.Incarnation) {
			f.discard = true
		}
	}
	var gone []*cacheEntry
	for _, e := range slices.Collect(maps.Values(c.index.entries)) {
		if match(e.repo) {
			c.index.remove(e)
			gone = append(gone, e)
			d.Bytes += e.size
		}
	}
	d.Entries = len(gone)
	out := c.dropLocked(gone, string(why), nil)
	c.mu.Unlock()
	c.unlink(out)
	return d
}
