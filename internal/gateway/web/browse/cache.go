package browse

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway/web/page"
	"github.com/packhorse-git/packhorse/internal/git"
)

// key returns all that the main part of a page depends on. All readers of a repository see the same refs.
func (q *request) key() string {
	parts := []string{q.kind.name, q.repo.String(), q.from.id.String(), q.at.id.String(), q.path, q.purges,
		q.query.Encode(), fmt.Sprint(q.asPatch, q.mergeBase)}
	if q.kind.name != "raw" {
		parts = append(parts, q.from.text, q.at.text, q.at.ref) // of links
	}
	if q.kind.hasHost {
		parts = append(parts, q.v.Address("")) // of clones, feeds and submodules
	}
	if q.kind.byRefs {
		parts = append(parts, fmt.Sprint(q.version))
	}
	// settings have no version, so that changes of them show a little later
	if q.kind.bySettings || q.kind.byRefs && q.version == (git.Version{}) {
		parts = append(parts, strconv.FormatInt(time.Now().Unix()/settingsSeconds, 10))
	}
	return fmt.Sprintf("%q", parts)
}

const (
	maxCache  = 64 << 20 // bytes of all fragments
	maxKept   = 4 << 20  // bytes of one
	fixedCost = 400      // bytes of a fragment beside its texts, about
)

func newFragment(c *content) (*fragment, error) {
	f := &fragment{title: c.title, kind: c.kind, raw: c.raw, noStore: c.noStore}
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
	mu     sync.Mutex
	lru    *simplelru.LRU[string, *fragment]
	size   int                // bytes
	making map[string]*making // by key
}

// making is a fragment that a request makes. The fields are valid after done is closed.
type making struct {
	done   chan struct{}
	f      *fragment // nil: it could not be made
	isLost bool      // the client has gone
}

func newCache() *cache {
	c := &cache{making: map[string]*making{}}
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

// share returns the fragment of a key from the cache, or from another request that makes it. Otherwise made is not nil.
// The caller makes the fragment and calls made with it, or with nil.
func (c *cache) share(ctx context.Context, key string) (f *fragment, made func(*fragment), err error) {
	for {
		c.mu.Lock()
		f, ok := c.lru.Get(key)
		m := c.making[key]
		own := &making{done: make(chan struct{})}
		if !ok && m == nil {
			c.making[key] = own
		}
		c.mu.Unlock()
		if ok {
			return f, nil, nil
		}
		if m == nil {
			return nil, func(f *fragment) {
				c.mu.Lock()
				delete(c.making, key)
				c.mu.Unlock()
				own.f, own.isLost = f, ctx.Err() != nil
				close(own.done)
			}, nil
		}
		select {
		case <-m.done:
		case <-ctx.Done():
			return nil, nil, fault.Wrap(fault.Cancelled, "the client has gone", ctx.Err())
		}
		switch {
		case m.f != nil:
			return m.f, nil, nil
		case !m.isLost: // the next one may fail, too: no request waits for several
			return nil, func(*fragment) {}, nil
		}
	}
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
