package objects

import (
	"context"
	"os"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/lfs"
)

// Remote is an object storage with the objects of one repository. Files in the repository's directory are copies, which
// the Remote may remove at any time. It is safe for concurrent use. Errors are Unavailable if the storage does not
// answer, and NotFound if the repository was removed.
type Remote interface {
	// Sizes returns the size of each object, or -1 if the storage does not have it.
	Sizes(ctx context.Context, o []lfs.Object) ([]int64, error)
	// IsStored reports, without asking the storage, whether there is a local copy of an object that the storage has, as
	// far as is known.
	IsStored(id lfs.OID) bool
	// Usage returns the total size of the objects in bytes.
	Usage() (int64, error)
	// Walk calls do for each object with the time at which it was stored, in ascending order, until it returns an error.
	Walk(ctx context.Context, do func(o lfs.Object, stored time.Time) error) error
	// Collect removes objects that no pointer file names. They come back when a client asks for them. Later calls, at
	// least an hour later, free their space.
	Collect(ctx context.Context, c Collection) error
	// Purge removes an object with its old versions, and returns their names. problem is why some are left. Local copies
	// remain.
	Purge(ctx context.Context, id lfs.OID) (removed []string, problem string, err error)
	// Open returns the file of a local copy, which it makes if necessary. isHit reports whether there was one. The error
	// is also NotFound if the storage does not have the object, and Invalid if it has another size.
	Open(ctx context.Context, o lfs.Object) (f *os.File, isHit bool, err error)
	// MaxObject is the maximum size of an object that can be uploaded, in bytes.
	MaxObject() int64
	// Begin makes sure that an object can be stored. grow makes room for the first bytes of a copy of it, before they are
	// read. end gives the room back.
	Begin(ctx context.Context, o lfs.Object) (grow func(bytes int64) error, end func(), err error)
	// Put stores the local copy of an object durably. It continues when ctx ends, and other calls join it.
	Put(ctx context.Context, o lfs.Object) error
}

// Collection is a collection of the garbage of a repository.
type Collection struct {
	Before time.Time // objects that were stored later are kept
	DryRun bool      // nothing is removed
	// Named returns the objects that pointer files name, also those of the latest push that was known before the call. It
	// is called only if there are old objects.
	Named func() (map[lfs.OID]bool, error)
	// Removed is called for each object that is removed, and Freed for each removed before whose space is freed. Calls do
	// not overlap.
	Removed, Freed func(lfs.Object)
}

// CollectRemote calls Remote.Collect for a repository that has a Remote.
func (s *Store) CollectRemote(ctx context.Context, r Repository, c Collection) error {
	removed := c.Removed
	c.Removed = func(o lfs.Object) {
		if !c.DryRun {
			s.usage.add(r, -o.Size)
		}
		removed(o)
	}
	return r.Remote.Collect(ctx, c)
}

// putWait is how long a batch waits for the storage of objects whose upload was interrupted when all bytes were here.
const putWait = 20 * time.Second

// checkRemote is Check for a repository with a Remote. Before an upload it stores objects that are complete here.
// Before a download, if the storage does not answer, it reports the copies of stored objects that are here.
func (s *Store) checkRemote(ctx context.Context, r Repository, b lfs.Batch) ([]lfs.Status, error) {
	sizes, err := r.Remote.Sizes(ctx, b.Objects)
	if err != nil && (b.Upload || !fault.Is(err, fault.Unavailable)) {
		return nil, err
	}
	states := make([]lfs.Status, len(b.Objects))
	room := s.newRoom(r)
	here, openErr := openTree(r.objects())
	if openErr != nil {
		return nil, openErr
	}
	defer here.Close()
	here.dirs = new([256]bool)
	put, cancel := context.WithTimeout(ctx, putWait)
	defer cancel()
	for i, o := range b.Objects {
		size := int64(-1)
		if err == nil {
			size = sizes[i]
		}
		local, found, statErr := int64(0), false, error(nil)
		if size < 0 && (b.Upload || err != nil) {
			local, found, statErr = here.stat(o.OID)
		}
		switch {
		case statErr != nil:
			return nil, statErr
		case found && err != nil:
			if r.Remote.IsStored(o.OID) {
				size = local
			}
		case found && local == o.Size:
			if err := r.Remote.Put(put, o); err != nil {
				states[i] = lfs.Status{State: lfs.Refused, Err: err}
				continue
			}
			size = local
		}
		switch {
		case size == o.Size:
			states[i].State = lfs.Present
		case size >= 0 && !b.Upload:
			states[i] = lfs.Status{State: lfs.Refused, Err: fault.New(fault.Invalid, "object %s has %d bytes, not %d", o.OID,
				size, o.Size)}
		case err != nil:
			states[i] = lfs.Status{State: lfs.Refused, Err: err}
		case b.Upload:
			if err := room.reserve(ctx, o, 0); err != nil {
				states[i] = lfs.Status{State: lfs.Refused, Err: err}
			}
		}
	}
	return states, nil
}
