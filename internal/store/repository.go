package store

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
	"github.com/packhorse-git/packhorse/internal/store/hydrate"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// repository is this node's view of one repository. It is safe for concurrent use.
//
//	known    the latest known state, without I/O
//	current  the state after a freshness check
//	adopt    takes note of a record that somebody has read or written
//	change   appends a record
//	local    the files on this node
type repository struct {
	store *Store
	id    string
	log   *replog.Log
	local *hydrate.Repository
	users int // guarded by knownTable.mu

	state   atomic.Pointer[state] // nil: not read yet
	checked atomic.Int64          // when the last successful check began, in nanoseconds since the start; 0: never
	saved   atomic.Int64          // the same on disk, in nanoseconds since 1970; 0: not written by this process
	// confirmed is when the bucket certainly had the record of state, as checked is; 0: never in this process.
	confirmed atomic.Int64
	broken    atomic.Pointer[error] // proof that the store broke a promise: no record is appended any more

	checks   sharedRun[*state]
	folding  atomic.Bool   // a checkpoint is being made
	adopting chan struct{} // has one element while a record is being adopted
	writing  chan struct{} // has one element while a record is being appended
	commits  commitQueue
}

// state is the state of a repository after one record. It is immutable.
type state struct {
	record *replog.Record
	layers *refs.Layers // nil if the repository is deleted
}

func newRepository(s *Store, id string) *repository {
	return &repository{store: s, id: id, log: replog.Open(s.bucket, id), local: s.cache.Repository(id),
		adopting: make(chan struct{}, 1), writing: make(chan struct{}, 1)}
}

// known returns the latest known state without I/O, or nil.
func (r *repository) known() *state { return r.state.Load() }

// has reports whether the repository exists and has a path.
func (s *state) has(path git.RepoPath) bool {
	return s != nil && !s.record.Deleted && slices.Contains(s.record.Names, path)
}

// adopt takes note of a record that was read or appended. It brings the refs to this node, but not the packs. It
// returns the latest known state, which may be a later one.
func (r *repository) adopt(ctx context.Context, record *replog.Record) (*state, error) {
	at := r.store.now()
	state, err := r.adoptLocal(ctx, record)
	if err == nil && state.record == record {
		r.confirmed.Store(int64(max(at, 1)))
	}
	return state, err
}

// adoptLocal is adopt for a record that the bucket may not have any more.
func (r *repository) adoptLocal(ctx context.Context, record *replog.Record) (*state, error) {
	select {
	case r.adopting <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-r.adopting }()
	known := r.known()
	if known != nil && known.record.Number >= record.Number {
		return known, nil
	}
	next := &state{record: record}
	if record.Deleted {
		r.publish(known, next)
		if err := r.local.Remove(); err != nil {
			r.store.log.Warn("cannot remove the copy of a deleted repository", "repository_id", r.id, "error", err)
		}
		return next, nil
	}
	if err := r.local.Apply(ctx, record); err != nil {
		return nil, err
	}
	base, err := r.base(known, record)
	if err != nil {
		return nil, err
	}
	next.layers = &refs.Layers{Number: record.Number, Head: record.Head, Base: base, Changes: fold(record.Refs.Tail),
		Former: former(known, record)}
	r.publish(known, next)
	return next, nil
}

// publish makes a state the latest known one.
func (r *repository) publish(before, next *state) {
	r.state.Store(next)
	for _, path := range next.record.Names {
		r.store.changed(path)
	}
	if before == nil {
		return
	}
	for _, path := range before.record.Names {
		if !next.has(path) {
			r.store.changed(path)
		}
	}
}

// base returns the checkpoint of a record, or nil if it has none. Records with the same checkpoint share it.
func (r *repository) base(known *state, record *replog.Record) (*refs.Base, error) {
	switch {
	case record.Refs.Checkpoint == "":
		return nil, nil
	case known != nil && known.layers != nil && known.record.Refs.Checkpoint == record.Refs.Checkpoint:
		return known.layers.Base, nil
	}
	return refs.OpenBase(r.local.Base(record), record.ObjectFormat)
}

// fold returns the refs that the entries of a tail change, sorted by name. A deleted ref has a zero ID.
func fold(tail []replog.TailEntry) []refs.Ref {
	last := make(map[git.RefName]refs.Ref)
	for i := range tail {
		for _, c := range tail[i].Changes {
			last[c.Name] = refs.Ref{Name: c.Name, ID: c.New, Peeled: c.Peeled, PeelKnown: true}
		}
	}
	changes := make([]refs.Ref, 0, len(last))
	for _, ref := range last {
		changes = append(changes, ref)
	}
	slices.SortFunc(changes, func(a, b refs.Ref) int { return strings.Compare(string(a.Name), string(b.Name)) })
	return changes
}

// maxFormer is the maximum number of former values of refs in a state.
const maxFormer = 1000

// former returns the former values of a known state, and those of the refs that have changed since. Their last moment
// is not known exactly if several records follow the known one: it is not later than the last record.
func former(known *state, record *replog.Record) (values []refs.Former) {
	after := record.Number - 1 // the times of earlier records are not known
	if known != nil {
		after = known.record.Number
	}
	if known != nil && known.layers != nil {
		values = slices.Clone(known.layers.Former)
	}
	for _, entry := range record.Refs.Tail {
		for i := 0; entry.Number > after && i < len(entry.Changes); i++ {
			if c := entry.Changes[i]; !c.Old.IsZero() {
				values = append(values, refs.Former{Name: c.Name, ID: c.Old, Until: record.At})
			}
		}
	}
	return values[max(0, len(values)-maxFormer):]
}

// use makes all packs of the latest known state available until done is called; see hydrate.Repository.Use.
func (r *repository) use(ctx context.Context, progress func(done, total int64)) (done func(), err error) {
	known := r.known()
	if known == nil {
		if known, err = r.current(ctx); err != nil {
			return nil, err
		}
	}
	used, done, err := r.useState(ctx, known, progress)
	if err == nil {
		node.StoreTraceOf(ctx).Holds(used.record.Number)
	}
	return done, err
}

// useState makes all packs of a state available until done is called. If the bucket does not have a pack any more, it
// returns a later state, which may not need it.
func (r *repository) useState(ctx context.Context, s *state, progress func(done, total int64)) (used *state,
	done func(), err error) {
	done, err = r.local.Use(ctx, s.record, progress)
	if !errors.Is(err, bucket.ErrNotFound) {
		return s, done, err
	}
	now, checkErr := r.current(ctx)
	if checkErr != nil || now.record.Number == s.record.Number {
		return nil, nil, err
	}
	done, err = r.local.Use(ctx, now.record, progress)
	return now, done, err
}

// breakPromise makes the repository read-only on this node, after proof that the store broke a promise.
func (r *repository) breakPromise(proof error) {
	err := error(&fault.Error{Kind: fault.Corrupt, Err: proof,
		Msg: "the repository is read-only: its log in the object storage is damaged; ask the administrator"})
	if !r.broken.CompareAndSwap(nil, &err) {
		return
	}
	r.store.metrics.broken.Inc()
	r.store.log.Error("the store broke a promise; the repository is read-only", "repository_id", r.id, "error", proof)
}

// now returns the time since the start of the Store, which no change of the clock affects.
func (s *Store) now() time.Duration { return time.Since(s.started) }

// notFound is the error for a path without a repository.
func notFound(path git.RepoPath) error {
	return fault.New(fault.NotFound, "no repository %s here", path)
}
