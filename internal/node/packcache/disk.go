package packcache

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/packhorse-git/packhorse/internal/git/disk"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
)

const (
	lockName = "lock"
	tempName = "tmp"
	dataExt  = ".pack"
	metaExt  = ".meta"
	indexExt = ".index"
)

// system has the calls of the operating system that tests replace to make them fail.
type system struct {
	create func(path string) (*os.File, error)
	write  func(f *os.File, p []byte, off int64) (int, error)
	rename func(from, to string) error
	open   func(path string) (*os.File, error)
	space  func(dir string) (size, free int64, err error)
}

func realSystem() system {
	return system{
		create: func(path string) (*os.File, error) {
			return os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		},
		write:  func(f *os.File, p []byte, off int64) (int, error) { return f.WriteAt(p, off) },
		rename: os.Rename,
		open:   os.Open,
		space:  disk.Space,
	}
}

// path is an entry's file. The first byte of the key names the directory, so that none grows very large.
func (c *Cache) path(k packsource.Key, ext string) string {
	s := k.String()
	return c.dir + "/" + s[:2] + "/" + s + ext
}

// lockDir creates the directory if necessary, and locks it for this process.
func lockDir(dir string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Join(dir, tempName), 0o700); err != nil {
		return nil, fmt.Errorf("make the pack cache's directory: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the pack cache's directory: %w", err)
	}
	ok, err := tryLock(f)
	if err == nil && ok {
		// Only information for people: the kernel has the lock, which ends with the process.
		if f.Truncate(0) == nil {
			f.WriteAt(fmt.Appendf(nil, "%d\n", os.Getpid()), 0)
		}
		return f, nil
	}
	holder := make([]byte, 16)
	n, _ := f.ReadAt(holder, 0)
	f.Close()
	if err != nil {
		return nil, fmt.Errorf("lock the pack cache's directory %s: %w", dir, err)
	}
	who := "another process"
	if pid, err := strconv.Atoi(strings.TrimSpace(string(holder[:n]))); err == nil {
		who = fmt.Sprintf("process %d", pid)
	}
	return nil,
		fmt.Errorf("the pack cache in %s is in use by %s: stop that one, or give this one a separate directory", dir,
			who)
}

// removed is a removed entry whose files still exist.
type removed struct {
	e    *cacheEntry
	gone chan struct{} // closed once the files are unlinked
}

// dropLocked counts entries that were removed from the index, and reserves their names until unlink is done, so that a
// new entry of the same key is not unlinked instead. The caller calls unlink after it has unlocked c.mu.
func (c *Cache) dropLocked(entries []*cacheEntry, reason string, out []removed) []removed {
	for _, e := range entries {
		r := removed{e, make(chan struct{})}
		c.unlinking[e.key] = r.gone
		out = append(out, r)
	}
	if len(entries) > 0 {
		c.m.evictions.WithLabelValues(reason).Add(float64(len(entries)))
		c.gaugesLocked()
	}
	return out
}

// unlink removes the files of dropped entries. Readers that have opened one are not interrupted.
func (c *Cache) unlink(rs []removed) {
	for _, r := range rs {
		for _, ext := range [...]string{dataExt, metaExt, indexExt} {
			if err := os.Remove(c.path(r.e.key, ext)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				c.log.Warn("cannot remove a pack cache file", "error", err)
			}
		}
		c.mu.Lock()
		delete(c.unlinking, r.e.key)
		c.mu.Unlock()
		close(r.gone)
	}
}

// persist gives a complete fill its final name, and returns its entry. The index and the sidecar come first: a data
// file without a sidecar, or with that of other files, is not trusted.
func (c *Cache) persist(f *fill, pack packsource.Pack, objects uint32) (*cacheEntry, error) {
	c.mu.Lock()
	busy := c.unlinking[f.key]
	c.mu.Unlock()
	if busy != nil {
		<-busy
	}
	e := &cacheEntry{key: f.key, size: f.stored, objects: objects, repo: f.spec.Repo.Incarnation, shape: f.shape}
	s := &sidecar{Key: f.key.String(), Repository: e.repo, Length: e.size, Objects: objects, CRC: f.crc}
	meta, data := c.path(f.key, metaExt), c.path(f.key, dataExt)
	err := os.MkdirAll(filepath.Dir(data), 0o700)
	if err == nil {
		c.keepIndex(f, pack, e, s)
		err = c.writeSidecar(meta, s)
	}
	if err == nil {
		err = c.sys.rename(f.temp, data)
	}
	if err == nil {
		e.files.data, err = disk.OfFile(f.file)
	}
	if err != nil {
		for _, name := range [...]string{meta, c.path(f.key, indexExt), data, f.temp} {
			os.Remove(name)
		}
		return nil, err
	}
	return e, nil
}

func (c *Cache) writeSidecar(path string, s *sidecar) error {
	os.Remove(path) // of a data file that another process removed
	f, err := c.sys.create(path)
	if err != nil {
		return err
	}
	err = c.write(f, s.encode(), 0)
	return errors.Join(err, f.Close())
}

// write writes all of p. If the disk is full, it evicts entries and tries again.
func (c *Cache) write(f *os.File, p []byte, off int64) error {
	for done := 0; done < len(p); {
		n, err := c.sys.write(f, p[done:], off+int64(done))
		done += n
		c.m.written.Add(float64(n))
		if err != nil && !(disk.IsFull(err) && c.evictIdle(makeRoom)) {
			return err
		}
	}
	return nil
}
