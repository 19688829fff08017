package hydrate

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"

	"github.com/dustin/go-humanize"

	"github.com/packhorse-git/packhorse/internal/git/disk"
)

// Usage is the space that local copies take.
type Usage struct {
	Repositories int // that have packs here
	Bytes        int64
	Budget       int64 // maximum of Bytes
}

// String returns the usage in words.
func (u Usage) String() string {
	return fmt.Sprintf("%s of at most %s in copies of %d repositories", humanize.IBytes(uint64(u.Bytes)),
		humanize.IBytes(uint64(u.Budget)), u.Repositories)
}

// Usage returns the space that the local copies take, including packs that are being downloaded.
func (c *Cache) Usage() Usage {
	c.mu.Lock()
	defer c.mu.Unlock()
	repositories := 0
	for _, r := range c.repositories {
		if len(r.packs) > 0 {
			repositories++
		}
	}
	return Usage{Repositories: repositories, Bytes: c.bytes, Budget: c.options.Budget}
}

// UsageOf reads the space that the local copies below a root take, whether or not a node runs. budget is
// Options.Budget. A root that does not exist has no copies.
func UsageOf(root string, budget int64) (u Usage, err error) {
	below := os.DirFS(root)
	files, err := fs.Glob(below, "*.git/objects/pack/*")
	if err != nil {
		return u, err
	}
	lent, err := fs.Glob(below, networksDir+"/*/objects/pack/*")
	if err != nil {
		return u, err
	}
	objects, err := fs.Glob(below, "*.git/"+filesDir+"/*/*/*")
	if err != nil {
		return u, err
	}
	dirs := map[string]bool{}
	for _, file := range slices.Concat(files, lent, objects) {
		info, err := fs.Stat(below, file)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile
		} else if err != nil {
			return u, err
		}
		if path.Base(path.Dir(file)) == "pack" {
			dirs[path.Dir(file)] = true
		}
		u.Bytes += info.Size()
	}
	size, _, err := disk.Space(root)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	u.Repositories, u.Budget = len(dirs), cmp.Or(budget, size/4*3)
	return u, err
}
