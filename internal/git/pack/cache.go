package pack

import (
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/packhorse-git/packhorse/internal/git"
)

const (
	cacheBytes = 4 << 20   // maximum size of a store's cache of delta bases
	cacheEntry = 128 << 10 // a larger base is not kept
	maxBases   = 64 << 10
)

// baseCache keeps the most recently used delta bases, because objects near each other in history share them. Its data
// is shared and must not be changed. It is safe for concurrent use.
type baseCache struct {
	mu      sync.Mutex
	entries *simplelru.LRU[location, cachedBase] // nil: none yet
	bytes   int
}

type cachedBase struct {
	typ  git.ObjectType
	data []byte
}

// wants reports whether a base of this size would be kept. Its memory must then not be reused.
func (c *baseCache) wants(size int64) bool { return size <= cacheEntry }

func (c *baseCache) get(loc location) (git.ObjectType, []byte, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries == nil {
		return 0, nil, false
	}
	b, ok := c.entries.Get(loc)
	return b.typ, b.data, ok
}

func (c *baseCache) put(loc location, typ git.ObjectType, data []byte) {
	if !c.wants(int64(len(data))) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries == nil {
		c.entries, _ = simplelru.NewLRU[location, cachedBase](maxBases, nil) // fails only for a size below 1
	}
	if c.entries.Contains(loc) {
		return
	}
	for c.bytes += len(data); c.bytes > cacheBytes || c.entries.Len() == maxBases; {
		_, b, _ := c.entries.RemoveOldest()
		c.bytes -= len(b.data)
	}
	c.entries.Add(loc, cachedBase{typ, data})
}

// clear empties the cache. It is called when the packs have changed, or damage was read.
func (c *baseCache) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.entries, c.bytes = nil, 0
}
