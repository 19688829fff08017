package repo

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/git/disk"
)

// maxCachedDirs is the maximum number of directories in a WalkCache.
const maxCachedDirs = 1_000_000

// WalkCache keeps the results of walks, as long as the directories have the same IDs. The content of a directory that
// was changed a moment ago is not kept. A nil cache keeps nothing. It is safe for concurrent use. The zero value is
// empty.
type WalkCache struct {
	mu   sync.Mutex
	dirs map[string]cachedDir // by path below the root
}

// cachedDir is a directory with this ID. It is a repository, or the directory with names, those that requests can name.
type cachedDir struct {
	id           disk.ID
	isRepository bool
	names        []string // sorted
}

// get returns the known content of a directory that has an ID now.
func (c *WalkCache) get(below string, id disk.ID) (known cachedDir, ok bool) {
	if c == nil {
		return known, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	known, ok = c.dirs[below]
	return known, ok && known.id == id
}

// names returns the names in a directory that is not a repository.
func (c *WalkCache) names(below string, id disk.ID) ([]string, bool) {
	known, ok := c.get(below, id)
	return known.names, ok && !known.isRepository
}

func (c *WalkCache) isRepository(below string, id disk.ID) bool {
	known, ok := c.get(below, id)
	return ok && known.isRepository
}

// put keeps what a directory was after now.
func (c *WalkCache) put(below string, known cachedDir, now time.Time) {
	if c == nil || known.id == (disk.ID{}) || !known.id.Settled(now) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dirs == nil || len(c.dirs) >= maxCachedDirs {
		c.dirs = make(map[string]cachedDir)
	}
	c.dirs[below] = known
}

// lstat returns the ID of a path, and the zero ID if it cannot be examined.
func lstat(path string) disk.ID {
	var st unix.Stat_t
	if unix.Lstat(path, &st) != nil {
		return disk.ID{}
	}
	return disk.Of(&st)
}
