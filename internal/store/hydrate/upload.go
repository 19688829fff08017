package hydrate

import "github.com/packhorse-git/packhorse/internal/fault"

// uploadStep is the number of bytes for which an upload makes room at once.
const uploadStep = 16 << 20

// Upload is the room of a file that a client sends. It grows as bytes arrive, so slow uploads of large files do not
// evict anything before. It is not safe for concurrent use.
type Upload struct {
	cache       *Cache
	size, bytes int64 // of the whole file; reserved
}

// MaxUpload returns the maximum number of bytes of all running uploads. The rest of the budget is left to hydrations.
func (c *Cache) MaxUpload() int64 { return c.options.Budget / 2 }

// NewUpload returns the room of a file of size bytes, which is empty. The caller calls End after AddFile.
func (c *Cache) NewUpload(size int64) *Upload { return &Upload{cache: c, size: size} }

// Grow makes room for the first n bytes of the file. The error is Unavailable without room.
func (u *Upload) Grow(n int64) error {
	if n = min(n, u.size); n <= u.bytes {
		return nil
	}
	c := u.cache
	more := max(min(u.bytes+uploadStep, u.size), n) - u.bytes
	c.mu.Lock()
	if c.uploads+more > c.MaxUpload() {
		c.mu.Unlock()
		return fault.Retry(fault.Unavailable, fault.RetryLater,
			"running uploads have half of the node's cache (store.cache = %s)", mebibytes(c.options.Budget))
	}
	u.addLocked(more)
	c.mu.Unlock()
	err := c.makeRoom()
	if err != nil {
		c.mu.Lock()
		u.addLocked(-more)
		c.mu.Unlock()
	}
	return err
}

// End gives the room back.
func (u *Upload) End() {
	u.cache.mu.Lock()
	defer u.cache.mu.Unlock()
	u.addLocked(-u.bytes)
}

func (u *Upload) addLocked(n int64) {
	c := u.cache
	u.bytes += n
	c.uploads += n
	c.bytes += n
	c.metrics.bytes.Set(float64(c.bytes))
}
