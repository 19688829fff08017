package objects

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/lfs"
)

// tree is an open directory with objects. A tree of a directory that does not exist has no objects. Its methods do not
// leave the directory, also if it is renamed or removed meanwhile. They do not follow symbolic links in it. Only a
// regular file is an object.
type tree struct {
	dir *os.File // nil: it does not exist

	// dirs has the directories ab that are not symbolic links, by their first byte, as far as stat has checked. It is nil
	// except for the trees of batches, which one goroutine uses.
	dirs *[256]bool
}

// name returns the path of an object in a tree.
func name(id lfs.OID) string {
	var b [len("ab/cd/") + 2*len(id)]byte
	hex.Encode(b[6:], id[:])
	copy(b[:], b[6:8])
	copy(b[3:], b[8:10])
	b[2], b[5] = '/', '/'
	return string(b[:])
}

func openTree(path string) (tree, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		if info, err := os.Lstat(path); err != nil || info.Mode()&fs.ModeSymlink == 0 { // made meanwhile
			return tree{}, nil
		}
	}
	return tree{dir: f}, errNotOpened(err)
}

// errNotOpened is the error of a tree that exists and cannot be opened.
func errNotOpened(err error) error {
	return fault.Wrap(fault.Unavailable, "the directory of the LFS objects cannot be opened", err)
}

// makeTree opens the directory of a repository's objects, which it creates if necessary. The error is NotFound if there
// is no repository.
func makeTree(r Repository) (tree, error) {
	repository, err := os.OpenFile(r.Dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return tree{}, repositoryError(err)
	}
	defer repository.Close()
	for _, dir := range []string{"lfs", "lfs/objects"} {
		err := unix.Mkdirat(int(repository.Fd()), dir, 0o777)
		if err == nil {
			err = syncDir(repository, filepath.Dir(dir))
		}
		if err != nil && err != unix.EEXIST {
			return tree{}, repositoryError(&fs.PathError{Op: "mkdir", Path: filepath.Join(r.Dir, dir), Err: err})
		}
	}
	f, err := openAt(repository, "lfs/objects", unix.O_DIRECTORY)
	var st unix.Stat_t
	if err != nil && statAt(int(repository.Fd()), "lfs/objects", &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK {
		return tree{}, errNotOpened(err)
	}
	return tree{dir: f}, repositoryError(err)
}

// makeDirTree opens a directory with objects or parts of the Store, which it creates if necessary.
func makeDirTree(path string) (tree, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return tree{}, err
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY, 0)
	return tree{dir: f}, err
}

// removeTemporary removes files from a tree that have not become objects, because the process ended meanwhile. Their
// status last changed before a time.
func (t tree) removeTemporary(before time.Time) error {
	if t.dir == nil {
		return nil
	}
	names, err := t.dir.Readdirnames(-1)
	for _, n := range names {
		var st unix.Stat_t
		if strings.HasPrefix(n, tempPrefix) && statAt(int(t.dir.Fd()), n, &st) == nil &&
			time.Unix(st.Ctim.Unix()).Before(before) {
			_ = unix.Unlinkat(int(t.dir.Fd()), n, 0)
		}
	}
	return err
}

// repositoryError is NotFound if the directory of a repository does not exist any more.
func repositoryError(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fault.Wrap(fault.NotFound, "the repository does not exist any more", err)
	}
	return err
}

// Close closes the directory.
func (t tree) Close() {
	if t.dir != nil {
		t.dir.Close()
	}
}

// leaf is the place of an object's file in a tree.
type leaf struct {
	first, dir int // the open directories ab and ab/cd
	base       string
}

// leaf opens the directories of an object's file, which it creates if it may. Otherwise the error is absent if they do
// not exist.
func (t tree) leaf(id lfs.OID, create bool) (l leaf, err error) {
	if t.dir == nil {
		return l, unix.ENOENT
	}
	n := name(id)
	if l.first, err = openDir(int(t.dir.Fd()), n[:2], create); err != nil {
		return l, err
	}
	if l.dir, err = openDir(l.first, n[3:5], create); err != nil {
		_ = unix.Close(l.first)
		return l, err
	}
	l.base = n[6:]
	return l, nil
}

// makeLeaf is leaf for a file that is about to be added. Its error names the remedy.
func (t tree) makeLeaf(id lfs.OID) (leaf, error) {
	l, err := t.leaf(id, true)
	if err != nil {
		notDir := err == unix.ENOTDIR || err == unix.ELOOP
		err = &fs.PathError{Op: "open the directories of", Path: t.path(id), Err: err}
		if notDir {
			err = fault.Wrap(fault.Corrupt, "the server cannot store the LFS object: a directory below lfs/objects is a "+
				"symbolic link or a file; the administrator has to replace it with a directory", err)
		}
	}
	return l, err
}

func (l leaf) close() {
	_ = unix.Close(l.dir)
	_ = unix.Close(l.first)
}

// openDir opens a directory in another one, which it creates if it may. It does not follow a symbolic link.
func openDir(in int, name string, create bool) (int, error) {
	for {
		fd, err := unix.Openat(in, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err == unix.ENOENT && create {
			create = false
			if err = unix.Mkdirat(in, name, 0o777); err == nil || err == unix.EEXIST {
				continue
			}
		}
		if err != unix.EINTR {
			return fd, err
		}
	}
}

// isAbsent reports whether an error means that something in a tree does not exist, or is not what it should be.
func isAbsent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

// retry calls do until a signal does not interrupt it.
func retry(do func() error) error {
	for {
		if err := do(); err != unix.EINTR {
			return err
		}
	}
}

func statAt(dir int, name string, st *unix.Stat_t) error {
	return retry(func() error { return unix.Fstatat(dir, name, st, unix.AT_SYMLINK_NOFOLLOW) })
}

// stat returns the size of an object. A batch has thousands of them, so stat checks the directories, but does not
// open them.
func (t tree) stat(id lfs.OID) (size int64, found bool, err error) { return t.statFile(id, false) }

// statFile is stat, and renew if isRenewed is true.
func (t tree) statFile(id lfs.OID, isRenewed bool) (size int64, found bool, err error) {
	if t.dir == nil {
		return 0, false, nil
	}
	n, in := name(id), int(t.dir.Fd())
	var st unix.Stat_t
	op := "stat the directories of"
	err = t.checkDirs(id, n)
	if err == nil && isRenewed {
		op = "set the time of"
		err = unix.UtimesNanoAt(in, n, nil, unix.AT_SYMLINK_NOFOLLOW)
	}
	if err == nil {
		op = "stat"
		err = statAt(in, n, &st)
	}
	switch {
	case isAbsent(err):
		return 0, false, nil
	case err != nil:
		return 0, false, &fs.PathError{Op: op, Path: t.path(id), Err: err}
	}
	return st.Size, st.Mode&unix.S_IFMT == unix.S_IFREG, nil
}

// checkDirs returns an error if one of the directories of an object is a symbolic link. n is the object's name.
func (t tree) checkDirs(id lfs.OID, n string) error {
	if t.dirs == nil || !t.dirs[id[0]] {
		if err := t.checkDir(n[:2]); err != nil {
			return err
		}
		if t.dirs != nil {
			t.dirs[id[0]] = true
		}
	}
	return t.checkDir(n[:5])
}

func (t tree) checkDir(name string) error {
	var st unix.Stat_t
	err := statAt(int(t.dir.Fd()), name, &st)
	if err == nil && st.Mode&unix.S_IFMT != unix.S_IFDIR {
		err = unix.ENOTDIR
	}
	return err
}

// open opens the file of an object, and never waits. The error is fs.ErrNotExist if the tree does not have the object.
func (t tree) open(id lfs.OID) (f *os.File, size int64, err error) {
	l, err := t.leaf(id, false)
	if err == nil {
		defer l.close()
		f, err = openFile(l.dir, l.base, t.path(id), unix.O_NOFOLLOW|unix.O_NONBLOCK)
	}
	switch {
	case isAbsent(err) || errors.Is(err, unix.ENXIO) || errors.Is(err, unix.EOPNOTSUPP): // a link, or a socket
		return nil, 0, fs.ErrNotExist
	case err != nil:
		return nil, 0, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fs.ErrNotExist
	}
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, info.Size(), nil
}

// remove removes the file of an object, if there is one.
func (t tree) remove(id lfs.OID) (removed bool, err error) {
	l, err := t.leaf(id, false)
	if err == nil {
		defer l.close()
		err = unix.Unlinkat(l.dir, l.base, 0)
	}
	switch {
	case isAbsent(err):
		return false, nil
	case err != nil:
		return false, &fs.PathError{Op: "remove", Path: t.path(id), Err: err}
	}
	return true, nil
}

// link adds the file of an object, which is from in another tree, to the tree. had reports whether the tree had the
// object already. Anything else of the same name is replaced. The error is fs.ErrNotExist if there is no such file, or
// the tree was removed.
func (s *Store) link(t, other tree, from string, o lfs.Object) (had bool, err error) {
	l, err := t.makeLeaf(o.OID)
	if err != nil {
		return false, err
	}
	defer l.close()
	err = s.linkAt(other, from, l.dir, t.path(o.OID))
	if !errors.Is(err, unix.EEXIST) {
		return false, err
	}
	size, found, err := t.stat(o.OID)
	if err != nil || found && size == o.Size {
		return true, err
	}
	return false, s.replace(t, other, from, o)
}

// replace is link for an object of which the tree has a file already.
func (s *Store) replace(t, other tree, from string, o lfs.Object) error {
	temp := tempPrefix + rand.Text()
	if err := s.linkAt(other, from, int(t.dir.Fd()), filepath.Join(t.dir.Name(), temp)); err != nil {
		return err
	}
	err := t.move(t, temp, o.OID)
	_ = unix.Unlinkat(int(t.dir.Fd()), temp, 0) // a rename does nothing if both are the same file
	return err
}

// linkAt makes a hard link in an open directory, at a path.
func (s *Store) linkAt(in tree, from string, dir int, path string) error {
	err := s.linkError
	if err == nil {
		err = unix.Linkat(int(in.dir.Fd()), from, dir, filepath.Base(path), 0)
	}
	if err != nil {
		return &os.LinkError{Op: "link", Old: filepath.Join(in.dir.Name(), from), New: path, Err: err}
	}
	return nil
}

// move is link for file systems without links: the file loses its old name.
func (t tree) move(other tree, from string, id lfs.OID) error {
	l, err := t.makeLeaf(id)
	if err != nil {
		return err
	}
	defer l.close()
	if err := unix.Renameat(int(other.dir.Fd()), from, l.dir, l.base); err != nil {
		return &os.LinkError{Op: "rename", Old: filepath.Join(other.dir.Name(), from), New: t.path(id), Err: err}
	}
	return nil
}

// sync writes the directories of an object's file to disk.
func (t tree) sync(id lfs.OID) error {
	l, err := t.leaf(id, false)
	if err == nil {
		defer l.close()
		err = errors.Join(syncFD(l.dir), syncFD(l.first), syncFD(int(t.dir.Fd())))
	}
	if err != nil {
		return &fs.PathError{Op: "sync the directories of", Path: t.path(id), Err: err}
	}
	return nil
}

func syncFD(dir int) error { return retry(func() error { return unix.Fsync(dir) }) }

func (t tree) path(id lfs.OID) string { return filepath.Join(t.dir.Name(), name(id)) }

// syncDir writes a directory in another one to disk.
func syncDir(in *os.File, path string) error {
	f, err := openAt(in, path, unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func openAt(in *os.File, path string, flags int) (*os.File, error) {
	return openFile(int(in.Fd()), path, filepath.Join(in.Name(), path), flags)
}

// openFile opens a file in an open directory. Its path is for messages.
func openFile(in int, name, path string, flags int) (*os.File, error) {
	for {
		fd, err := unix.Openat(in, name, flags|unix.O_RDONLY|unix.O_CLOEXEC, 0)
		switch err {
		case nil:
			return os.NewFile(uintptr(fd), path), nil
		case unix.EINTR:
		default:
			return nil, &fs.PathError{Op: "open", Path: path, Err: err}
		}
	}
}

// openObject opens the file of an object in a repository.
func openObject(r Repository, id lfs.OID) (f *os.File, size int64, err error) {
	t, err := openTree(r.objects())
	if err != nil {
		return nil, 0, err
	}
	defer t.Close()
	f, size, err = t.open(id)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, fault.New(fault.NotFound, "the repository has no LFS object %s", id)
	}
	return f, size, fault.Wrap(fault.Unavailable, "the LFS object cannot be opened", err)
}
