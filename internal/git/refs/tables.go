package refs

import (
	"bytes"
	"context"
	"errors"
	"hash/maphash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/disk"
)

// Lister lists the refs of a repository with reftables, which this package does not read. It calls add for HEAD and for
// each ref, with the peeled object of an annotated tag and the target of a symbolic ref. Broken refs are left out. An
// unborn HEAD has a Target but no ID. It is not called concurrently, and lists the refs at the time of its call or
// later.
type Lister func(ctx context.Context, add func(Ref)) error

const (
	// maxTablesList is the maximum size of a tables.list in bytes: git keeps a few dozen tables.
	maxTablesList = 1 << 20
	// maxWaiting is the maximum number of callers that wait while refs are listed.
	maxWaiting = 64
	// failureAge is the time after which a failed listing is repeated although the tables have not changed.
	failureAge = 2 * time.Second
)

// tablesList is the content of a reftable/tables.list. Tables never change, and their names contain a random number. So
// the refs have not changed if the list is the same.
type tablesList struct {
	path    string // ends in NUL
	id      identity
	settled bool
	sum     uint64
}

// same reports whether the list is unchanged.
func (t *tablesList) same(s *Store, now int64) (bool, error) {
	id, err := s.stat(t.path, true)
	if err != nil || t.settled && id == t.id {
		return err == nil, err
	}
	was := *t
	t.id, t.settled, t.sum = id, id.settled(now), 0
	if id.kind == missing {
		return was.id == id, nil
	}
	f, err := disk.Open(t.path[:len(t.path)-1])
	if err == nil {
		var text []byte
		text, err = io.ReadAll(io.LimitReader(f, maxTablesList+1))
		f.Close()
		if len(text) > maxTablesList {
			err = fault.New(fault.Corrupt, "the repository's reftable/tables.list is longer than %d bytes",
				maxTablesList)
		}
		t.sum = maphash.Bytes(s.seed, text)
	}
	if err != nil {
		*t = tablesList{path: t.path} // its content is unknown
		if _, ok := errors.AsType[*fault.Error](err); ok {
			return false, err
		}
		return false, ioError("reading", t.path, err)
	}
	return was.id.kind != missing && was.sum == t.sum, nil
}

// scanTables is look for reftables. It lists the refs again if a list of tables has changed, or if the last listing
// failed longer than failureAge ago. It reads the lists of tables before the refs, so that a Snapshot is never older
// than its lists.
func (s *Store) scanTables(ctx context.Context) (*Snapshot, error) {
	now := s.clock().UnixNano()
	same := true
	for i := range s.tables {
		unchanged, err := s.tables[i].same(s, now)
		if err != nil {
			s.dirty = true
			return nil, err
		}
		same = same && unchanged
	}
	if same && s.current != nil && !s.dirty {
		return s.current, nil
	}
	if age := now - s.failedAt; same && s.failure != nil && age >= 0 && age < int64(failureAge) {
		return nil, s.failure
	}
	s.dirty, s.failure = true, nil
	if s.tables[0].id.kind == missing {
		if root, err := s.stat(s.root.path, true); err != nil || root.kind == missing {
			return nil, fault.Wrap(fault.NotFound, "the repository is gone", err)
		}
		return nil, fault.Retry(fault.Unavailable, fault.RetrySoon,
			"the repository should have its refs in reftables, but has none")
	}
	for i := range s.tables {
		if err := s.containedTables(s.tables[i].path); err != nil {
			return nil, err
		}
	}
	snap, err := s.listTables(ctx)
	if err != nil {
		s.failure, s.failedAt = tryLater(err), s.clock().UnixNano()
		return nil, s.failure
	}
	s.current, s.dirty = snap, false
	return snap, nil
}

// tryLater returns the error of a listing with a retry hint for the time of the next one.
func tryLater(err error) error {
	e, ok := errors.AsType[*fault.Error](err)
	if !ok {
		return err
	}
	later := *e
	later.RetryAfter = max(e.RetryAfter, failureAge)
	return &later
}

// containedTables returns an error if a list of tables, or a table beside it, is a link to outside the allowed
// directories. It is called when the list has changed, because only then git reads them.
func (s *Store) containedTables(path string) error {
	if s.inside == nil {
		return nil
	}
	if err := s.contained(path); err != nil {
		return err
	}
	dir := filepath.Dir(path[:len(path)-1])
	entries, err := os.ReadDir(dir)
	if err != nil && !gone(err) {
		return ioError("listing", dir+"\x00", err)
	}
	for _, e := range entries {
		if e.Type()&fs.ModeSymlink == 0 {
			continue
		}
		if err := s.contained(filepath.Join(dir, e.Name()) + "\x00"); err != nil {
			return err
		}
	}
	return nil
}

// listTables makes a Snapshot from the Lister, as if all refs except symbolic ones were packed. The first caller's
// request accounts for the cost. It does not end with that request, because others may wait for it.
func (s *Store) listTables(ctx context.Context) (*Snapshot, error) {
	snap := &Snapshot{generation: 1, hidden: s.hidden}
	if s.current != nil {
		snap.generation = s.current.generation + 1
	}
	p := &packed{path: "reftable", format: s.format, peel: peelAll}
	s.setListing(true)
	defer s.setListing(false)
	err := s.list(context.WithoutCancel(ctx), func(ref Ref) {
		switch {
		case ref.Name == git.HEAD:
			snap.head, snap.headRef = Head{Target: ref.Target, ID: ref.ID}, ref
		case ref.Target != "":
			e := &refEntry{name: git.RefName(strings.Clone(string(ref.Name))), content: content{kind: symbolic,
				link: ref.Target}}
			ref.Name, e.to = e.name, &ref
			snap.loose = append(snap.loose, e)
		default:
			p.mem = AppendPacked(p.mem, &ref)
		}
	})
	if err != nil {
		return nil, err
	}
	sortEntries(snap.loose)
	p.mem = bytes.Clone(slices.Clip(p.mem)) // without spare capacity
	if err := p.sort(); err != nil {
		return nil, err
	}
	snap.packed = p
	return snap, nil
}

func (s *Store) setListing(now bool) {
	s.mu.Lock()
	s.listing = now
	s.mu.Unlock()
}
