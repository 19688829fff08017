package hydrate

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/disk"
)

const (
	markFile  = "mark" // in the state directory: markClean's text, or the ID of the machine's boot
	cleanMark = "clean"
	// uncheckedFile is in a local copy that was not compared with its checksums since the machine crashed.
	uncheckedFile = "unchecked"
	// maxIdle is the time since the last check of an evicted repository after which a start removes the rest of its local
	// copy.
	maxIdle = 30 * 24 * time.Hour
)

// load reads what an earlier process left.
func (c *Cache) load() error {
	if err := os.MkdirAll(c.state, 0o777); err != nil {
		return fmt.Errorf("make the directory of the local copies: %w", err)
	}
	if err := c.removeLeftovers(); err != nil {
		return fmt.Errorf("find downloads of an earlier process: %w", err)
	}
	mark, err := os.ReadFile(filepath.Join(c.state, markFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("find out whether the local copies are intact: %w", err)
	}
	boot := bootID()
	intact := string(mark) == cleanMark || len(boot) > 0 && bytes.Equal(mark, boot)
	if err := c.loadRepositories(!intact); err != nil {
		return fmt.Errorf("read the local copies: %w", err)
	}
	if err := c.mark(boot); err != nil {
		return fmt.Errorf("mark the local copies as in use: %w", err)
	}
	return nil
}

// mark replaces the content of the mark.
func (c *Cache) mark(content []byte) error {
	write := func() error { return disk.ReplaceFile(filepath.Join(c.state, markFile), content) }
	err := write()
	if disk.IsFull(err) {
		c.running.Wait() // leftovers may be what fills the disk
		err = c.retryFull(write)
	}
	return err
}

// removeLeftovers begins to remove downloads that were not finished, and copies that were being removed. No new file
// gets the name of one that exists.
func (c *Cache) removeLeftovers() error {
	entries, err := os.ReadDir(c.state)
	var paths []string
	for _, e := range entries {
		if e.Name() != markFile {
			paths = append(paths, filepath.Join(c.state, e.Name()))
		}
	}
	c.removeAll(paths...)
	return err
}

// removeAll removes files and directories in the background. Close interrupts this, and the next process continues.
func (c *Cache) removeAll(paths ...string) {
	if len(paths) == 0 {
		return
	}
	c.running.Go(func() {
		for _, path := range paths {
			if c.ctx.Err() != nil {
				return
			}
			if err := os.RemoveAll(path); err != nil {
				c.log.Warn("cannot remove unused local files", "dir", path, "error", err)
			}
		}
	})
}

// Discard removes files and directories on the file system of the local copies in the background. Their names are free
// at once. If one does not exist, the error is fs.ErrNotExist.
func (c *Cache) Discard(paths ...string) error {
	var trash []string
	var errs []error
	for _, path := range paths {
		to := filepath.Join(c.state, "removed-"+rand.Text())
		if err := os.Rename(path, to); err != nil {
			errs = append(errs, err)
			continue
		}
		trash = append(trash, to)
	}
	c.removeAll(trash...)
	return errors.Join(errs...)
}

// loadRepositories finds the packs of all local copies. With unchecked, it marks each of them, because this process may
// end before it has checked all.
func (c *Cache) loadRepositories(unchecked bool) error {
	entries, err := os.ReadDir(c.options.Root)
	if err != nil {
		return err
	}
	type found struct {
		*Repository
		applied time.Time
	}
	var all []found
	var idle []string
	for _, e := range entries {
		id, ok := strings.CutSuffix(e.Name(), ".git")
		if !ok || !e.IsDir() {
			continue
		}
		info, err := os.Stat(filepath.Join(c.options.Root, e.Name(), recordFile))
		if errors.Is(err, fs.ErrNotExist) {
			continue // not a local copy, or one that was not complete
		} else if err != nil {
			return err
		}
		r := newRepository(c, id)
		r.markUnchecked(unchecked)
		if err := r.loadPacks(); err != nil {
			return err
		}
		if len(r.packs) == 0 && time.Since(info.ModTime()) > maxIdle {
			idle = append(idle, r.dir)
			continue
		}
		all = append(all, found{r, info.ModTime()})
	}
	if err := c.Discard(idle...); err != nil {
		c.log.Warn("cannot remove unused local files", "dir", c.options.Root, "error", err)
	}
	slices.SortFunc(all, func(a, b found) int { return a.applied.Compare(b.applied) })
	for _, r := range all {
		c.repositories[r.id] = r.Repository
		c.touchLocked(r.Repository)
		if err := r.loadFiles(); err != nil {
			return err
		}
	}
	return c.loadNetworks(unchecked)
}

// markUnchecked marks a local copy, or finds the mark of an earlier process.
func (r *Repository) markUnchecked(unchecked bool) {
	marker := filepath.Join(r.dir, uncheckedFile)
	if unchecked {
		_ = os.WriteFile(marker, nil, 0o644) // a full disk must not keep the node from starting
	}
	_, err := os.Lstat(marker)
	r.unchecked = unchecked || err == nil
}

// loadPacks finds the packs of a local copy. Files without a pack or without an index are removed.
func (r *Repository) loadPacks() error {
	entries, err := os.ReadDir(r.packDir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	parts := map[string]int{} // files that a pack must have
	for _, e := range entries {
		ext := filepath.Ext(e.Name())
		name := strings.TrimSuffix(e.Name(), ext)
		if ext == ".pack" || ext == ".idx" {
			parts[name]++
		}
	}
	tips, err := os.ReadDir(filepath.Join(r.dir, tipDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for i, e := range append(entries, tips...) {
		path := filepath.Join(r.packDir(), e.Name())
		if i >= len(entries) {
			path = filepath.Join(r.dir, tipDir, e.Name())
		}
		name := strings.TrimSuffix(e.Name(), filepath.Ext(e.Name()))
		if parts[name] < 2 {
			if err := os.RemoveAll(path); err != nil {
				r.cache.log.Warn("cannot remove unused local files", "dir", path, "error", err)
			}
			continue
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		if r.packs[name] == nil {
			r.packs[name] = &localPack{unchecked: r.unchecked}
		}
		r.packs[name].bytes += info.Size()
		r.cache.bytes += info.Size()
	}
	return nil
}

// markClean notes that all local files are on disk as they should be.
func (c *Cache) markClean() error {
	if err := disk.SyncFileSystem(c.options.Root); err != nil {
		return fmt.Errorf("write the local copies to disk: %w", err)
	}
	return c.mark([]byte(cleanMark))
}

// bootID returns an ID that changes when the machine starts, or nil if it is unknown. After a crash of the process
// alone, all files are as the process wrote them.
func bootID() []byte {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil
	}
	return bytes.TrimSpace(id)
}
