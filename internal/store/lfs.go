package store

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/lfs/objects"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// LFS objects of a repository are the objects repos/ID/lfs/OID of the bucket, and its locks are repos/ID/locks/NAME.
// Records do not name them: an object of the bucket is one of the repository. Repositories do not share objects, so
// none learns what others have, and the objects of a deleted repository can be deleted with it. Collect sets
// objects aside under other keys.

const (
	lfsPrefix  = "lfs/"
	lockPrefix = "locks/"

	// maxLFSSizes is the maximum number of sizes in memory.
	maxLFSSizes = 100_000
	// lfsSizeTime is how long a size is used. Operators delete damaged objects.
	lfsSizeTime = 10 * time.Minute
	// maxLFSLookups is the maximum number of objects that are looked up one by one: those of an ordinary batch, which are
	// 100, and of pushes. Of more, the list of all objects is read.
	maxLFSLookups = 1000
	// lfsParallel is the number of objects that are looked up or collected at the same time.
	lfsParallel = 16
	// lfsWait is how long a request waits for an object that comes back. Clients give up after 30 seconds.
	lfsWait = 20 * time.Second
	maxLock = 64 << 10 // bytes
)

// lfsKey names an object of a repository.
type lfsKey struct {
	repository string
	oid        lfs.OID
}

// lfsSize is the size of an object that the bucket had at a time. It is -1, at the zero time, while the bucket may not
// have an object that was uploaded to this node.
type lfsSize struct {
	bytes int64
	time  time.Time
}

// lfsObjects has the LFS objects of a repository.
type lfsObjects struct{ *place }

// LFS implements places.Place.
func (p *place) LFS() objects.Remote { return lfsObjects{p} }

func (r *repository) lfsKey(id lfs.OID) string {
	return reposPrefix + r.id + "/" + lfsPrefix + id.String()
}

// lfsFile returns the place of an object in the local copy.
func lfsFile(id lfs.OID) string {
	s := id.String()
	return "lfs/objects/" + s[:2] + "/" + s[2:4] + "/" + s
}

// Sizes implements objects.Remote.
func (o lfsObjects) Sizes(ctx context.Context, list []lfs.Object) ([]int64, error) {
	s := o.store
	if err := s.refused(); err != nil {
		return nil, err
	}
	sizes := make([]int64, len(list))
	var unknown []int
	for i, object := range list {
		known, ok := s.lfsSizes.Get(lfsKey{o.id, object.OID})
		if sizes[i] = known.bytes; !ok || time.Since(known.time) > lfsSizeTime {
			sizes[i] = -1
			unknown = append(unknown, i)
		}
	}
	if len(unknown) > maxLFSLookups {
		var err error
		if unknown, err = o.readSizes(ctx, list, sizes, unknown); err != nil {
			return nil, o.failed(err)
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(lfsParallel)
	for _, i := range unknown {
		group.Go(func() (err error) {
			sizes[i], err = o.size(ctx, list[i].OID)
			return err
		})
	}
	return sizes, o.failed(group.Wait())
}

// size asks the bucket for the size of an object. It is -1 if the bucket does not have the object. An object that was
// set aside comes back first.
func (o lfsObjects) size(ctx context.Context, id lfs.OID) (int64, error) {
	key := o.lfsKey(id)
	for range maxTries {
		found, err := o.store.bucket.List(ctx, key, "", 1)
		switch {
		case err != nil || len(found) == 0:
			return -1, err
		case found[0].Key == key:
			o.keepSize(id, found[0].Size)
			return found[0].Size, nil
		case !strings.HasPrefix(found[0].Key, key+asideMark):
			return -1, nil // not written by this package
		}
		if err := o.bringBack(ctx, found[0], key); err != nil && !errors.Is(err, bucket.ErrNotFound) {
			return -1, err
		}
	}
	return -1, fault.Retry(fault.Unavailable, fault.RetryLater, "the LFS object is being set aside; try again")
}

// bringBack copies an object that was set aside to its key.
func (o lfsObjects) bringBack(ctx context.Context, aside bucket.Info, key string) error {
	ctx, cancel := context.WithTimeout(ctx, lfsWait)
	defer cancel()
	return o.share(ctx, aside.Key, func() error {
		return o.store.bucket.Copy(o.store.ctx, aside.Key, key, aside.Size)
	})
}

// keepSize remembers that the bucket has an object now.
func (o lfsObjects) keepSize(id lfs.OID, bytes int64) {
	o.store.lfsSizes.Add(lfsKey{o.id, id}, lfsSize{bytes, time.Now()})
}

// readSizes fills in the sizes of objects from the list of all. It returns the unknown ones that were set aside.
func (o lfsObjects) readSizes(ctx context.Context, list []lfs.Object, sizes []int64, unknown []int) (aside []int,
	err error) {
	wanted := make(map[lfs.OID][]int, len(unknown))
	for _, i := range unknown {
		wanted[list[i].OID] = append(wanted[list[i].OID], i)
	}
	return aside, eachLFS(ctx, o.store.bucket, o.id, func(s storedObject) error {
		if s.isAside {
			aside = append(aside, wanted[s.oid]...)
		} else if wanted[s.oid] != nil {
			for _, i := range wanted[s.oid] {
				sizes[i] = s.Size
			}
			o.keepSize(s.oid, s.Size)
		}
		delete(wanted, s.oid)
		return nil
	})
}

// storedObject is an LFS object of the bucket.
type storedObject struct {
	bucket.Info
	oid     lfs.OID
	isAside bool // it is a copy that a collection has made
}

// eachLFS calls f with each LFS object of a repository, in ascending order. Copies follow the object with the same ID.
func eachLFS(ctx context.Context, b bucket.Bucket, repository string, f func(storedObject) error) error {
	prefix := reposPrefix + repository + "/" + lfsPrefix
	return bucket.Each(ctx, b, prefix, func(info bucket.Info) error {
		name, _, isAside := strings.Cut(strings.TrimPrefix(info.Key, prefix), asideMark)
		id, err := lfs.ParseOID(name)
		if err != nil {
			return nil // not written by this package
		}
		return f(storedObject{info, id, isAside})
	})
}

// failed notes that a request to the bucket failed.
func (o lfsObjects) failed(err error) error {
	if fault.Is(err, fault.Unavailable) {
		o.store.health.doubt()
	}
	return err
}

// IsStored implements objects.Remote.
func (o lfsObjects) IsStored(id lfs.OID) bool {
	known, isKnown := o.store.lfsSizes.Get(lfsKey{o.id, id})
	return o.local.HasFile(lfsFile(id)) && (!isKnown || known.bytes >= 0)
}

// Usage implements objects.Remote.
func (o lfsObjects) Usage() (total int64, err error) {
	err = o.Walk(o.store.ctx, func(object lfs.Object, _ time.Time) error {
		total += object.Size
		return nil
	})
	return total, err
}

// Walk implements objects.Remote.
func (o lfsObjects) Walk(ctx context.Context, do func(o lfs.Object, stored time.Time) error) error {
	return o.failed(eachLFS(ctx, o.store.bucket, o.id, func(s storedObject) error {
		if s.isAside {
			return nil
		}
		return do(lfs.Object{OID: s.oid, Size: s.Size}, s.Modified)
	}))
}

// Purge implements objects.Remote.
func (o lfsObjects) Purge(ctx context.Context, id lfs.OID) (removed []string, problem string, err error) {
	b, key := o.store.options.Bucket, o.lfsKey(id)
	o.store.lfsSizes.Remove(lfsKey{o.id, id})
	err = bucket.Each(ctx, b, key, func(info bucket.Info) error { // also what a collection has set aside
		removed = append(removed, info.Key)
		return b.Delete(ctx, info.Key)
	})
	if err != nil {
		return removed, "", err
	}
	versions, problem, err := deleteVersions(ctx, b, key)
	return append(removed, versions...), problem, err
}

// files returns the versions of an object in the bucket.
func (o lfsObjects) files(ctx context.Context, id lfs.OID) (files []bucket.Version, err error) {
	if b, ok := o.store.options.Bucket.(bucket.Versioned); ok {
		files, err = b.Versions(ctx, o.lfsKey(id))
		return slices.DeleteFunc(files, func(v bucket.Version) bool { return v.IsMarker }), err
	}
	err = bucket.Each(ctx, o.store.options.Bucket, o.lfsKey(id), func(info bucket.Info) error {
		files = append(files, bucket.Version{Key: info.Key})
		return nil
	})
	return files, err
}

// Open implements objects.Remote.
func (o lfsObjects) Open(ctx context.Context, object lfs.Object) (f *os.File, isHit bool, err error) {
	for range 2 { // if it was set aside after it was looked up, it comes back
		if f, isHit, err = o.open(ctx, object); !errors.Is(err, bucket.ErrNotFound) {
			return f, isHit, err
		}
		o.store.lfsSizes.Remove(lfsKey{o.id, object.OID})
	}
	return nil, false, errNoObject(object)
}

func (o lfsObjects) open(ctx context.Context, object lfs.Object) (f *os.File, isHit bool, err error) {
	name := lfsFile(object.OID)
	if !o.local.HasFile(name) {
		sizes, err := o.Sizes(ctx, []lfs.Object{object})
		switch {
		case err != nil:
			return nil, false, err
		case sizes[0] < 0:
			return nil, false, errNoObject(object)
		case sizes[0] != object.Size:
			return nil, false, fault.New(fault.Invalid, "object %s has %d bytes, not %d", object.OID, sizes[0], object.Size)
		}
	}
	want := replog.File{Bytes: object.Size, SHA256: replog.Sum(object.OID)}
	return o.local.OpenFile(ctx, name, o.lfsKey(object.OID), want)
}

func errNoObject(o lfs.Object) error {
	return fault.New(fault.NotFound, "the repository has no LFS object %s", o.OID)
}

// MaxObject implements objects.Remote.
func (o lfsObjects) MaxObject() int64 { return o.store.cache.MaxUpload() }

// Begin implements objects.Remote. The upload is refused if the store cannot be reached.
func (o lfsObjects) Begin(ctx context.Context, object lfs.Object) (grow func(int64) error, end func(), err error) {
	if err := o.exists(ctx); err != nil {
		return nil, nil, err
	}
	u := o.store.cache.NewUpload(object.Size)
	return u.Grow, u.End, nil
}

// exists returns nil if the repository exists and something can be stored for it.
func (p *place) exists(ctx context.Context) error {
	if err := p.store.Ready(); err != nil {
		return err
	}
	state, err := p.current(ctx)
	if err == nil && !p.name.holds(p.path, state) {
		err = notFound(p.path)
	}
	return err
}

// Put implements objects.Remote. A client may not wait as long as the storage needs for a large object. Its next
// request joins the upload, or finds the object.
func (o lfsObjects) Put(ctx context.Context, object lfs.Object) error {
	return o.share(ctx, o.lfsKey(object.OID), func() error {
		err := o.put(object)
		if err == nil || fault.Is(err, fault.NotFound) {
			return err
		}
		return &fault.Error{Kind: fault.Unavailable, RetryAfter: fault.RetryLater, Err: o.failed(err),
			Msg: "the LFS object cannot be stored; try again later"}
	})
}

// share runs work once for all callers with the same key. It continues when ctx ends.
func (o lfsObjects) share(ctx context.Context, key string, work func() error) error {
	ended := o.store.lfsPuts.DoChan(key, func() (any, error) {
		result := make(chan error, 1)
		o.store.running.Go(func() { result <- work() })
		return nil, <-result
	})
	select {
	case r := <-ended:
		return r.Err
	case <-ctx.Done():
		return fault.Retry(fault.Unavailable, fault.RetryLater, "the LFS object is still being stored; try again")
	}
}

// put uploads the local copy of an object, unless the bucket has it, which may have changed since it was asked last.
// From then on the cache may remove the copy, also after a failure: the client has to upload it again then. A damaged
// copy is removed at once.
func (o lfsObjects) put(object lfs.Object) (err error) {
	s := o.store
	if err := s.refused(); err != nil {
		return err
	}
	name := lfsFile(object.OID)
	f, err := os.Open(filepath.Join(o.local.Dir(), name))
	if err != nil {
		return cmp.Or(o.exists(s.ctx), err) // NotFound if the repository was removed
	}
	defer f.Close()
	defer func() {
		o.local.AddFile(name, object.Size)
		if fault.Is(err, fault.Corrupt) {
			o.local.RemoveFile(name)
		}
	}()
	s.lfsSizes.Add(lfsKey{o.id, object.OID}, lfsSize{bytes: -1})
	size, err := o.size(s.ctx, object.OID)
	if err != nil || size == object.Size {
		return err
	}
	if err := s.bucket.Put(s.ctx, o.lfsKey(object.OID), f, object.Size, object.OID); err != nil {
		return err
	}
	o.keepSize(object.OID, object.Size)
	return nil
}

// lfsLocks has the file locks of a repository. It is a lfs.LockFiles.
type lfsLocks struct{ *place }

// Locks implements places.Place.
func (p *place) Locks() lfs.LockFiles { return lfsLocks{p} }

func (l lfsLocks) key(name string) string { return reposPrefix + l.id + "/" + lockPrefix + name }

// Create creates a lock. If the answer of the bucket is unclear, it reads the lock.
func (l lfsLocks) Create(ctx context.Context, name string, content []byte) error {
	if err := l.exists(ctx); err != nil {
		return err
	}
	err := l.store.bucket.Create(ctx, l.key(name), content)
	if err == nil || errors.Is(err, bucket.ErrExists) {
		return fault.Wrap(fault.Exists, "the file is locked", err)
	}
	if found, _, readErr := l.store.bucket.Get(ctx, l.key(name), maxLock); readErr == nil && bytes.Equal(found, content) {
		return nil
	}
	return err
}

// Read returns the content of a lock.
func (l lfsLocks) Read(ctx context.Context, name string) ([]byte, error) {
	content, _, err := l.store.bucket.Get(ctx, l.key(name), maxLock)
	if errors.Is(err, bucket.ErrNotFound) {
		return nil, fault.Wrap(fault.NotFound, "there is no such lock", err)
	}
	return content, err
}

// Remove removes a lock.
func (l lfsLocks) Remove(ctx context.Context, name string) error {
	return l.store.bucket.Delete(ctx, l.key(name))
}

// Names lists the locks.
func (l lfsLocks) Names(ctx context.Context) (names []string, err error) {
	prefix := l.key("")
	err = bucket.Each(ctx, l.store.bucket, prefix, func(info bucket.Info) error {
		names = append(names, strings.TrimPrefix(info.Key, prefix))
		return nil
	})
	return names, err
}
