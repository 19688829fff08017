package lookup

import (
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/graph"
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
	has  []uint64     // a bit for each entry of the list; nil: all
	rest []graph.From // the other entries, if the search of this commit did not end
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
func (r lastResult) cost(key lastKey) int {
	n := len(key.dir) + 4*entryCost + 8*len(r.has)
	for _, f := range r.rest {
		n += entryCost + 4*len(f.Entries)
	}
	return n
}

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

// add caches a result, and its parts that are true for passed commits, unless it is very large. Entries without a
// commit are not known.
func (c *lastCache) add(key lastKey, list []LastCommit, passed, rest []graph.From) {
	set := &lastSet{list: list, index: make(map[string]int32, len(list))}
	counted := make(map[*Commit]bool)
	for i, e := range list {
		set.index[e.Name] = int32(i)
		set.size += len(e.Name) + 2*entryCost
		if e.Commit != nil && !counted[e.Commit] {
			counted[e.Commit] = true
			set.size += int(e.Commit.memory())
		}
	}
	if set.size > maxLastSize {
		return
	}
	all := graph.From{Commit: key.commit, Entries: make([]int32, len(list))}
	for i := range list {
		all.Entries[i] = int32(i)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range append(passed, all) {
		r := lastResult{lastSet: set, has: make([]uint64, (len(list)+63)/64)}
		n := 0
		for _, e := range p.Entries {
			if list[e].Commit != nil {
				r.has[e/64] |= 1 << (e % 64)
				n++
			}
		}
		if n == len(list) {
			r.has = nil
		}
		if p.Commit == key.commit {
			r.rest = rest
		}
		if n > 0 || len(r.rest) > 0 {
			c.put(lastKey{key.repository, key.dir, p.Commit}, r, p.Commit == key.commit)
		}
	}
	for c.size > maxLastCache {
		c.lru.RemoveOldest()
	}
}

// put adds a result to those of a commit, or replaces them. A whole one remains.
func (c *lastCache) put(key lastKey, r lastResult, replace bool) {
	old, _ := c.lru.Peek(key)
	if len(old) > 0 && (old[0].has == nil || !replace && len(old) == maxResults) {
		return
	}
	if replace || len(old) == 0 {
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
	return 500 + int64(len(c.Message)+len(c.Encoding)+64*len(c.Parents)+len(c.Author.Name)+len(c.Author.Email)+
		len(c.Committer.Name)+len(c.Committer.Email))
}
