package browse

import (
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/packhorse-git/packhorse/internal/gateway/web/page"
)

const (
	maxCache  = 64 << 20 // bytes of all fragments
	maxKept   = 4 << 20  // bytes of one
	fixedCost = 400      // bytes of a fragment beside its texts, about
)

// fragment is a content, rendered and compressed.
type fragment struct {
	title, kind string
	main        page.Packed
	raw         *rawContent
	brief       bool // see content
}

func newFragment(c *content) (*fragment, error) {
	f := &fragment{title: c.title, kind: c.kind, raw: c.raw, brief: c.brief}
	if c.raw != nil {
		return f, nil
	}
	var err error
	f.main, err = page.Pack(c.main)
	return f, err
}

func (f *fragment) size(key string) int {
	n := len(key) + len(f.title) + f.main.Size() + fixedCost
	if f.raw != nil {
		n += len(f.raw.text)
	}
	return n
}

// cache has fragments by what they depend on.
type cache struct {
	mu   sync.Mutex
	lru  *simplelru.LRU[string, *fragment]
	size int // bytes
}

func newCache() *cache {
	c := new(cache)
	c.lru, _ = simplelru.NewLRU(maxCache/fixedCost, func(key string, f *fragment) { // the size is valid
		c.size -= f.size(key)
	})
	return c
}

func (c *cache) get(key string) (*fragment, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lru.Get(key)
}

func (c *cache) add(key string, f *fragment) {
	size := f.size(key)
	if size > maxKept {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lru.Remove(key)
	c.size += size
	c.lru.Add(key, f)
	for c.size > maxCache {
		c.lru.RemoveOldest()
	}
}
