package inspect

import (
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/packhorse-git/packhorse/internal/git/repo"
)

const (
	maxCached = 1 << 20  // bytes of one result
	maxCache  = 64 << 20 // bytes of all
	// fixedCost is the memory of a part of a result beside its texts, about.
	fixedCost = 300
)

// cache has results of calls: the parts that a call sends, in order.
type cache struct {
	mu   sync.Mutex
	lru  *simplelru.LRU[string, result]
	size int // bytes
}

type result struct {
	parts []any
	size  int
}

func newCache() *cache {
	c := new(cache)
	c.lru, _ = simplelru.NewLRU(maxCache/fixedCost, func(_ string, r result) { c.size -= r.size }) // the size is valid
	return c
}

func (c *cache) get(key string) (result, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lru.Get(key)
}

func (c *cache) add(key string, r result) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lru.Remove(key)
	c.size += r.size
	c.lru.Add(key, r)
	for c.size > maxCache {
		c.lru.RemoveOldest()
	}
}

// cached sends the parts of a cached result. Otherwise it calls run, which sends them with their sizes in bytes, and
// caches what it sends. Parts must not be changed once they are sent.
func cached[T any](c *cache, r *repo.Repo, key string, send func(T) error,
	run func(send func(T, int) error) error) error {
	shallow, err := r.ShallowSet()
	if err != nil {
		return err
	}
	if known, ok := c.get(key); ok && shallow == nil {
		for _, part := range known.parts {
			if err := send(part.(T)); err != nil {
				return err
			}
		}
		return nil
	}
	made := result{size: len(key) + fixedCost}
	err = run(func(part T, size int) error {
		if made.size += size + fixedCost; made.size <= maxCached {
			made.parts = append(made.parts, part)
		} else {
			made.parts = nil
		}
		return send(part)
	})
	if err == nil && made.size <= maxCached && shallow == nil {
		c.add(key, made)
	}
	return err
}
