package store

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/lfs/objects"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

const (
	// asideMark is between the ID of an object that was set aside, and an ID of its copy.
	asideMark = ".unnamed-"
	// minAside is the minimum time for which an object stays set aside.
	minAside = time.Hour
	// asideTime is the maximum time from the start of an object's copy until the object is deleted.
	asideTime = 10 * time.Minute
)

// Collect implements objects.Remote. It removes an object in two steps, since nodes do not know each other, and a push
// to any of them may name the object at any time:
//
//  1. It sets an old object that no pointer file names aside: it copies it to OID.unnamed-ID, and then deletes OID.
//  2. A later collection brings the object back if a pointer file names it by now, and deletes the copy. The copy is as
//     old as the grace and an hour then.
//
// A node that misses OID copies OID.unnamed-ID to OID before it answers that the object exists (see size). This answer
// stays true for the grace, or at least an hour, less 35 minutes. Each deletion of OID after the answer has its own
// copy, which was begun at most 10 minutes before (asideTime). No collection deletes this copy before it is old enough.
// The answer can be 10 minutes old, because nodes remember it (lfsSizeTime), and clocks may differ by 15 minutes. A
// push that relies on the answer is committed within that time. Then a collection that may delete the copy finds the
// name: it reads the head of the log after the copy became old enough.
//
// So a second collection at the same time, and one that is late with a deletion, lose nothing either: each leaves the
// copy that it made for this deletion.
func (o lfsObjects) Collect(ctx context.Context, c objects.Collection) error {
	beforeAside := time.Now().Add(-minAside)
	if c.Before.Before(beforeAside) {
		beforeAside = c.Before
	}
	var old []storedObject
	err := eachLFS(ctx, o.store.bucket, o.id, func(s storedObject) error {
		if s.isAside && s.Modified.Before(beforeAside) || !s.isAside && s.Modified.Before(c.Before) {
			old = append(old, s)
		}
		return nil
	})
	if err != nil || len(old) == 0 {
		return o.failed(err)
	}
	if err := o.readHead(ctx); err != nil {
		return err
	}
	named, err := c.Named()
	if err != nil {
		return err
	}
	var reporting sync.Mutex
	report := func(isDone bool, do func(lfs.Object), s storedObject) {
		if isDone {
			reporting.Lock()
			defer reporting.Unlock()
			do(lfs.Object{OID: s.oid, Size: s.Size})
		}
	}
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(lfsParallel)
	for _, s := range old {
		switch {
		case inner.Err() != nil:
		case s.isAside && !c.DryRun:
			group.Go(func() error {
				isFreed, err := o.endAside(inner, s, named[s.oid])
				report(isFreed, c.Freed, s)
				return err
			})
		case !s.isAside && !named[s.oid]:
			group.Go(func() (err error) {
				isRemoved := c.DryRun
				if !c.DryRun {
					isRemoved, err = o.setAside(inner, s)
				}
				report(isRemoved, c.Removed, s)
				return err
			})
		}
	}
	return o.failed(errors.Join(group.Wait(), ctx.Err()))
}

// readHead reads the head of the log. Unlike current, it does not accept an earlier state.
func (o lfsObjects) readHead(ctx context.Context) error {
	if err := o.store.Ready(); err != nil {
		return err
	}
	state, err := o.check().wait(ctx)
	if err == nil {
		err = o.mayAppend() // the check may have found that the store broke a promise
	}
	if err == nil && !o.name.holds(o.path, state) {
		err = notFound(o.path)
	}
	return err
}

// setAside is the first step of Collect. It reports whether the object was set aside. It deletes nothing unless the
// storage has made a complete and new copy in time.
func (o lfsObjects) setAside(ctx context.Context, s storedObject) (bool, error) {
	b, begin := o.store.bucket, time.Now().Round(0) // the clock of a machine that sleeps does not stop
	ctx, cancel := context.WithTimeout(ctx, asideTime)
	defer cancel()
	aside := s.Key + asideMark + replog.NewID()
	err := b.Copy(ctx, s.Key, aside, s.Size)
	if errors.Is(err, bucket.ErrNotFound) { // another collection has set it aside
		return false, nil
	}
	if err != nil {
		return false, err
	}
	found, err := b.List(ctx, aside, "", 1)
	switch {
	case err != nil:
		return false, err
	case len(found) == 0 || found[0].Size != s.Size || begin.Sub(found[0].Modified) > minAside/2:
		return false, fault.New(fault.Unavailable, "the object storage made no complete and new copy of %s", s.Key)
	case time.Now().Round(0).Sub(begin) > asideTime:
		return false, fault.New(fault.Unavailable, "the object storage copied %s too slowly", s.Key)
	}
	if err := b.Delete(ctx, s.Key); err != nil {
		return false, err
	}
	o.store.lfsSizes.Remove(lfsKey{o.id, s.oid})
	return true, nil
}

// endAside is the second step of Collect. It reports whether the space of the object was freed.
func (o lfsObjects) endAside(ctx context.Context, s storedObject, isNamed bool) (bool, error) {
	if isNamed {
		if size, err := o.size(ctx, s.oid); err != nil || size != s.Size {
			return false, err
		}
	}
	if err := o.store.bucket.Delete(ctx, s.Key); err != nil || isNamed {
		return false, err
	}
	o.local.RemoveFile(lfsFile(s.oid))
	return true, nil
}
