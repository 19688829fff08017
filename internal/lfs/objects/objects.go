// Package objects keeps objects of Git LFS on disk.
//
// An object of a repository is the file lfs/objects/ab/cd/OID in the repository's Git directory, as Git LFS itself
// has it. That file is what makes it an object of the repository. Nothing else records it, so repositories can be
// copied, renamed and removed with their objects, and no repository learns what others have.
//
// The pool has the same layout, in a directory of its own. Files of repositories are hard links to files of the pool,
// so that repositories with the same object share its disk space. A file of the pool with one link is not used by any
// repository. On file systems without hard links, and for repositories on another file system, files are copies.
//
// Content arrives in parts, in the directory "incoming". A part becomes an object when its length and its SHA-256 are
// right. Then its file is written to disk and linked into the pool and into the repository, and the directories are
// written to disk. Objects never change. Parts of interrupted uploads are kept for a while, so that uploads can
// continue.
package objects

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/lfs"
)

// Options configure a Store.
type Options struct {
	// Dir is the directory of the pool and of parts. It is created with the first upload. No other program changes it.
	Dir string
	// MaxObject is the maximum size of an uploaded object in bytes. Zero means no limit.
	MaxObject int64
	// Quota is the maximum total size of the objects of a repository in bytes. Zero means no limit.
	Quota int64
	// MinFree is the number of bytes of the file system that uploads leave free. Zero means a twentieth of it, at most
	// 5 GiB. A negative value means that they may fill it.
	MinFree int64
	// Copies means that files here are copies of objects in Remotes. These remove copies until MinFree is free, and
	// uploads leave a quarter of it free.
	Copies bool
	// Expiry is how long the part of an interrupted upload is kept. Zero means a day.
	Expiry time.Duration
	// ReadOnly disables the removal of old parts. The caller must not upload then.
	ReadOnly bool

	Log        *slog.Logger          // nil: not logged
	Registerer prometheus.Registerer // of metrics; may be nil
}

// Store has the objects of the repositories of a node. It is safe for concurrent use, also by several processes with
// the same directories.
type Store struct {
	options Options
	log     *slog.Logger
	metrics *metrics
	buffers sync.Pool // of *[bufferSize]byte
	usage   usageTable

	measured  atomic.Uint32 // number of directories of the pool that the janitor has measured
	linkError error         // of hard links, in tests; nil: the file system decides

	mu    sync.Mutex
	parts map[string]*Part // named parts that are in use or have a known hash, by path

	stop func()
	done sync.WaitGroup
}

// Repository is a repository with objects.
type Repository struct {
	Dir   string // the Git directory that its worktrees share
	ID    string // changes if another repository gets the directory; interrupted uploads continue in the same one
	Quota int64  // overrides Options.Quota; zero: it does not, negative: no limit
	// Purged has the objects that were purged. They do not exist, and uploads of them are refused.
	Purged map[lfs.OID]bool
	// Remote has the objects, and files in Dir are copies of some. The pool does not share them. Nil: Dir has all.
	Remote Remote
}

// bufferSize is the size of the buffers of uploads.
const bufferSize = 128 << 10

// New returns a Store. The caller closes it.
func New(o Options) *Store {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Expiry == 0 {
		o.Expiry = 24 * time.Hour
	}
	s := &Store{options: o, log: o.Log, metrics: newMetrics(o.Registerer), parts: make(map[string]*Part)}
	s.buffers.New = func() any { return new([bufferSize]byte) }
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	if !o.ReadOnly {
		s.done.Go(func() { s.janitor(ctx) })
	}
	return s
}

// Close ends the background work. No upload may be running.
func (s *Store) Close() {
	s.stop()
	s.done.Wait()
}

// Check returns the states of objects in a repository, in their order, before an upload or a download. Before an upload
// it renews the objects that are here, so that they are not removed before the client pushes the commits.
// Uploads that it refuses are counted.
func (s *Store) Check(ctx context.Context, r Repository, b lfs.Batch) (states []lfs.Status, err error) {
	states, err = s.states(ctx, r, b)
	for _, state := range states {
		if b.Upload && state.State == lfs.Refused {
			s.metrics.uploads.WithLabelValues(Reason(state.Err)).Inc()
		}
	}
	return states, err
}

// states is Check without its metric.
func (s *Store) states(ctx context.Context, r Repository, b lfs.Batch) ([]lfs.Status, error) {
	if len(r.Purged) > 0 {
		return s.checkPurged(ctx, r, b)
	}
	if r.Remote != nil {
		return s.checkRemote(ctx, r, b)
	}
	states := make([]lfs.Status, len(b.Objects))
	t, err := openTree(r.objects())
	if err != nil {
		return nil, err
	}
	defer t.Close()
	t.dirs = new([256]bool)
	room, stat := s.newRoom(r), t.stat
	if b.Upload {
		stat = t.renew
	}
	for i, o := range b.Objects {
		if i%1024 == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		size, found, err := stat(o.OID)
		switch {
		case err != nil:
			return nil, err
		case found && size == o.Size:
			states[i].State = lfs.Present
		case found && !b.Upload:
			states[i] = lfs.Status{State: lfs.Refused, Err: fault.New(fault.Invalid, "object %s has %d bytes, not %d", o.OID,
				size, o.Size)}
		case b.Upload:
			if err := room.reserve(ctx, o, 0); err != nil {
				states[i] = lfs.Status{State: lfs.Refused, Err: err}
			}
		}
	}
	return states, nil
}

// Open opens an object of a repository. The error is NotFound if the repository does not have it, Invalid if it has
// another size.
func (s *Store) Open(r Repository, o lfs.Object) (*os.File, error) {
	f, size, err := openObject(r, o.OID)
	switch {
	case err != nil:
		return nil, err
	case size != o.Size:
		f.Close()
		return nil, fault.New(fault.Invalid, "object %s has %d bytes, not %d", o.OID, size, o.Size)
	}
	return f, nil
}

// Link adds an object that the pool has to a repository, without its content. It reports whether the pool has it. The
// caller has made sure that users of the repository may read the object.
func (s *Store) Link(r Repository, o lfs.Object) (bool, error) {
	to, err := makeTree(r)
	if err != nil {
		return false, err
	}
	defer to.Close()
	pool, err := openTree(s.options.Dir)
	if err != nil {
		return false, err
	}
	defer pool.Close()
	size, found, err := pool.stat(o.OID)
	if err != nil || !found || size != o.Size {
		return false, err
	}
	had, err := s.link(to, pool, name(o.OID), o)
	switch {
	case errors.Is(err, unix.ENOENT) || isUnsupported(err): // removed at this moment, or it needs a copy
		return false, nil
	case err != nil:
		return false, writeError(err)
	case !had:
		s.usage.add(r, o.Size)
	}
	return true, to.sync(o.OID)
}

// touchInterval is the interval in which Touch changes the time of a file.
const touchInterval = time.Minute

// Touch notes the use of an object of a repository, for LastUse. It sets the time of access, because other repositories
// share the file, and the time of modification delays the removal of their garbage. Errors are ignored.
func (s *Store) Touch(r Repository, o lfs.Object, now time.Time) {
	t, err := openTree(r.objects())
	if err != nil {
		return
	}
	defer t.Close()
	if l, err := t.leaf(o.OID, false); err == nil {
		l.touch(now)
		l.close()
	}
}

// objects returns the directory of the repository's objects.
func (r Repository) objects() string { return filepath.Join(r.Dir, "lfs", "objects") }
