package lookup

import (
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/packhorse-git/packhorse/internal/git"
)

const (
	maxLastCache = 64 << 20 // bytes of cached results
	maxLastSize  = maxLastCache / 8
	entryCost    = 64 // memory of an entry beside its name and commit, about
)

// lastKey is a directory of a commit of a repository.
type lastKey struct {
	repository, dir string
	commit          git.ObjectID
}

// lastSet has the last commits of the entries of a directory by their names. Results share it.
type lastSet struct {
	list   []LastCommit
	index  map[string]int32 // of the names in list
	size   int              // bytes, about
	shared int              // number of results; guarded by lastCache.mu
}

// lastResult is a part of a lastSet that is true for a commit.
type lastResult struct {
	*lastSet
	has []uint64 // a bit for each entry of the list; nil: all
}

// get returns the last commit of an entry; nil: it is not known.
func (r lastResult) get(name string) *Commit {
	i, ok := r.index[name]
	if !ok || r.has != nil && r.has[i/64]&(1<<(i%64)) == 0 {
		return nil
	}
	return r.list[i].Commit
}

// cost is the memory of the result in bytes, about, without that of the set.
func (r lastResult) cost(key lastKey) int { return len(key.dir) + 4*entryCost + 8*len(r.has) }

// maxResults is the maximum number of results for a commit.
const maxResults = 8

// lastCache has results of the most recent calls of LastCommits. It is safe for concurrent use.
type lastCache struct {
	mu   sync.Mutex
	lru  *simplelru.LRU[lastKey, []lastResult]
	size int // bytes, about
}

func newLastCache() *lastCache {
	c := new(lastCache)
	// the size is valid
	c.lru, _ = simplelru.NewLRU(maxLastCache/entryCost, func(key lastKey, results []lastResult) {
		for _, r := range results {
			c.size -= r.cost(key)
			if r.shared--; r.shared == 0 {
				c.size -= r.size
			}
		}
	})
	return c
}

// get returns results for a commit. They must not be changed.
func (c *lastCache) get(key lastKey) []lastResult {
	c.mu.Lock()
	defer c.mu.Unlock()
	results, _ := c.lru.Get(key)
	return results
}

// add caches a result, and its parts that are true for passed commits, unless it is very large.
func (c *lastCache) add(key lastKey, list []LastCommit, passed []passedCommit) {
	set := &lastSet{list: list, index: make(map[string]int32, len(list))}
	counted := make(map[*Commit]bool)
	for i, e := range list {
		set.index[e.Name] = int32(i)
		set.size += len(e.Name) + 2*entryCost
		if !counted[e.Commit] {
			counted[e.Commit] = true
			set.size += int(e.Commit.memory())
		}
	}
	if set.size > maxLastSize {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range passed {
		has := make([]uint64, (len(list)+63)/64)
		for _, e := range p.entries {
			has[e/64] |= 1 << (e % 64)
		}
		c.put(lastKey{key.repository, key.dir, p.id}, lastResult{set, has})
	}
	c.put(key, lastResult{set, nil})
	for c.size > maxLastCache {
		c.lru.RemoveOldest()
	}
}

// put adds a result to those of a commit. A whole one replaces them.
func (c *lastCache) put(key lastKey, r lastResult) {
	old, _ := c.lru.Peek(key)
	if len(old) > 0 && (old[0].has == nil || r.has != nil && len(old) == maxResults) {
		return
	}
	if r.has == nil || len(old) == 0 {
		c.lru.Remove(key)
		c.lru.Add(key, []lastResult{r})
	} else {
		c.lru.Add(key, append(old[:len(old):len(old)], r))
	}
	c.size += r.cost(key)
	if r.shared++; r.shared == 1 {
		c.size += r.size
	}
}

// memory is the memory of a commit in bytes, about.
func (c *Commit) memory() int64 {
	return 500 + int64(len(c.Message)+64*len(c.Parents)+len(c.Author.Name)+len(c.Author.Email)+len(c.Committer.Name)+
		len(c.Committer.Email))
}
