package objects

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/packhorse-git/packhorse/internal/lfs"
)

// damagedDir, in Options.Dir and in repositories, has damaged objects.
const damagedDir = "damaged"

// Damage is a damaged object: its file has other bytes than those that its ID is the hash of, or cannot be read.
type Damage struct {
	lfs.Object
	info fs.FileInfo // of the file
	err  error       // why it cannot be read; nil: its bytes are wrong
}

// Error describes the damage.
func (d *Damage) Error() string {
	if d.err != nil {
		return "the object cannot be read: " + d.err.Error()
	}
	return "the object's bytes are not those of its ID"
}

// Verify reads an object of a repository. The error is a *Damage if it is damaged, and nil if it was removed meanwhile.
// Reads wait for limiter, whose tokens are bytes; nil: they do not.
func (s *Store) Verify(ctx context.Context, r Repository, o lfs.Object, limiter *rate.Limiter) error {
	return s.verify(ctx, r.objects(), o, limiter)
}

// VerifyPooled is Verify for an object of the pool.
func (s *Store) VerifyPooled(ctx context.Context, o lfs.Object, limiter *rate.Limiter) error {
	return s.verify(ctx, s.options.Dir, o, limiter)
}

// verify reads a file that seems to be damaged a second time, because the damage can be one of memory.
func (s *Store) verify(ctx context.Context, dir string, o lfs.Object, limiter *rate.Limiter) error {
	t, err := openTree(dir)
	if err != nil {
		return err
	}
	defer t.Close()
	f, _, err := t.open(o.OID)
	if err != nil {
		return ignoreAbsent(err)
	}
	defer f.Close()
	hideReads(f)
	for range 2 {
		var sum lfs.OID
		if sum, err = s.hash(ctx, f, limiter); err == nil && sum == o.OID || ctx.Err() != nil {
			return ctx.Err()
		}
	}
	info, statErr := f.Stat()
	if statErr != nil {
		return statErr
	}
	s.metrics.damaged.Inc()
	return &Damage{Object: o, info: info, err: err}
}

// hash returns the SHA-256 of a file's content.
func (s *Store) hash(ctx context.Context, f *os.File, limiter *rate.Limiter) (id lfs.OID, err error) {
	buf := s.buffers.Get().(*[bufferSize]byte)
	defer s.buffers.Put(buf)
	h := sha256.New()
	for off := int64(0); ; {
		n, err := f.ReadAt(buf[:], off)
		h.Write(buf[:n])
		off += int64(n)
		if errors.Is(err, io.EOF) {
			return lfs.OID(h.Sum(nil)), ctx.Err()
		}
		if err == nil && limiter != nil {
			err = limiter.WaitN(ctx, n)
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return id, err
		}
	}
}

// InPool reports whether the pool has the file of a repository's object.
func (s *Store) InPool(o lfs.Object, info fs.FileInfo) bool {
	pooled, err := os.Lstat(filepath.Join(s.options.Dir, name(o.OID)))
	return err == nil && os.SameFile(pooled, info)
}

// NewLimiter returns a limiter for Verify of n bytes a second.
func NewLimiter(n int64) *rate.Limiter { return rate.NewLimiter(rate.Limit(n), bufferSize) }

// SetAside moves a damaged object out of the pool and of the repositories, so that clients upload it again. Files of
// the same object that are not damaged stay. each calls its argument for every repository. remove reports whether the
// repository had the damaged file.
func (s *Store) SetAside(d *Damage, each func(remove func(Repository) (bool, error)) error) error {
	inPool, err := moveAside(s.options.Dir, filepath.Join(s.options.Dir, damagedDir), d)
	if err != nil {
		return err
	}
	if inPool {
		s.countPool(-1, d.Object)
	}
	return each(func(r Repository) (bool, error) {
		aside := filepath.Join(r.Dir, "lfs", damagedDir)
		if inPool {
			aside = "" // one copy is enough
		}
		removed, err := moveAside(r.objects(), aside, d)
		if err != nil || !removed {
			return false, err
		}
		s.usage.add(r, -d.Size)
		_, err = s.Link(r, d.Object) // another repository's upload may have replaced the one of the pool already
		return true, err
	})
}

// RemoveDamaged removes a damaged object from a repository, unless its file was replaced meanwhile.
func (s *Store) RemoveDamaged(r Repository, d *Damage) error {
	_, err := moveAside(r.objects(), "", d)
	return err
}

// moveAside moves the file of an object from a tree to a directory, under its ID, if it is the damaged one. If aside is
// "", it removes the file.
func moveAside(dir, aside string, d *Damage) (moved bool, err error) {
	t, err := openTree(dir)
	if err != nil {
		return false, err
	}
	defer t.Close()
	l, err := t.leaf(d.OID, false)
	if err != nil {
		return false, ignoreAbsent(err)
	}
	defer l.close()
	var st unix.Stat_t
	if err := statAt(l.dir, l.base, &st); err != nil || !isFile(&st, d.info) {
		return false, ignoreAbsent(err)
	}
	if aside == "" {
		return t.remove(d.OID)
	}
	if err := os.MkdirAll(aside, 0o700); err != nil {
		return false, err
	}
	to := filepath.Join(aside, l.base)
	if err := unix.Renameat(l.dir, l.base, unix.AT_FDCWD, to); err != nil {
		return false, &os.LinkError{Op: "rename", Old: t.path(d.OID), New: to, Err: err}
	}
	return true, nil
}

// isFile reports whether a status is of the same file as another one.
func isFile(st *unix.Stat_t, info fs.FileInfo) bool {
	other, ok := info.Sys().(*syscall.Stat_t)
	return ok && st.Dev == other.Dev && st.Ino == other.Ino
}
