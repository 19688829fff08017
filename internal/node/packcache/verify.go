package packcache

import (
	"context"
	"fmt"
	"hash/crc32"
	"io"
	"path/filepath"
	"runtime/debug"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/disk"
)

// check is the verification of an entry of an earlier run, or of an entry that was written to since. All requests for
// the entry share it.
type check struct {
	started bool // guarded by Cache.mu
	done    chan struct{}
	busy    error // valid after done is closed: why the entry could not be read, although it may be valid
}

// checkLocked starts the verification of e unless it is running. The caller holds c.mu, and waits for the end. Then e
// is trusted or removed, or the check has an error.
func (c *Cache) checkLocked(e *cacheEntry) *check {
	ch := e.check
	if !ch.started {
		ch.started = true
		e.refs++
		c.wg.Go(func() { c.verify(e, ch) })
	}
	return ch
}

// verify reads e completely, and trusts or drops it. The number of concurrent verifications is limited.
func (c *Cache) verify(e *cacheEntry, ch *check) {
	defer close(ch.done)
	var found sidecar
	var id files
	err := context.Cause(c.ctx)
	select {
	case c.verifying <- struct{}{}:
		found, id, err = c.read(e, true)
		<-c.verifying
	case <-c.ctx.Done():
	}
	c.mu.Lock()
	damaged := false
	switch {
	case err == nil:
		e.objects, e.files, e.check = found.Objects, id, nil
		if !e.gone && e.repo != found.Repository {
			c.index.assign(e, found.Repository)
		}
		c.m.verified.WithLabelValues("ok").Inc()
	case isBusy(err):
		ch.busy = err
		e.check = &check{done: make(chan struct{})} // for the next request
		c.m.verified.WithLabelValues("busy").Inc()
	default:
		damaged = c.ctx.Err() == nil
	}
	c.index.release(e, c.now())
	c.gaugesLocked()
	c.mu.Unlock()
	if damaged {
		c.removeDamaged(e, err)
	}
}

// removeDamaged removes an entry whose verification had the result err.
func (c *Cache) removeDamaged(e *cacheEntry, err error) {
	c.m.verified.WithLabelValues("bad").Inc()
	c.log.Warn("damaged pack cache entry removed; the pack is made again", "key", e.key, "error", err)
	c.remove(e)
}

// read compares the files of e with its sidecar, and returns their identities. It reads the data file only if full is
// set.
func (c *Cache) read(e *cacheEntry, full bool) (s sidecar, id files, err error) {
	defer func() {
		if v := recover(); v != nil {
			c.log.Error("panic while a pack cache entry was verified", "key", e.key, "panic", v, "stack",
				string(debug.Stack()))
			err = fault.New(fault.Internal, "the entry could not be verified")
		}
	}()
	start := time.Now()
	if s, err = c.readSidecar(e.key); err != nil {
		return s, id, err
	}
	if s.Length != e.size || s.IndexLength != e.indexSize {
		return s, id, fmt.Errorf("the sidecar is of other files: lengths %d and %d, not %d and %d", s.Length,
			s.IndexLength, e.size, e.indexSize)
	}
	if s.IndexLength > 0 {
		id.index, err = c.compare(c.path(e.key, indexExt), s.IndexLength, s.IndexCRC)
	}
	data := c.path(e.key, dataExt)
	switch {
	case err != nil:
	case full:
		id.data, err = c.compare(data, s.Length, s.CRC)
	default:
		id.data, err = disk.Stat(data)
	}
	if err == nil && id.data.Size != s.Length {
		err = fmt.Errorf("the data file has length %d, not %d", id.data.Size, s.Length)
	}
	if err != nil || !full {
		return s, id, err
	}
	c.log.Debug("verified a pack cache entry", "key", e.key, "bytes", e.size, "took", time.Since(start))
	return s, id, nil
}

// compare reads a file, compares it with its length and CRC-32C, and returns its identity.
func (c *Cache) compare(path string, length int64, crc uint32) (id disk.ID, err error) {
	f, err := c.sys.open(path)
	if err != nil {
		return id, err
	}
	defer f.Close()
	if id, err = disk.OfFile(f); err != nil {
		return id, err
	}
	buf := c.buffers.get()
	defer c.buffers.put(buf)
	var sum uint32
	var pos int64
	for c.ctx.Err() == nil {
		n, err := f.ReadAt(buf[:], pos)
		sum = crc32.Update(sum, castagnoli, buf[:n])
		pos += int64(n)
		if err == io.EOF {
			break
		}
		if err != nil {
			return id, err
		}
	}
	if err := context.Cause(c.ctx); err != nil {
		return id, err
	}
	if pos != length || sum != crc {
		return id, fmt.Errorf("%s has length %d and CRC-32C %08x, not %d and %08x", filepath.Base(path), pos, sum,
			length, crc)
	}
	return id, nil
}
