package packcache

import (
	"errors"
	"time"
)

var (
	errBudget = errors.New("the cache's budget has no place for the pack")
	errFloor  = errors.New("the file system has too little space left")
)

// budgetLocked returns the number of bytes that may be on disk. The automatic budget grows for large packs. Half of it
// is for other packs, and beside that there is room for the largest pack twice: the last one and its successor. The
// free-space floor limits it.
func (c *Cache) budgetLocked() int64 {
	if !c.automatic {
		return c.max
	}
	largest := c.index.largest
	for _, f := range c.fills {
		largest = max(largest, f.reserved)
	}
	return max(c.max, c.max/2+2*largest)
}

// shrinkLocked evicts entries until the budget is kept: entries without readers for everything on disk, and entries
// with readers for bytes that are not already on their way out. Borrowed entries may exceed the budget until they are
// returned.
func (c *Cache) shrinkLocked(out []removed) []removed {
	x, now, budget := &c.index, c.now(), c.budgetLocked()
	out = c.dropLocked(x.evict(now, x.bytes+x.zombies+c.filling-budget, false), evictSize, out)
	return c.dropLocked(x.evict(now, x.bytes-x.pinned+c.filling-budget, true), evictSize, out)
}

// reserve reserves room in the budget for n more bytes of a fill. The error is why the fill may not write them. All
// fills together may use the whole budget of MaxBytes. Without MaxBytes only the free-space floor limits them.
func (c *Cache) reserve(f *fill, n int64) error {
	c.mu.Lock()
	if !c.automatic && c.filling+n > c.max {
		c.mu.Unlock()
		return errBudget
	}
	c.filling += n
	f.reserved += n
	c.statBytes += n
	out := c.shrinkLocked(nil)
	c.gaugesLocked()
	c.mu.Unlock()
	c.unlink(out)
	if !c.aboveFloor() {
		return errFloor
	}
	return nil
}

// Limits for the interval between two reads of the file system's free space.
const (
	statEvery    = 32 << 20 // bytes written
	statInterval = time.Second
	statWhileLow = 100 * time.Millisecond
)

// aboveFloor reports whether the cache may write, by the file system's free space as of a moment ago. It evicts idle
// entries if that helps.
func (c *Cache) aboveFloor() bool {
	if c.low <= 0 {
		return true
	}
	c.mu.Lock()
	now := c.now()
	age := now.Sub(c.statTime)
	fresh := c.statBytes < statEvery && (age < statWhileLow || age < statInterval && !c.statLow)
	if fresh {
		ok := !c.statLow
		c.mu.Unlock()
		return ok
	}
	c.statTime, c.statBytes = now, 0
	c.mu.Unlock()

	free := c.free()
	if free < c.low && c.evictIdle(c.low-free) {
		free = c.free()
	}
	low := free < c.low
	c.mu.Lock()
	c.statLow = low
	c.mu.Unlock()
	return !low
}

// free returns the free space of the file system. If it is unknown, there is no floor.
func (c *Cache) free() int64 {
	_, free, err := c.sys.space(c.dir)
	if err != nil {
		return c.low
	}
	return free
}

// evictIdle evicts entries without readers, in the order of index.evict, until they add up to n bytes. It reports
// whether there were any.
func (c *Cache) evictIdle(n int64) bool {
	c.mu.Lock()
	out := c.dropLocked(c.index.evict(c.now(), n, false), evictSpace, nil)
	c.mu.Unlock()
	c.unlink(out)
	return len(out) > 0
}

// makeRoom is the number of bytes that one write to a full disk evicts.
const makeRoom = 64 << 20
