package pack

import (
	"container/list"
	"sync"

	"github.com/packhorse-git/packhorse/internal/git"
)

const (
	cacheBytes = 4 << 20   // maximum size of a store's cache of delta bases
	cacheEntry = 128 << 10 // a larger base is not kept
)

// baseCache keeps the most recently used delta bases, because objects near each other in history share them. Its data
// is shared and must not be changed. It is safe for concurrent use.
type baseCache struct {
	mu      sync.Mutex
	entries map[location]*list.Element
	recent  list.List // of *cachedBase
	bytes   int
}

type cachedBase struct {
	loc  location
	typ  git.ObjectType
	data []byte
}

// wants reports whether a base of this size would be kept. Its memory must then not be reused.
func (c *baseCache) wants(size int64) bool { return size <= cacheEntry }

func (c *baseCache) get(loc location) (git.ObjectType, []byte, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.entries[loc]
	if !ok {
		return 0, nil, false
	}
	c.recent.MoveToFront(e)
	b := e.Value.(*cachedBase)
	return b.typ, b.data, true
}

func (c *baseCache) put(loc location, typ git.ObjectType, data []byte) {
	if !c.wants(int64(len(data))) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.entries[loc]; ok {
		return
	}
	if c.entries == nil {
		c.entries = make(map[location]*list.Element)
	}
	c.entries[loc] = c.recent.PushFront(&cachedBase{loc, typ, data})
	for c.bytes += len(data); c.bytes > cacheBytes; {
		b := c.recent.Remove(c.recent.Back()).(*cachedBase)
		delete(c.entries, b.loc)
		c.bytes -= len(b.data)
	}
}

// clear empties the cache. It is called when the packs have changed, or damage was read.
func (c *baseCache) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.entries)
	c.recent.Init()
	c.bytes = 0
}
