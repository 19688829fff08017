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
// leave the directory, also if it is renamed or removed meanwhile.
type tree struct{ dir *os.File } // nil: it does not exist

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
		return tree{}, nil
	}
	return tree{f}, err
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
	return tree{f}, repositoryError(err)
}

// makeDirTree opens a directory with objects or parts of the Store, which it creates if necessary.
func makeDirTree(path string) (tree, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return tree{}, err
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY, 0)
	return tree{f}, err
}

// removeTemporary removes files from a tree that have not become objects, because the process ended meanwhile. Their
// status last changed before a time.
func removeTemporary(path string, before time.Time) error {
	t, err := openTree(path)
	if t.dir == nil {
		return err
	}
	defer t.Close()
	names, err := t.dir.Readdirnames(-1)
	for _, n := range names {
		var st unix.Stat_t
		if strings.HasPrefix(n, tempPrefix) && unix.Fstatat(int(t.dir.Fd()), n, &st, unix.AT_SYMLINK_NOFOLLOW) == nil &&
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

// stat returns the size of an object. Only a regular file is an object.
func (t tree) stat(id lfs.OID) (size int64, found bool, err error) {
	if t.dir == nil {
		return 0, false, nil
	}
	var st unix.Stat_t
	for {
		err = unix.Fstatat(int(t.dir.Fd()), name(id), &st, unix.AT_SYMLINK_NOFOLLOW)
		if err != unix.EINTR {
			break
		}
	}
	switch {
	case err == unix.ENOENT || err == unix.ENOTDIR:
		return 0, false, nil
	case err != nil:
		return 0, false, &fs.PathError{Op: "stat", Path: filepath.Join(t.dir.Name(), name(id)), Err: err}
	}
	return st.Size, st.Mode&unix.S_IFMT == unix.S_IFREG, nil
}

// link adds the file of an object, which is from in another tree, to the tree. had reports whether the tree had the
// object already. Anything else of the same name is replaced. The error is fs.ErrNotExist if there is no such file, or
// the tree was removed.
func (s *Store) link(t, other tree, from string, o lfs.Object) (had bool, err error) {
	err = t.add(o.OID, func() error { return s.linkAt(other, from, t, name(o.OID)) })
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
	if err := s.linkAt(other, from, t, temp); err != nil {
		return err
	}
	err := t.move(t, temp, o)
	_ = unix.Unlinkat(int(t.dir.Fd()), temp, 0) // a rename does nothing if both are the same file
	return err
}

// linkAt makes a hard link.
func (s *Store) linkAt(in tree, from string, t tree, to string) error {
	err := s.linkError
	if err == nil {
		err = unix.Linkat(int(in.dir.Fd()), from, int(t.dir.Fd()), to, 0)
	}
	if err != nil {
		return &os.LinkError{Op: "link", Old: filepath.Join(in.dir.Name(), from), New: filepath.Join(t.dir.Name(), to),
			Err: err}
	}
	return nil
}

// move is link for file systems without links: the file loses its old name.
func (t tree) move(other tree, from string, o lfs.Object) error {
	return t.add(o.OID, func() error {
		err := unix.Renameat(int(other.dir.Fd()), from, int(t.dir.Fd()), name(o.OID))
		if err != nil {
			return &os.LinkError{Op: "rename", Old: filepath.Join(other.dir.Name(), from), New: t.path(o.OID), Err: err}
		}
		return nil
	})
}

// add calls place, which adds the file of an object. If a directory is missing, it is made, and place is called again.
func (t tree) add(id lfs.OID, place func() error) error {
	err := place()
	if errors.Is(err, unix.ENOENT) {
		if err := t.makeDirs(id); err != nil {
			return err
		}
		err = place()
	}
	return err
}

// makeDirs creates the directories for an object's file.
func (t tree) makeDirs(id lfs.OID) error {
	n := name(id)
	for _, dir := range []string{n[:2], n[:5]} {
		if err := unix.Mkdirat(int(t.dir.Fd()), dir, 0o777); err != nil && err != unix.EEXIST {
			return &fs.PathError{Op: "mkdir", Path: filepath.Join(t.dir.Name(), dir), Err: err}
		}
	}
	return nil
}

// sync writes the directories of an object's file to disk.
func (t tree) sync(id lfs.OID) error {
	n := name(id)
	return errors.Join(syncDir(t.dir, n[:5]), syncDir(t.dir, n[:2]), syncDir(t.dir, "."))
}

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
	for {
		fd, err := unix.Openat(int(in.Fd()), path, flags|unix.O_RDONLY|unix.O_CLOEXEC, 0)
		switch err {
		case nil:
			return os.NewFile(uintptr(fd), filepath.Join(in.Name(), path)), nil
		case unix.EINTR:
		default:
			return nil, &fs.PathError{Op: "open", Path: filepath.Join(in.Name(), path), Err: err}
		}
	}
}

// openObject opens the file of an object in a repository. It does not follow a symbolic link out of the directory of
// objects, and never waits.
func openObject(r Repository, id lfs.OID) (f *os.File, size int64, err error) {
	root, err := os.OpenRoot(r.objects())
	if err == nil {
		defer root.Close()
		f, err = root.OpenFile(name(id), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil, 0, fault.New(fault.NotFound, "the repository has no LFS object %s", id)
	}
	if err != nil {
		return nil, 0, fault.Wrap(fault.Unavailable, "the LFS object cannot be opened", err)
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fault.New(fault.Corrupt, "LFS object %s is not a regular file", id)
	}
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, info.Size(), nil
}
