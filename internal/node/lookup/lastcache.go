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

// lastResult has the last commits of the entries of a directory by their names.
type lastResult struct {
	byName map[string]*Commit
	size   int // bytes, about
}

// lastCache has the results of the most recent calls of LastCommits. It is safe for concurrent use.
type lastCache struct {
	mu   sync.Mutex
	lru  *simplelru.LRU[lastKey, lastResult]
	size int // bytes, about
}

func newLastCache() *lastCache {
	c := new(lastCache)
	// the size is valid
	c.lru, _ = simplelru.NewLRU(maxLastCache/entryCost, func(_ lastKey, r lastResult) { c.size -= r.size })
	return c
}

// get returns a result; nil: there is none. It must not be changed.
func (c *lastCache) get(key lastKey) map[string]*Commit {
	c.mu.Lock()
	defer c.mu.Unlock()
	r, _ := c.lru.Get(key)
	return r.byName
}

// add caches a result, unless it is very large.
func (c *lastCache) add(key lastKey, list []LastCommit) {
	r := lastResult{make(map[string]*Commit, len(list)), len(key.dir) + entryCost}
	counted := make(map[*Commit]bool)
	for _, e := range list {
		r.byName[e.Name] = e.Commit
		r.size += len(e.Name) + entryCost
		if !counted[e.Commit] {
			counted[e.Commit] = true
			r.size += int(e.Commit.memory())
		}
	}
	if r.size > maxLastSize {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lru.Remove(key)
	c.size += r.size
	c.lru.Add(key, r)
	for c.size > maxLastCache {
		c.lru.RemoveOldest()
	}
}

// memory is the memory of a commit in bytes, about.
func (c *Commit) memory() int64 {
	return 500 + int64(len(c.Message)+64*len(c.Parents)+len(c.Author.Name)+len(c.Author.Email)+len(c.Committer.Name)+
		len(c.Committer.Email))
}
