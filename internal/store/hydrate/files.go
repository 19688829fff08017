package hydrate

import (
	"context"
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/disk"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// filesDir is the directory of a local copy with the files of localFile: objects of Git LFS, as Git LFS itself has
// them.
const filesDir = "lfs/objects"

// localFile is a file of a local copy that is not a part of a pack. The cache removes it alone, at any time: readers
// have it open.
type localFile struct {
	repository *Repository
	name       string // path in the repository
	bytes      int64
}

// fetch is a running download of a file, or its removal.
type fetch struct {
	isRemoval bool
	cancel    context.CancelFunc
	done      chan struct{}
	err       error // valid once done is closed
}

// OpenFile opens a file of the local copy. If it is not here, it is downloaded from a key of the bucket and verified,
// and isHit is false. All callers share one download, which continues when they leave.
//
// If the download takes longer than Options.Wait, the error is Unavailable with a retry hint. A missing object is
// Corrupt and wraps bucket.ErrNotFound. Other errors are those of Use.
func (r *Repository) OpenFile(ctx context.Context, name, key string, want replog.File) (f *os.File, isHit bool,
	err error) {
	timeout := time.NewTimer(r.cache.options.Wait)
	defer timeout.Stop()
	for isHit = true; ; isHit = false {
		f, err := openRegular(filepath.Join(r.dir, name))
		if err == nil {
			return f, isHit, r.checkFile(f, name, want)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, false, diskError(err)
		}
		running, err := r.startFetch(name, key, want)
		if err != nil {
			return nil, false, err
		}
		select {
		case <-running.done:
			if running.err != nil {
				return nil, false, running.err
			}
		case <-ctx.Done():
			return nil, false, ctx.Err()
		case <-timeout.C:
			return nil, false, fault.Retry(fault.Unavailable, fault.RetryLater,
				"an object of %d MiB is being copied to the node: try again", want.Bytes>>20)
		}
	}
}

// openRegular opens a regular file, and never waits. A symbolic link and anything else, which a download replaces, does
// not exist.
func openRegular(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENXIO) { // a link, or a socket
		return nil, fs.ErrNotExist
	}
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fs.ErrNotExist
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// checkFile closes a file that has not the right size, and notes the use of the others.
func (r *Repository) checkFile(f *os.File, name string, want replog.File) error {
	info, err := f.Stat()
	switch {
	case err != nil:
		err = diskError(err)
	case info.Size() != want.Bytes:
		err = fault.New(fault.Invalid, "the object has %d bytes, not %d", info.Size(), want.Bytes)
	default:
		r.AddFile(name, want.Bytes)
		return nil
	}
	f.Close()
	return err
}

// startFetch returns the download of a file, and begins it if none runs.
func (r *Repository) startFetch(name, key string, want replog.File) (*fetch, error) {
	c := r.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	switch running := r.fetches[name]; {
	case r.removed:
		return nil, errRemoved
	case running != nil:
		return running, nil
	case c.ctx.Err() != nil:
		return nil, fault.Retry(fault.Unavailable, fault.RetrySoon, "the server is shutting down")
	}
	ctx, cancel := context.WithCancel(c.ctx)
	started := &fetch{cancel: cancel, done: make(chan struct{})}
	r.fetches[name] = started
	c.running.Go(func() {
		defer cancel()
		started.err = r.fetchFile(ctx, name, key, want)
		c.mu.Lock()
		if delete(r.fetches, name); r.removed {
			started.err = errRemoved
		}
		c.mu.Unlock()
		close(started.done)
	})
	return started, nil
}

// endFetchesLocked ends all downloads and removals of files. It unlocks the cache while it waits for them.
func (r *Repository) endFetchesLocked() {
	for len(r.fetches) > 0 {
		for _, f := range r.fetches {
			r.cache.mu.Unlock()
			f.cancel()
			<-f.done
			r.cache.mu.Lock()
			break
		}
	}
}

// fetchFile downloads a file. It is on disk before it gets its name, because files are not compared with their
// checksums after a crash.
func (r *Repository) fetchFile(ctx context.Context, name, key string, want replog.File) error {
	c := r.cache
	release, err := c.reserveFile(want.Bytes)
	if err != nil {
		return err
	}
	defer release()
	temp := filepath.Join(c.state, "file-"+rand.Text())
	defer os.Remove(temp)
	if err := newDownloader(c, ignoreCount).file(ctx, temp, key, want); err != nil {
		return err
	}
	err = disk.SyncDir(temp)
	if err == nil {
		path := filepath.Join(r.dir, name)
		if err = os.MkdirAll(filepath.Dir(path), 0o777); err == nil {
			err = os.Rename(temp, path)
		}
	}
	if err != nil {
		return diskError(err)
	}
	r.AddFile(name, want.Bytes)
	return nil
}

// AddFile notes that the local copy has a file, which was just used. The cache may remove it from now on.
func (r *Repository) AddFile(name string, bytes int64) {
	c := r.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	if running := r.fetches[name]; r.removed || running != nil && running.isRemoval {
		return
	}
	if f := r.files[name]; f != nil {
		c.recent.Get(f)
		return
	}
	f := &localFile{repository: r, name: name, bytes: bytes}
	r.files[name] = f
	c.recent.Add(f, struct{}{})
	c.bytes += bytes
	c.metrics.bytes.Set(float64(c.bytes))
}

// dropFileLocked forgets a file. The caller removes it.
func (c *Cache) dropFileLocked(f *localFile) {
	delete(f.repository.files, f.name)
	c.recent.Remove(f)
	c.bytes -= f.bytes
	c.metrics.bytes.Set(float64(c.bytes))
}

// RemoveFile removes a file of AddFile.
func (r *Repository) RemoveFile(name string) {
	c := r.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	if f := r.files[name]; f != nil && r.fetches[name] == nil {
		c.removeFileLocked(f)
	}
}

// removeFileLocked removes a file that is not being downloaded. It unlocks the cache meanwhile. Readers that need the
// file wait, and AddFile does not add it again.
func (c *Cache) removeFileLocked(f *localFile) {
	r := f.repository
	removal := &fetch{isRemoval: true, cancel: func() {}, done: make(chan struct{})}
	r.fetches[f.name] = removal
	c.dropFileLocked(f)
	c.mu.Unlock()
	_ = os.Remove(filepath.Join(r.dir, f.name))
	c.mu.Lock()
	delete(r.fetches, f.name)
	close(removal.done)
}

// reserveFile makes room for a file that is being written, until release is called. Call AddFile before that.
func (c *Cache) reserveFile(bytes int64) (release func(), err error) {
	if budget := c.options.Budget; bytes > budget {
		return nil, fault.New(fault.Unavailable, "the object has %s, more than the node may keep (store.cache = %s)",
			mebibytes(bytes), mebibytes(budget))
	}
	if err := c.take(bytes, bytes, c.makeRoom); err != nil {
		return nil, err
	}
	return sync.OnceFunc(func() { c.unreserve(bytes, bytes) }), nil
}

// loadFiles finds the files of a local copy.
func (r *Repository) loadFiles() error {
	root := filepath.Join(r.dir, filesDir)
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		name, err := filepath.Rel(r.dir, path)
		if err == nil {
			r.AddFile(name, info.Size())
		}
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// HasFile reports whether the local copy has a file. The cache may remove it at any time.
func (r *Repository) HasFile(name string) bool {
	r.cache.mu.Lock()
	defer r.cache.mu.Unlock()
	return r.files[name] != nil
}
