package inspect

import (
	"bytes"
	"fmt"
	"io"
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

const (
	maxCached = 1 << 20  // bytes of one output
	maxCache  = 64 << 20 // bytes of all
	fixedCost = 300      // bytes of an output beside its texts, about
)

// cache has outputs of commands.
type cache struct {
	mu   sync.Mutex
	lru  *simplelru.LRU[string, []byte]
	size int // bytes
}

func newCache() *cache {
	c := new(cache)
	c.lru, _ = simplelru.NewLRU(maxCache/fixedCost, func(key string, text []byte) { // the size is valid
		c.size -= len(key) + len(text) + fixedCost
	})
	return c
}

func (c *cache) get(key string) ([]byte, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lru.Get(key)
}

// Forget empties the cache.
func (i *Inspector) Forget() {
	i.cache.mu.Lock()
	defer i.cache.mu.Unlock()
	i.cache.lru.Purge()
}

func (c *cache) add(key string, text []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lru.Remove(key)
	c.size += len(key) + len(text) + fixedCost
	c.lru.Add(key, text)
	for c.size > maxCache {
		c.lru.RemoveOldest()
	}
}

// cached is run for a command whose output depends only on its arguments. Unless it fails, read has to read to the end.
func (c *Call) cached(cmd command, read func(io.Reader) error) error {
	shallow, err := c.repo.ShallowSet()
	if err != nil {
		return err
	}
	if shallow != nil {
		return c.run(cmd, read)
	}
	key := fmt.Sprintf("%s %q", cmd.name, cmd.args)
	if text, ok := c.cache.get(key); ok {
		return read(bytes.NewReader(text))
	}
	var start beginning
	err = c.run(cmd, func(out io.Reader) error { return read(io.TeeReader(out, &start)) })
	if err == nil && start.size <= maxCached {
		c.cache.add(key, start.text)
	}
	return err
}

// beginning keeps an output of at most maxCached bytes.
type beginning struct {
	text []byte
	size int64 // of the whole output
}

func (b *beginning) Write(p []byte) (int, error) {
	if b.size += int64(len(p)); b.size <= maxCached {
		b.text = append(b.text, p...)
	}
	return len(p), nil
}
