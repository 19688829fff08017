package node

import (
	"context"
	"sync"
	"time"
)

// StoreTrace collects what one request needs of the object store that has its repository. It is safe for concurrent
// use, and a nil StoreTrace collects nothing.
type StoreTrace struct {
	mu      sync.Mutex
	stored  Stored
	stale   time.Duration
	onStale func(age time.Duration)
}

type storeTraceKey struct{}

// WithStoreTrace returns a context that carries a StoreTrace. If the request gets refs from local data because the
// store cannot be reached, onStale is called with their age, before the request uses them. It may be nil.
func WithStoreTrace(ctx context.Context, onStale func(age time.Duration)) (context.Context, *StoreTrace) {
	t := &StoreTrace{onStale: onStale}
	return context.WithValue(ctx, storeTraceKey{}, t), t
}

// StoreTraceOf returns the StoreTrace of a request, or nil.
func StoreTraceOf(ctx context.Context) *StoreTrace {
	t, _ := ctx.Value(storeTraceKey{}).(*StoreTrace)
	return t
}

// Checked notes a freshness check: what it found and how long it took. An age above zero means that the check failed,
// and that a record of that age is used instead.
func (t *StoreTrace) Checked(found Stored, age time.Duration) {
	if t == nil {
		return
	}
	t.mu.Lock()
	t.noteLocked(found)
	t.stale = max(t.stale, age)
	t.mu.Unlock()
	if age > 0 && t.onStale != nil {
		t.onStale(age)
	}
}

// Holds notes that all packs of a record are on the disk.
func (t *StoreTrace) Holds(record uint64) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.noteLocked(Stored{Record: record, Held: true})
}

func (t *StoreTrace) noteLocked(s Stored) {
	t.stored.Check += s.Check
	if s.Record >= t.stored.Record {
		t.stored.Record, t.stored.Held = s.Record, s.Held
	}
}

// Fill adds what was collected to the outcome of the request.
func (t *StoreTrace) Fill(o *Outcome) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if o.Stored.Record == 0 { // otherwise the record of a push
		o.Stored.Record = t.stored.Record
	}
	o.Stored.Check += t.stored.Check
	o.Stored.Held = o.Stored.Held || t.stored.Held
	if o.Mirror == "" {
		o.Stale = t.stale
	}
}
