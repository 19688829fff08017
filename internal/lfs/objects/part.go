package objects

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/lfs"
)

// incomingName is the directory of parts in Options.Dir. It is not the name of a directory with objects.
const incomingName = "incoming"

// tempPrefix begins the names of files in a tree that are about to become objects.
const tempPrefix = incomingName + "-"

// Part is the beginning of an object that is being written. Only Size and File are safe for concurrent use.
type Part struct {
	store    *Store
	path     string
	isShared bool // another upload can continue it

	// mu is a mutex whose callers can stop waiting. It is held for each write, so that another upload can take over
	// between two writes. It is held longer while the part is read or becomes an object.
	mu        *semaphore.Weighted
	file      *os.File  // nil: closed
	hash      hash.Hash // of the first size bytes; nil: not known
	writer    uint64    // number of the upload that may write; 0: none
	writers   uint64    // number of uploads so far
	isRemoved bool      // the file was removed, or became an object

	size    atomic.Int64
	running atomic.Pointer[progress] // of the upload that may write; nil: none
	check   int64                    // size at the last check of free space, up to which the kernel writes to disk
}

// Create returns an empty Part. The caller commits or discards it.
func (s *Store) Create() (*Part, error) {
	p := s.newPart(filepath.Join(s.incoming(), rand.Text()))
	p.hash = sha256.New()
	return p, p.open(os.O_CREATE | os.O_EXCL)
}

func (s *Store) newPart(path string) *Part {
	return &Part{store: s, path: path, mu: semaphore.NewWeighted(1)}
}

func (s *Store) incoming() string { return filepath.Join(s.options.Dir, incomingName) }

// partPath returns the path of the part that uploads of an object to a repository continue, in each process.
func (s *Store) partPath(r Repository, id lfs.OID) string {
	repository := lfs.OID(sha256.Sum256([]byte(r.ID)))
	return filepath.Join(s.incoming(), id.String()+"-"+repository.String()[:32])
}

// open opens the file of a part, and locks it against other processes. If the file is that of an object already, only
// its name as a part is removed, and the error is errRemoved.
func (p *Part) open(flags int) error {
	if err := os.MkdirAll(filepath.Dir(p.path), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(p.path, os.O_RDWR|flags, 0o600)
	if errors.Is(err, fs.ErrPermission) && os.Remove(p.path) == nil { // commit makes it read-only when it is an object
		return errRemoved
	}
	if err != nil {
		return writeError(err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return errInUse
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Nlink > 1 {
		if err == nil { // commit was interrupted
			err = cmp.Or(errors.Join(f.Chmod(objectMode), os.Remove(p.path)), errRemoved)
		}
		f.Close()
		return err
	}
	p.file = f
	return nil
}

// objectMode is the mode of the file of an object.
const objectMode = 0o444

// errInUse means that another process, or another upload in this one, writes to a part.
var errInUse = errors.New("the part is in use")

// errTakenOver ends an upload whose part another upload continues.
var errTakenOver = fault.New(fault.Exists, "another upload continues this one")

// Size returns the number of bytes that have arrived.
func (p *Part) Size() int64 { return p.size.Load() }

// File returns the file with the bytes that have arrived, for reads at their offsets.
func (p *Part) File() *os.File { return p.file }

// Write appends to the part. The error is of kind Full if there is no room.
func (p *Part) Write(b []byte) (int, error) {
	size := p.size.Load()
	if size == 0 || size-p.check >= floorInterval {
		if err := p.store.checkFloor(int64(len(b))); err != nil {
			return 0, err
		}
		startWriteback(p.file, p.check, size-p.check)
		p.check = size
	}
	n, err := p.file.WriteAt(b, size)
	p.hash.Write(b[:n])
	p.size.Store(size + int64(n))
	return n, writeError(err)
}

// Verify returns an error of kind Invalid if the part is not this object.
func (p *Part) Verify(o lfs.Object) error {
	if size := p.Size(); size != o.Size {
		return wrongLength.error(fault.Invalid, "object %s: got %d bytes, not %d", o.OID, size, o.Size)
	}
	if sum := lfs.OID(p.hash.Sum(nil)); sum != o.OID {
		return wrongHash.error(fault.Invalid, "object %s: the SHA-256 of the content is %s", o.OID, sum)
	}
	return nil
}

// Commit verifies the part and makes it an object of the repository. The object is on disk if there is no error. The
// part is gone then, and its file can still be read.
func (p *Part) Commit(r Repository, o lfs.Object) error {
	if err := p.Verify(o); err != nil {
		return err
	}
	to, err := makeTree(r)
	if err != nil {
		return err
	}
	defer to.Close()
	return p.commit(r, to, o)
}

// commit is Commit for a part that was verified, and the tree of the repository's objects.
func (p *Part) commit(r Repository, to tree, o lfs.Object) error {
	err := p.file.Sync()
	if err == nil {
		var had bool
		if had, err = p.publish(to, o, r.Remote == nil); err == nil && !had {
			p.store.usage.add(r, o.Size)
		}
	}
	if err == nil {
		err = p.file.Chmod(objectMode) // not before: if the process ends, another upload has to open the part
	}
	if err != nil {
		return writeError(err)
	}
	p.isRemoved = true
	_ = os.Remove(p.path) // its content has another name
	return nil
}

// publish gives the part's file its names in the pool, if it is shared, and in the repository. had reports whether the
// repository had the object already.
func (p *Part) publish(to tree, o lfs.Object, shared bool) (had bool, err error) {
	incoming, err := makeDirTree(filepath.Dir(p.path))
	if err != nil {
		return false, err
	}
	defer incoming.Close()
	if !shared {
		had, err = p.place(to, incoming, o)
		return had, repositoryError(err)
	}
	pool, err := makeDirTree(p.store.options.Dir)
	if err != nil {
		return false, err
	}
	defer pool.Close()
	inPool, err := p.link(pool, incoming, filepath.Base(p.path), o)
	switch {
	case err == nil && inPool: // share the file of the pool, unless it is removed at this moment
		if had, err = p.link(to, pool, name(o.OID), o); err == nil {
			var found bool // it may be so old that it is about to be removed
			if _, found, err = to.renew(o.OID); err == nil && found {
				return had, to.sync(o.OID)
			}
		}
	case err == nil:
		p.store.countPool(1, o)
		defer func() {
			if err != nil {
				_ = p.store.RemovePooled(o) // the only link
			}
		}()
	case !isUnsupported(err):
		return false, err
	}
	had, err = p.place(to, incoming, o)
	return had, repositoryError(err)
}

// link is Store.link for a file with the part's content. It also replaces a file of the object's size with other bytes.
func (p *Part) link(t, other tree, from string, o lfs.Object) (had bool, err error) {
	had, err = p.store.link(t, other, from, o)
	if err == nil && had && !p.isEqual(t, o) {
		err = p.store.replace(t, other, from, o)
	}
	return had, err
}

// isEqual reports whether the file of an object in a tree has the bytes of the part.
func (p *Part) isEqual(t tree, o lfs.Object) bool {
	f, _, err := t.open(o.OID)
	if err != nil {
		return false
	}
	defer f.Close()
	a, b := p.store.buffers.Get().(*[bufferSize]byte), p.store.buffers.Get().(*[bufferSize]byte)
	defer p.store.buffers.Put(a)
	defer p.store.buffers.Put(b)
	for off := int64(0); off < o.Size; {
		n, _ := p.file.ReadAt(a[:min(bufferSize, o.Size-off)], off)
		if read, _ := f.ReadAt(b[:n], off); n == 0 || !bytes.Equal(a[:n], b[:read]) {
			return false
		}
		off += int64(n)
	}
	return true
}

// place gives the part's file its name in the repository. It copies the file if there is no other way.
func (p *Part) place(to, incoming tree, o lfs.Object) (had bool, err error) {
	base := filepath.Base(p.path)
	for found := false; !found; {
		if had, err = p.link(to, incoming, base, o); err != nil || !had {
			break
		}
		_, found, err = to.renew(o.OID)
		if err != nil {
			return had, err
		}
	}
	if isUnsupported(err) {
		err = to.move(incoming, base, o.OID)
	}
	if errors.Is(err, unix.EXDEV) {
		err = p.copyTo(to, o)
	}
	if err == nil {
		err = to.sync(o.OID)
	}
	return had, err
}

// copyTo adds the part's content to a tree on another file system.
func (p *Part) copyTo(to tree, o lfs.Object) error {
	if p.store.roomIn(to.dir.Name()) < o.Size {
		return errNoSpace()
	}
	temp := tempPrefix + rand.Text()
	fd, err := unix.Openat(int(to.dir.Fd()), temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, objectMode)
	if err != nil {
		return &fs.PathError{Op: "create", Path: filepath.Join(to.dir.Name(), temp), Err: err}
	}
	f := os.NewFile(uintptr(fd), filepath.Join(to.dir.Name(), temp))
	_, err = io.Copy(f, io.NewSectionReader(p.file, 0, o.Size))
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = to.move(to, temp, o.OID)
	}
	if err != nil {
		_ = unix.Unlinkat(int(to.dir.Fd()), temp, 0)
	}
	return err
}

// Close closes the part's file, and removes it unless it became an object.
func (p *Part) Close() error {
	if !p.isRemoved {
		p.isRemoved = true
		_ = os.Remove(p.path)
	}
	return p.file.Close()
}

// rehash sets the hash to that of the first n bytes of the file, and drops bytes after them.
func (p *Part) rehash(ctx context.Context, n int64) error {
	p.hash = nil
	if err := p.file.Truncate(n); err != nil {
		return err
	}
	p.size.Store(n)
	buf := p.store.buffers.Get().(*[bufferSize]byte)
	defer p.store.buffers.Put(buf)
	h := sha256.New()
	for off := int64(0); off < n; {
		read, err := p.file.ReadAt(buf[:min(bufferSize, n-off)], off)
		if read == 0 {
			return cmp.Or(err, io.ErrUnexpectedEOF)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		h.Write(buf[:read])
		off += int64(read)
	}
	p.hash = h
	p.check = 0
	return nil
}
