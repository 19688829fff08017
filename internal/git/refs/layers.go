package refs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/disk"
)

// Source decides what the refs of a repository are, instead of its files. It is safe for concurrent use.
type Source interface {
	// Layers returns the refs with all changes before the call, by any node. It returns the same *Layers while nothing
	// changes. Errors: NotFound if the repository does not exist any more under its name, and Unavailable.
	Layers(ctx context.Context) (*Layers, error)
	// Known returns the latest known refs without I/O. Other nodes may have changed them. Nil: none, because Layers was
	// not called or has found that the repository does not exist any more.
	Known() *Layers
}

// ErrGone is in the chain of the error of a Snapshot whose Source does not have the repository any more. Another one
// may have its name.
var ErrGone = errors.New("the repository is gone")

// Layers are the refs of a repository at one moment: a base, and the changes since then. They are immutable.
type Layers struct {
	Number uint64      // increases with every change of the repository; at least 1
	Head   git.RefName // the target of HEAD
	Base   *Base       // nil: no refs
	// Changes are the refs that differ from the base, sorted by name. A ref with a zero ID does not exist. PeelKnown
	// should be set, and Target is empty.
	Changes []Ref
	Former  []Former // values that refs have lost; not all
}

// Former is a value that a ref had until a moment.
type Former struct {
	Name  git.RefName
	ID    git.ObjectID
	Until time.Time
}

// Base is a packed-refs file that never changes, mapped. Many Layers may share it. It is safe for concurrent use.
type Base struct{ packed *packed }

// OpenBase opens the packed-refs file at path, which may be replaced or removed afterwards. The error is Corrupt if the
// file is damaged.
func OpenBase(path string, format git.ObjectFormat) (*Base, error) {
	p := &packed{path: path, format: format}
	f, err := disk.Open(path)
	if err != nil {
		return nil, ioError("opening", path, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && info.Size() <= smallPacked {
		p.mem, err = io.ReadAll(io.LimitReader(f, smallPacked+1))
	} else if err == nil {
		p.file, err = disk.Map(f)
	}
	if err != nil {
		return nil, ioError("reading", path, err)
	}
	if err := p.prepare(); err != nil {
		return nil, err
	}
	return &Base{p}, nil
}

// fromSource returns the Snapshot of the source's refs.
func (s *Store) fromSource(ctx context.Context) (*Snapshot, error) {
	layers, err := s.source.Layers(ctx)
	if fault.Is(err, fault.NotFound) {
		err = fault.Wrap(fault.NotFound, fault.Message(err), fmt.Errorf("%w: %w", ErrGone, err))
	}
	if err != nil {
		return nil, err
	}
	return s.ofLayers(layers)
}

// ofLayers returns the Snapshot of layers, or a later one if the Store already has one.
func (s *Store) ofLayers(l *Layers) (*Snapshot, error) {
	if known := s.latest.Load(); known != nil && known.generation >= l.Number {
		s.metrics.reused.Inc()
		return known, nil
	}
	snap, err := s.newSnapshot(l)
	if err != nil {
		return nil, err
	}
	for {
		known := s.latest.Load()
		if known != nil && known.generation >= l.Number {
			return known, nil
		}
		if s.latest.CompareAndSwap(known, snap) {
			s.metrics.loaded.Inc()
			return snap, nil
		}
	}
}

// newSnapshot creates the Snapshot of layers. A change hides the ref of the base as a loose ref hides a packed one.
func (s *Store) newSnapshot(l *Layers) (*Snapshot, error) {
	byName := func(a, b Ref) int { return strings.Compare(string(a.Name), string(b.Name)) }
	if !slices.IsSortedFunc(l.Changes, byName) {
		return nil, fault.Wrap(fault.Internal, "the repository's refs cannot be read",
			fmt.Errorf("changes of state %d are not sorted", l.Number))
	}
	snap := &Snapshot{generation: l.Number, hidden: s.hidden, loose: make([]*refEntry, len(l.Changes)),
		hasSource: true, former: l.Former}
	if l.Base != nil {
		snap.packed = l.Base.packed
	}
	entries := make([]refEntry, len(l.Changes))
	for i := range l.Changes {
		ref := &l.Changes[i]
		entries[i].name = ref.Name
		entries[i].kind = deleted
		if !ref.ID.IsZero() {
			entries[i].content, entries[i].to = content{id: ref.ID, kind: direct}, ref
		}
		snap.loose[i] = &entries[i]
	}
	head := &refEntry{name: git.HEAD, content: content{link: l.Head, kind: symbolic}}
	return snap, snap.resolveAll(head, s.metrics)
}

// SnapshotOf is Snapshot for a caller that needs the refs only to check that it may have these objects. If all of them
// are values of visible refs in the latest known state, that state is returned. This makes a difference only with a
// Source, for which it needs no I/O then.
func (s *Store) SnapshotOf(ctx context.Context, wants []git.ObjectID) (*Snapshot, error) {
	if s.source == nil {
		return s.Snapshot(ctx)
	}
	if known := s.source.Known(); known != nil {
		snap, err := s.ofLayers(known)
		if err != nil {
			return nil, err
		}
		if all, err := snap.HasTips(wants); err != nil || all {
			return snap, err
		}
	}
	return s.Snapshot(ctx)
}
