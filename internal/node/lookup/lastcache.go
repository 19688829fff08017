package lookup

import (
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/packhorse-git/packhorse/internal/git"
)

const (
	maxLastCache  = 64 << 20 // bytes of cached results
	maxDirResults = 8        // commits of one directory, the latest first
)

// dirKey is a directory of a repository.
type dirKey struct{ repository, path string }

// dirResult has the last commits of the entries of a directory, as seen from a commit.
type dirResult struct {
	commit git.ObjectID
	byName map[string]*Commit
	size   int // bytes, about
}

func newDirResult(commit git.ObjectID, list []LastCommit) *dirResult {
	r := &dirResult{commit: commit, byName: make(map[string]*Commit, len(list))}
	counted := make(map[*Commit]bool)
	for _, e := range list {
		r.byName[e.Name] = e.Commit
		r.size += len(e.Name) + 64
		if !counted[e.Commit] {
			counted[e.Commit] = true
			r.size += int(e.Commit.Size())
		}
	}
	return r
}

// Size is the memory of a commit in bytes, about.
func (c *Commit) Size() int64 {
	return 500 + int64(len(c.Message)+64*len(c.Parents)+len(c.Author.Name)+len(c.Author.Email)+len(c.Committer.Name)+
		len(c.Committer.Email))
}

// lastCache has the last commits of the directories that were requested most recently. It is safe for concurrent use.
type lastCache struct {
	mu   sync.Mutex
	lru  *simplelru.LRU[dirKey, []*dirResult]
	size int // bytes, about
}

func newLastCache() lastCache {
	lru, err := simplelru.NewLRU[dirKey, []*dirResult](1<<20, nil)
	if err != nil {
		panic(err) // the size is not positive
	}
	return lastCache{lru: lru}
}

// get returns the results for a directory. They must not be changed.
func (c *lastCache) get(key dirKey) []*dirResult {
	c.mu.Lock()
	defer c.mu.Unlock()
	results, _ := c.lru.Get(key)
	return results
}

// put adds a result, unless it is very large, and removes others to make room.
func (c *lastCache) put(key dirKey, result *dirResult) {
	if result.size > maxLastCache/8 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	others, _ := c.lru.Get(key)
	kept := []*dirResult{result}
	for i, o := range others {
		if i >= maxDirResults-1 || o.commit == result.commit {
			c.size -= o.size
		} else {
			kept = append(kept, o)
		}
	}
	c.lru.Add(key, kept)
	for c.size += result.size; c.size > maxLastCache; {
		_, removed, _ := c.lru.RemoveOldest()
		for _, r := range removed {
			c.size -= r.size
		}
	}
}
