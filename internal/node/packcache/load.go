package packcache

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/node/packsource"
)

// storedEntry is an entry of an earlier run.
type storedEntry struct {
	e    *cacheEntry
	time time.Time // of its last use
}

// load removes the unfinished files of an earlier run, and entries of another version. It puts the complete entries
// into the index, unverified.
func (c *Cache) load() error {
	temps, err := os.ReadDir(filepath.Join(c.dir, tempName))
	if err != nil {
		return fmt.Errorf("read the pack cache's directory: %w", err)
	}
	for _, t := range temps {
		if strings.HasPrefix(t.Name(), fillPrefix) {
			os.Remove(filepath.Join(c.dir, tempName, t.Name()))
		}
	}
	var all []storedEntry
	obsolete := 0
	for i := range 256 {
		dir := fmt.Sprintf("%s/%02x", c.dir, i)
		names, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("read the pack cache's directory: %w", err)
		}
		entries, others := c.loadDir(dir, byte(i), names)
		all, obsolete = append(all, entries...), obsolete+others
	}
	if obsolete > 0 {
		c.log.Info("removed packs of another version from the pack cache", "packs", obsolete)
	}
	// The downtime is unknown: each entry gets another MaxIdle, ordered by the times of the files.
	slices.SortFunc(all, func(a, b storedEntry) int {
		return cmp.Or(a.time.Compare(b.time), bytes.Compare(a.e.key[:], b.e.key[:]))
	})
	now := c.now()
	for _, s := range all {
		s.e.check = &check{done: make(chan struct{})}
		c.index.add(s.e, true, now)
	}
	return nil
}

// loadDir finds the entries of a directory. It removes files of the cache that do not belong to an entry, and entries
// of another version, which it counts.
func (c *Cache) loadDir(dir string, first byte, names []fs.DirEntry) (all []storedEntry, obsolete int) {
	has := make(map[string]bool, len(names))
	for _, n := range names {
		has[n.Name()] = true
	}
	for _, n := range names {
		ext := filepath.Ext(n.Name())
		base := strings.TrimSuffix(n.Name(), ext)
		key, ok := packsource.ParseKey(base)
		if !ok || key.String() != base || key[0] != first || ext != dataExt && ext != metaExt && ext != indexExt {
			continue // not a file of the cache
		}
		info, err := n.Info()
		switch {
		case !has[base+dataExt] || !has[base+metaExt],
			ext == dataExt && err == nil && !info.Mode().IsRegular():
			os.Remove(filepath.Join(dir, n.Name()))
		case ext == dataExt && err == nil:
			e := c.loadEntry(key, info.Size())
			if e == nil {
				obsolete++
				for _, ext := range [...]string{dataExt, metaExt, indexExt} {
					os.Remove(c.path(key, ext))
				}
				continue
			}
			all = append(all, storedEntry{e, info.ModTime()})
		}
	}
	return all, obsolete
}

// loadEntry returns an entry by its data file and sidecar, or nil if it is of another version. The verification finds
// damage later.
func (c *Cache) loadEntry(key packsource.Key, size int64) *cacheEntry {
	e := &cacheEntry{key: key, size: size}
	s, err := c.readSidecar(key)
	if errors.Is(err, errVersion) {
		return nil
	}
	if err == nil {
		e.repo = s.Repository
	}
	index := c.path(key, indexExt)
	info, statErr := os.Lstat(index)
	switch {
	case statErr != nil:
	case err == nil && s.IndexLength == 0: // of an entry that another version replaced
		os.Remove(index)
	default:
		e.indexSize = info.Size()
	}
	return e
}

// readSidecar reads the sidecar of key.
func (c *Cache) readSidecar(key packsource.Key) (sidecar, error) {
	f, err := c.sys.open(c.path(key, metaExt))
	if err != nil {
		return sidecar{}, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxSidecar+1))
	if err != nil {
		return sidecar{}, err
	}
	return parseSidecar(b, key)
}
