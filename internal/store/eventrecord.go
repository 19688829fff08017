package store

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/event"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// isOfRepository reports whether an error is a problem of one repository, and the bucket works.
func isOfRepository(err error) bool {
	return fault.Is(err, fault.Corrupt) || errors.Is(err, replog.ErrNewer) || errors.Is(err, bucket.ErrNotFound)
}

// missing returns the events of a repository in records after a number, as many as a batch should have.
func (e *events) missing(ctx context.Context, id string, after uint64) (list []event.Event, size int, err error) {
	log := replog.Open(e.store.bucket, id)
	var isGone, isCreated bool
	for number := after + 1; size <= maxEventBatch; number++ {
		record, err := log.Get(ctx, number)
		if fault.Is(err, fault.NotFound) {
			break
		}
		if err != nil {
			return nil, 0, err
		}
		isGone = after == 0 && record.Deleted && record.Events == nil // it never had its path
		found, n, err := e.ofRecord(ctx, record)
		if err != nil {
			return nil, 0, err
		}
		isCreated = isCreated || number > 1 && len(found) > 0
		for _, f := range found {
			f.Incarnation, f.Record = id, number
			if n := len(list); n > 0 && f.Time.Before(list[n-1].Time) {
				f.Time = list[n-1].Time // the clocks of nodes differ; a repository keeps its order
			}
			list = append(list, f)
		}
		size += n
	}
	if after == 0 && !isGone && !isCreated && len(list) > 0 { // is the first record more than an attempt?
		isCreated, err = e.hasName(ctx, id, list[0])
		isGone = !isCreated
	}
	if isGone {
		return nil, 0, err
	}
	return list, size, err
}

// hasName reports whether the name of a new repository refers to it.
func (e *events) hasName(ctx context.Context, id string, created event.Event) (bool, error) {
	p, err := created.Push()
	if err != nil {
		return false, err
	}
	names, err := replog.OpenName(e.store.bucket, canonical(p.Repo))
	if err != nil {
		return false, err
	}
	name, err := names.Head(ctx)
	if fault.Is(err, fault.NotFound) {
		return false, nil
	}
	return err == nil && name.ID == id, err
}

// ofRecord returns the events of a record, and their size.
func (e *events) ofRecord(ctx context.Context, record *replog.Record) ([]event.Event, int, error) {
	if record.Events == nil || record.Events.Key == "" {
		list := slices.Clone(record.EventList())
		return list, len(list) * 200, nil
	}
	body, _, err := e.store.bucket.Get(ctx, record.Events.Key, e.log.maxLarge)
	if err != nil {
		return nil, 0, err
	}
	var list []event.Event
	err = json.Unmarshal(body, &list)
	return list, len(body), fault.Wrap(fault.Corrupt, "the events of a record are damaged: "+record.Events.Key, err)
}

// keepEvents sets the events of a record. If they are large, they get an object. If that would be too large, the error
// is replog.ErrTooLarge.
func (s *Store) keepEvents(ctx context.Context, record *replog.Record, list []event.Event) error {
	record.Events = &replog.Events{Number: record.Number, List: list}
	refs := 0
	for i := range list {
		refs += 1 + len(list[i].Refs) + len(list[i].Options)
	}
	if refs < maxEventBytes/1024 {
		return nil // also with long names
	}
	body, err := json.Marshal(list)
	if err != nil || len(body) < maxEventBytes {
		return err
	}
	if int64(len(body)) > s.events.log.maxLarge {
		return fault.Wrap(fault.Invalid, "the push changes too many refs at once: push fewer of them", replog.ErrTooLarge)
	}
	record.Events = &replog.Events{Number: record.Number, Key: largePrefix + record.Txn}
	return s.bucket.Create(ctx, record.Events.Key, body)
}

// happened sets the event of a record that is not a push.
func (r *repository) happened(ctx context.Context, record *replog.Record, e event.Event) *replog.Record {
	e.ID, e.Time, e.Actor = record.Txn, record.At, git.Text(node.ActorOf(ctx))
	record.Events = &replog.Events{Number: record.Number, List: []event.Event{e}}
	return record
}
