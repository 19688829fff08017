package objects

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/fault"
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
func (t tree) renew(id lfs.OID) (size int64, found bool, err error) { return t.statFile(id, true) }

// removingName is the name of the directory, next to that with the objects of a repository, with objects that a
// Collector is about to remove.
const removingName = "removing"

// ErrLinked is the error of a collection in a repository whose directory of objects is a symbolic link.
var ErrLinked = fault.New(fault.Denied,
	"lfs/objects is behind a symbolic link: all objects are kept, because other repositories may have them, too")

// Collector removes garbage from the objects of a repository. It works on the directory that the repository had when
// the Collector was made, also if that is renamed or replaced.
type Collector struct {
	store      *Store
	repository Repository
	before     time.Time
	lfs        *os.File // the directory lfs; nil: it does not exist
	objects    tree
	removing   *os.File // nil: not opened yet
}

// NewCollector returns a Collector for objects that were last uploaded before a time. The caller closes it.
func (s *Store) NewCollector(r Repository, before time.Time) (*Collector, error) {
	c := &Collector{store: s, repository: r, before: before}
	dir, err := os.OpenFile(r.Dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, repositoryError(err)
	}
	defer dir.Close()
	c.lfs, err = openAt(dir, "lfs", unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err == nil {
		c.objects.dir, err = openAt(c.lfs, "objects", unix.O_DIRECTORY|unix.O_NOFOLLOW)
	}
	switch {
	case err == nil || errors.Is(err, fs.ErrNotExist):
		return c, nil
	case isAbsent(err):
		err = ErrLinked
	}
	c.Close()
	return nil, err
}

// Close ends the use of the repository's directory.
func (c *Collector) Close() {
	c.objects.Close()
	for _, f := range []*os.File{c.removing, c.lfs} {
		if f != nil {
			f.Close()
		}
	}
}

// Recover puts back the objects of a Collector that was interrupted, and removes files that uploads left when they
// were interrupted. Call it before Candidates, unless nothing may be changed.
func (c *Collector) Recover() error {
	err := c.objects.removeTemporary(c.before)
	if err != nil || c.objects.dir == nil {
		return err
	}
	c.removing, err = openAt(c.lfs, removingName, unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err != nil {
		return ignoreAbsent(err)
	}
	names, err := c.removing.Readdirnames(-1)
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
	if err := c.objects.move(tree{dir: c.removing}, id.String(), id); err != nil {
		return err
	}
	_ = unix.Unlinkat(int(c.removing.Fd()), id.String(), 0) // still there if both are links to one file
	return c.objects.sync(id)
}

// Candidates lists the objects that are old enough.
func (c *Collector) Candidates() (old []lfs.Object, err error) {
	err = c.objects.walk(func(o lfs.Object, info fs.FileInfo) error {
		if info.ModTime().Before(c.before) {
			old = append(old, o)
		}
		return nil
	})
	return old, err
}

// Remove removes an object that no commit needs, unless it was uploaded again. The pool keeps it.
func (c *Collector) Remove(o lfs.Object) (removed bool, err error) {
	l, err := c.objects.leaf(o.OID, false)
	if err != nil {
		return false, ignoreAbsent(err)
	}
	defer l.close()
	if old, err := c.isOld(l.dir, l.base); err != nil || !old {
		return false, err
	}
	if err := c.openRemoving(); err != nil {
		return false, err
	}
	removing := int(c.removing.Fd())
	if err := unix.Renameat(l.dir, l.base, removing, l.base); err != nil {
		return false, ignoreAbsent(err)
	}
	old, err := c.isOld(removing, l.base)
	if err != nil || !old {
		return false, errors.Join(err, c.restore(o.OID))
	}
	if err := unix.Unlinkat(removing, l.base, 0); err != nil {
		return false, err
	}
	c.store.usage.add(c.repository, -o.Size)
	return true, nil
}

// openRemoving opens the directory of objects that are about to be removed, which it creates if necessary.
func (c *Collector) openRemoving() error {
	if c.removing != nil {
		return nil
	}
	fd, err := openDir(int(c.lfs.Fd()), removingName, true)
	path := filepath.Join(c.lfs.Name(), removingName)
	if err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	c.removing = os.NewFile(uintptr(fd), path)
	return nil
}

// isOld reports whether a file exists and is old enough.
func (c *Collector) isOld(dir int, name string) (bool, error) {
	var st unix.Stat_t
	if err := statAt(dir, name, &st); err != nil {
		return false, ignoreAbsent(err)
	}
	return time.Unix(st.Mtim.Unix()).Before(c.before), nil
}

func ignoreAbsent(err error) error {
	if isAbsent(err) {
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
