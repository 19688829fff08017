package objects

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/lfs"
)

// Walk calls do for each object of a repository, in ascending order, until it returns an error.
func (s *Store) Walk(r Repository, do func(lfs.Object, fs.FileInfo) error) error {
	return walk(r.objects(), do)
}

// WalkPool calls do for each object of the pool, until it returns an error. links is the number of files that share its
// content: one means that no repository has it.
func (s *Store) WalkPool(do func(o lfs.Object, links uint64) error) error {
	return walk(s.options.Dir, func(o lfs.Object, info fs.FileInfo) error {
		links := uint64(1)
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			links = uint64(st.Nlink)
		}
		return do(o, links)
	})
}

// Remove removes an object from a repository. The pool keeps it, until RemovePooled. It may be gone already.
func (s *Store) Remove(r Repository, o lfs.Object) error {
	removed, err := remove(r.objects(), o)
	if removed {
		s.usage.add(r, -o.Size)
	}
	return err
}

// RemovePooled removes an object from the pool. Repositories that have it keep it. It may be gone already.
func (s *Store) RemovePooled(o lfs.Object) error {
	removed, err := remove(s.options.Dir, o)
	if removed {
		s.countPool(-1, o)
	}
	return err
}

func remove(dir string, o lfs.Object) (removed bool, err error) {
	t, err := openTree(dir)
	if err != nil {
		return false, err
	}
	defer t.Close()
	return t.remove(o.OID)
}

func walk(dir string, do func(lfs.Object, fs.FileInfo) error) error {
	t, err := openTree(dir)
	if err != nil {
		return err
	}
	defer t.Close()
	return t.walk(do)
}

// walk calls do for each object in a tree. It skips everything else, and files that are removed meanwhile.
func (t tree) walk(do func(lfs.Object, fs.FileInfo) error) error {
	if t.dir == nil {
		return nil
	}
	for _, first := range digits() {
		err := eachIn(t.dir, first, func(dir *os.File, second fs.DirEntry) error {
			if len(second.Name()) != 2 || !second.IsDir() {
				return nil
			}
			prefix := first + second.Name()
			return eachIn(dir, second.Name(), func(_ *os.File, file fs.DirEntry) error { return visit(file, prefix, do) })
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// eachIn calls do for each entry of a directory in another one, in ascending order, with the directory. There may be no
// such directory, and it is not one if it is a symbolic link.
func eachIn(in *os.File, name string, do func(*os.File, fs.DirEntry) error) error {
	dir, err := openAt(in, name, unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if isAbsent(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	entries, err := dir.ReadDir(-1)
	if err != nil {
		return err
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	for _, e := range entries {
		if err := do(dir, e); err != nil {
			return err
		}
	}
	return nil
}

// visit calls do for a file, if it is that of an object whose ID begins with prefix.
func visit(file fs.DirEntry, prefix string, do func(lfs.Object, fs.FileInfo) error) error {
	id, err := lfs.ParseOID(file.Name())
	if err != nil || file.Name()[:4] != prefix || !file.Type().IsRegular() {
		return nil
	}
	info, err := file.Info()
	if err != nil {
		return ignoreAbsent(err)
	}
	return do(lfs.Object{OID: id, Size: info.Size()}, info)
}

// digits returns the names of the directories at the top of a tree.
func digits() []string {
	const hex = "0123456789abcdef"
	var names []string
	for _, a := range hex {
		for _, b := range hex {
			names = append(names, string(a)+string(b))
		}
	}
	return names
}

// eachPart calls do for each file in the directory of parts.
func (s *Store) eachPart(do func(path string, info fs.FileInfo)) {
	files, err := os.ReadDir(s.incoming())
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			s.log.Warn("cannot read the parts of LFS uploads", "error", err)
		}
		return
	}
	for _, f := range files {
		if info, err := f.Info(); err == nil && info.Mode().IsRegular() {
			do(filepath.Join(s.incoming(), f.Name()), info)
		}
	}
}

// expireParts removes parts to which nothing was written for Options.Expiry.
func (s *Store) expireParts(now time.Time) {
	pool, err := openTree(s.options.Dir)
	if err == nil {
		err = pool.removeTemporary(now.Add(-s.options.Expiry))
		pool.Close()
	}
	if err != nil {
		s.log.Warn("cannot read the parts of LFS uploads", "error", err)
	}
	s.eachPart(func(path string, info fs.FileInfo) {
		if now.Sub(info.ModTime()) >= s.options.Expiry {
			s.expire(path)
		}
	})
}

// trimParts removes parts of interrupted uploads to a repository, the oldest ones first, until they and its objects fit
// into the quota. It keeps the part that an upload of an object may continue.
func (s *Store) trimParts(r Repository, id lfs.OID, quota int64) {
	type part struct {
		path string
		info fs.FileInfo
	}
	var parts []part
	kept, over := s.partPath(r, id), s.usage.total(r)-quota
	_, repository, _ := strings.Cut(filepath.Base(kept), "-")
	s.eachPart(func(path string, info fs.FileInfo) {
		if strings.HasSuffix(path, "-"+repository) && path != kept && !s.isRunning(path) {
			parts = append(parts, part{path, info})
			over += info.Size()
		}
	})
	slices.SortFunc(parts, func(a, b part) int { return a.info.ModTime().Compare(b.info.ModTime()) })
	for _, p := range parts {
		if over <= 0 {
			return
		}
		if s.expire(p.path) {
			over -= p.info.Size()
		}
	}
}

// isRunning reports whether an upload writes to a part.
func (s *Store) isRunning(path string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.parts[path]
	return p != nil && p.running.Load() != nil
}

// expire removes a part unless an upload writes to it.
func (s *Store) expire(path string) bool {
	p := s.part(path)
	if !p.mu.TryAcquire(1) {
		return false
	}
	defer p.mu.Release(1)
	if p.writer != 0 || errors.Is(p.open(0), errInUse) {
		return false
	}
	p.remove()
	p.closeFile()
	s.dropPart(p)
	return true
}
