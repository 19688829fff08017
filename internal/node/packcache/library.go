package packcache

import (
	"bufio"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"sync"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/disk"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
)

var _ packsource.Library = (*Cache)(nil)

// Packs lists the complete packs with an index of a repository, the newest first.
func (c *Cache) Packs(incarnation string) []packsource.Key {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.index.newest(incarnation)
}

// Borrow opens a pack and its index. Until the result is closed, the entry is not evicted and does not expire. Drop
// removes it, but the open files stay readable. The error is NotFound if there is no such pack, or it turns out to be
// damaged.
//
// Only the index of an entry of an earlier run is verified. It has checksums for each object of the pack, and reading
// many large packs completely would delay the first fetch after a restart.
func (c *Cache) Borrow(key packsource.Key) (*packsource.Borrowed, error) {
	for {
		c.mu.Lock()
		if c.closed {
			c.mu.Unlock()
			return nil, errClosed()
		}
		e := c.index.entries[key]
		if e == nil || e.indexSize == 0 {
			c.mu.Unlock()
			return nil, fault.New(fault.NotFound, "the pack is not in the cache")
		}
		stored, want := e.files == (files{}), e.files
		if e.check != nil && !stored { // another program wrote to it
			ch := c.checkLocked(e)
			c.mu.Unlock()
			<-ch.done
			if ch.busy != nil {
				return nil, ch.busy
			}
			continue
		}
		c.index.pin(e)
		c.gaugesLocked()
		c.mu.Unlock()
		var err error
		if stored {
			_, want, err = c.read(e, false)
		}
		var b *packsource.Borrowed
		if err == nil {
			b, err = c.openBorrowed(e, want)
		}
		if err == nil {
			return b, nil
		}
		c.endBorrow(e)
		switch {
		case isBusy(err) || c.ctx.Err() != nil:
			return nil, err
		case stored:
			c.removeDamaged(e, err)
		default:
			c.distrust(e)
		}
	}
}

// openBorrowed opens the files of a pinned entry.
func (c *Cache) openBorrowed(e *cacheEntry, want files) (*packsource.Borrowed, error) {
	pack, err := c.openSame(c.path(e.key, dataExt), want.data)
	if err != nil {
		return nil, err
	}
	index, err := c.openSame(c.path(e.key, indexExt), want.index)
	if err != nil {
		pack.Close()
		return nil, err
	}
	return &packsource.Borrowed{Pack: pack, Size: e.size, Index: index, Close: sync.OnceFunc(func() {
		pack.Close()
		index.Close()
		c.endBorrow(e)
	})}, nil
}

// openSame opens a file for reading. The error is errChanged if its identity is not want.
func (c *Cache) openSame(path string, want disk.ID) (*os.File, error) {
	f, err := c.sys.open(path)
	if err != nil {
		return nil, err
	}
	now, err := disk.OfFile(f)
	if err == nil && now != want {
		err = errChanged
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// endBorrow ends the use of e by a borrower.
func (c *Cache) endBorrow(e *cacheEntry) {
	c.mu.Lock()
	c.index.unpin(e)
	c.gaugesLocked()
	c.mu.Unlock()
}

// keepIndex writes the index of a complete pack, and records it in the entry and its sidecar. If that fails, the entry
// has no index.
func (c *Cache) keepIndex(f *fill, pack packsource.Pack, e *cacheEntry, s *sidecar) {
	path := c.path(f.key, indexExt)
	os.Remove(path) // of an entry that another process removed
	indexed, ok := pack.(packsource.Indexed)
	if !ok {
		return
	}
	w := &indexWriter{f: f, path: path}
	id, err := w.writeAll(indexed)
	if err == nil && w.size > 0 {
		e.indexSize, e.files.index = w.size, id
		s.IndexLength, s.IndexCRC = w.size, w.crc
		return
	}
	os.Remove(path)
	c.mu.Lock()
	c.filling -= f.reserved - f.stored
	f.reserved = f.stored
	c.mu.Unlock()
	if err != nil {
		c.log.Warn("cannot keep the index of a pack in the pack cache", "error", err)
	}
}

// indexWriter writes the index of a pack to its file, within the limits of space. The file is created by the first
// Write.
type indexWriter struct {
	f    *fill
	path string
	file *os.File
	size int64
	crc  uint32
}

// writeAll writes the index of a pack, and returns the identity of the file; zero if the index is empty. A panic of the
// Source is an error.
func (w *indexWriter) writeAll(pack packsource.Indexed) (id disk.ID, err error) {
	defer func() {
		if v := recover(); v != nil {
			w.f.logPanic(v)
			err = fmt.Errorf("panic: %v", v)
		}
		if w.file != nil {
			err = errors.Join(err, w.file.Close())
		}
	}()
	buf := bufio.NewWriterSize(w, len(buffer{}))
	if err = pack.WriteIndex(buf); err == nil {
		err = buf.Flush()
	}
	if err == nil && w.file != nil {
		id, err = disk.OfFile(w.file)
	}
	return id, err
}

func (w *indexWriter) Write(p []byte) (n int, err error) {
	c := w.f.c
	if err := w.f.ctx.Err(); err != nil {
		return 0, err
	}
	if w.file == nil {
		if w.file, err = c.sys.create(w.path); err != nil {
			w.file = nil
			return 0, err
		}
	}
	if err := c.reserve(w.f, int64(len(p))); err != nil {
		return 0, err
	}
	if err := c.write(w.file, p, w.size); err != nil {
		return 0, err
	}
	w.size += int64(len(p))
	w.crc = crc32.Update(w.crc, castagnoli, p)
	return len(p), nil
}
