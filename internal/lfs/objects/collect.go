package objects

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/git/disk"
	"github.com/packhorse-git/packhorse/internal/lfs"
)

// The time of modification of an object's file is when the object was last uploaded, or found by a client that was
// about to upload it. Clients upload objects before they push the commits that need them, so an object that no commit
// names is garbage only after a while.
//
// A Collector removes an object in three steps: it renames the file, reads its time, and removes it if it is still old.
// Check sets the time of an object before it reports to an uploader that the object is here. If that comes first, the
// Collector sees the new time and undoes the rename. If the rename comes first, Check does not find the
// object afterwards, and reports it as missing.

// renew makes an object new, and then calls stat: a Collector can have taken the file's name meanwhile.
func (t tree) renew(id lfs.OID) (size int64, found bool, err error) {
	if t.dir == nil {
		return 0, false, nil
	}
	err = unix.UtimesNanoAt(int(t.dir.Fd()), name(id), nil, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case err == unix.ENOENT || err == unix.ENOTDIR:
		return 0, false, nil
	case err != nil:
		return 0, false, &fs.PathError{Op: "set the time", Path: t.path(id), Err: err}
	}
	return t.stat(id)
}

// removingDir, in a repository, has objects that a Collector is about to remove. It is not one with objects.
const removingDir = "lfs/removing"

// Collector removes garbage from the objects of a repository. It works on the directory that the repository had when
// the Collector was made, also if that is renamed or replaced.
type Collector struct {
	store      *Store
	repository Repository
	before     time.Time
	root       *os.Root
}

// NewCollector returns a Collector for objects that were last uploaded before a time. The caller closes it.
func (s *Store) NewCollector(r Repository, before time.Time) (*Collector, error) {
	root, err := os.OpenRoot(r.Dir)
	if err != nil {
		return nil, repositoryError(err)
	}
	return &Collector{s, r, before, root}, nil
}

// Close ends the use of the repository's directory.
func (c *Collector) Close() { c.root.Close() }

// Recover puts back the objects of a Collector that was interrupted, and removes files that uploads left when they
// were interrupted. Call it before Candidates, unless nothing may be changed.
func (c *Collector) Recover() error {
	if err := removeTemporary(c.repository.objects(), c.before); err != nil {
		return err
	}
	dir, err := c.root.Open(removingDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, n := range names {
		if id, err := lfs.ParseOID(n); err == nil {
			if err := c.restore(id); err != nil {
				return err
			}
		}
	}
	return nil
}

// restore puts an object back. If it was uploaded again meanwhile, the files have the same content.
func (c *Collector) restore(id lfs.OID) error {
	to := "lfs/objects/" + name(id)
	if err := c.root.MkdirAll(filepath.Dir(to), 0o777); err != nil {
		return err
	}
	if err := c.root.Rename(removingDir+"/"+id.String(), to); err != nil {
		return err
	}
	_ = c.root.Remove(removingDir + "/" + id.String()) // still there if both are links to one file
	return disk.SyncDir(filepath.Join(c.root.Name(), filepath.Dir(to)))
}

// Candidates lists the objects that are old enough.
func (c *Collector) Candidates() (old []lfs.Object, err error) {
	err = c.store.Walk(c.repository, func(o lfs.Object, info fs.FileInfo) error {
		if info.ModTime().Before(c.before) {
			old = append(old, o)
		}
		return nil
	})
	return old, err
}

// Remove removes an object that no commit needs, unless it was uploaded again. The pool keeps it.
func (c *Collector) Remove(o lfs.Object) (removed bool, err error) {
	from, aside := "lfs/objects/"+name(o.OID), removingDir+"/"+o.OID.String()
	if old, err := c.isOld(from); err != nil || !old {
		return false, err
	}
	if err := c.root.MkdirAll(removingDir, 0o777); err != nil {
		return false, err
	}
	if err := c.root.Rename(from, aside); err != nil {
		return false, ignoreAbsent(err)
	}
	old, err := c.isOld(aside)
	if err != nil || !old {
		return false, errors.Join(err, c.restore(o.OID))
	}
	if err := c.root.Remove(aside); err != nil {
		return false, err
	}
	c.store.usage.add(c.repository, -o.Size)
	c.store.metrics.collected.Inc()
	return true, nil
}

// isOld reports whether a file exists and is old enough.
func (c *Collector) isOld(path string) (bool, error) {
	info, err := c.root.Lstat(path)
	if err != nil {
		return false, ignoreAbsent(err)
	}
	return info.ModTime().Before(c.before), nil
}

func ignoreAbsent(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Usage is a number of objects and their size.
type Usage struct {
	Objects int64 `json:"objects"`
	Bytes   int64 `json:"bytes"`
}

// Add counts an object.
func (u *Usage) Add(size int64) {
	u.Objects++
	u.Bytes += size
}

// CollectPool removes the objects of the pool that no repository has, and returns them. An upload at the same time is
// safe: until the repository has the object, the upload keeps its own file. It stops at an error of check,
// which is called before each object.
func (s *Store) CollectPool(check func() error) (removed Usage, err error) {
	err = s.WalkPool(func(o lfs.Object, links uint64) error {
		if err := check(); err != nil || links > 1 {
			return err
		}
		if err := s.RemovePooled(o); err != nil {
			return err
		}
		removed.Add(o.Size)
		return nil
	})
	return removed, err
}

// IsShared reports whether the file of a repository's object is also that of another repository.
func IsShared(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && st.Nlink > 2 // the third one is in the pool
}
