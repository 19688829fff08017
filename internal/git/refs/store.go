package refs

import (
	"context"
	"errors"
	"hash/maphash"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
)

// Options are a Store's settings. The zero value is a SHA-1 repository with the system's clock.
type Options struct {
	Format  git.ObjectFormat // zero: SHA-1
	Now     func() time.Time // clock of the file system's timestamps; nil: time.Now
	Metrics *Metrics         // may be shared by stores; nil: not counted

	// Hidden reports whether a ref, perhaps HEAD, is hidden from all Snapshots. It must return the same for a name each
	// time, from any goroutine. Nil: no ref is hidden.
	Hidden func(git.RefName) bool

	// Inside reports whether a path without symbolic links may contain refs. Links to other paths are refused. Nil: any
	// path may.
	Inside func(path string) bool

	// List makes this the Store of a repository that keeps its refs in reftables, and lists them. Nil: they are in
	// files.
	List Lister

	// Source decides what the refs are; the files are not read then. Nil: the files do, or List.
	Source Source

	// For tests: the identities of a coarser file system, and a call between the scan of the loose refs and of
	// packed-refs.
	coarsen func(identity) identity
	between func()
}

// Store reads one repository's refs. It is safe for concurrent use. It keeps no file open, but maps packed-refs.
type Store struct {
	format     git.ObjectFormat
	clock      func() time.Time
	metrics    *Metrics
	hidden     func(git.RefName) bool
	coarsen    func(identity) identity
	between    func()
	packedPath string // these paths end in NUL for the system call
	inside     func(string) bool
	list       Lister // nil: the refs are in files
	source     Source // nil: none
	seed       maphash.Seed

	latest atomic.Pointer[Snapshot] // of the source

	// turn holds one token while a goroutine scans the files. It guards the following fields. While it is held, no
	// other lock is taken except mu.
	turn chan struct{}
	head *node
	root *node // refs/ in the common directory
	// own is refs/ in the Git directory of a linked worktree, of which only ownRefs count; nil: not a linked worktree.
	own         *node
	checkFormat bool         // refs/ or HEAD changed: the repository may use reftables now
	tables      []tablesList // the common directory's and, of a linked worktree, its own
	packed      *packed
	packedID    identity
	settled     bool // packed cannot change without a change of packedID
	dirty       bool // something changed since current was built
	current     *Snapshot
	failure     error // of the last listing; nil: it did not fail
	failedAt    int64 // when, in nanoseconds since 1970

	mu      sync.Mutex
	next    *round // waits for the next scan; nil: no caller waits
	waiting int    // number of callers that wait for a round
	listing bool   // the Lister is running

	memo memo
}

// round is a scan that has not begun yet. Its callers share the result.
type round struct {
	done chan struct{} // closed when snap and err are valid
	snap *Snapshot
	err  error
}

// Open creates a Store for a repository. HEAD is in gitDir, refs/ and packed-refs are in commonDir, which is the same
// directory except for linked worktrees. Open does not read files.
func Open(gitDir, commonDir string, o Options) *Store {
	s := &Store{
		format: o.Format, clock: o.Now, metrics: o.Metrics, hidden: o.Hidden, inside: o.Inside, coarsen: o.coarsen,
		between:     o.between,
		packedPath:  filepath.Join(commonDir, "packed-refs") + "\x00",
		list:        o.List,
		source:      o.Source,
		tables:      []tablesList{{path: filepath.Join(commonDir, tablesListPath) + "\x00"}},
		head:        &node{path: filepath.Join(gitDir, "HEAD") + "\x00"},
		root:        &node{path: filepath.Join(commonDir, "refs") + "\x00"},
		turn:        make(chan struct{}, 1),
		seed:        maphash.MakeSeed(),
		checkFormat: true,
	}
	if filepath.Clean(gitDir) != filepath.Clean(commonDir) {
		s.own = &node{path: filepath.Join(gitDir, "refs") + "\x00"}
		s.tables = append(s.tables, tablesList{path: filepath.Join(gitDir, tablesListPath) + "\x00"})
	}
	if s.format == 0 {
		s.format = git.SHA1
	}
	if s.clock == nil {
		s.clock = time.Now
	}
	if s.metrics == nil {
		s.metrics = NewMetrics(nil)
	}
	return s
}

// Snapshot returns the refs on disk: it includes all changes before the call. It returns the same *Snapshot while
// nothing changes. Calls during a scan share the next scan, because the present one may have passed a change.
//
// Errors: NotFound if the repository is gone, and Corrupt for a damaged packed-refs. Unavailable means that the refs
// change faster than they can be read, or are being migrated to reftables. For reftables there are those of the Lister,
// and Exhausted if too many callers wait for it. A Source has its own. A waiting caller returns when ctx ends. A caller
// that scans, also for others, finishes the scan.
func (s *Store) Snapshot(ctx context.Context) (*Snapshot, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if s.source != nil {
		return s.fromSource(ctx)
	}
	select {
	case s.turn <- struct{}{}:
		return s.lead(ctx)
	default:
	}
	r, err := s.join()
	if err != nil {
		return nil, err
	}
	turn, err := s.wait(ctx, r)
	if err != nil {
		return nil, err
	}
	if turn {
		return s.lead(ctx) // r is s.next: lead finishes it
	}
	if r.err == nil {
		s.metrics.reused.Inc()
	}
	return r.snap, r.err
}

// join joins the round of the next scan. While refs are being listed, at most maxWaiting callers may wait, so that one
// repository on which git hangs does not fill the small lane of the server.
func (s *Store) join() (*round, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listing && s.waiting >= maxWaiting {
		return nil, fault.Retry(fault.Exhausted, fault.RetryLater,
			"too many requests are waiting for a list of this repository's refs; try again")
	}
	s.waiting++
	if s.next == nil {
		s.next = &round{done: make(chan struct{})}
	}
	return s.next, nil
}

// wait waits for the end of a round, the turn to scan, or the end of ctx.
func (s *Store) wait(ctx context.Context, r *round) (turn bool, err error) {
	defer func() {
		s.mu.Lock()
		s.waiting--
		s.mu.Unlock()
	}()
	select {
	case <-r.done:
		return false, nil
	case <-ctx.Done():
		return false, ctx.Err() // another caller takes the turn
	case s.turn <- struct{}{}:
	}
	select {
	case <-r.done:
		<-s.turn
		return false, nil
	default:
		return true, nil
	}
}

// lead scans the files for the caller, which has the turn, and for all callers that have joined. It gives the turn
// back.
func (s *Store) lead(ctx context.Context) (snap *Snapshot, err error) {
	s.mu.Lock()
	r := s.next
	s.next = nil
	s.mu.Unlock()
	returned := false
	defer func() {
		if !returned {
			err = fault.New(fault.Internal, "scanning the refs ended in a panic")
		}
		if r != nil {
			r.snap, r.err = snap, err
			close(r.done)
		}
		<-s.turn
	}()
	before := s.current
	if s.list != nil {
		snap, err = s.scanTables(ctx)
	} else {
		snap, err = s.look()
	}
	returned = true
	if err == nil && snap == before {
		s.metrics.reused.Inc()
	} else if err == nil {
		s.metrics.loaded.Inc()
	}
	return snap, err
}

// maxScans is the maximum number of scans if packed-refs is replaced during them.
const maxScans = 10

// contained returns an error if refs/, packed-refs or a table is a link to outside the allowed directories. The path
// ends in NUL.
func (s *Store) contained(path string) error {
	if s.inside == nil {
		return nil
	}
	path = path[:len(path)-1]
	real, err := filepath.EvalSymlinks(path)
	if gone(err) {
		return nil
	}
	if err != nil {
		return ioError("following", path, err)
	}
	if !s.inside(real) {
		return fault.Wrap(fault.Denied, "the repository's refs are a link to outside the served root", errors.New(path))
	}
	return nil
}

// look scans the files, and builds a new Snapshot if something changed.
func (s *Store) look() (*Snapshot, error) {
	doubted := false
	for i := range maxScans {
		l := scan{s, s.clock().UnixNano()}
		if err := l.looseRefs(); err != nil {
			return nil, err
		}
		if err := s.refuseReftable(); err != nil {
			return nil, err
		}
		if s.between != nil {
			s.between()
		}
		again, err := l.packedRefs()
		if again {
			continue
		}
		if err != nil {
			return nil, err
		}
		if !s.dirty && s.current != nil {
			return s.current, nil
		}
		if here, err := s.stillHere(); err != nil {
			return nil, err
		} else if !here {
			continue
		}
		snap, err := s.build()
		if err != nil {
			if id, _ := s.stat(s.packedPath, true); id != s.packedID {
				continue
			}
			return nil, err
		}
		// HEAD was read first. If it points to nothing, it may have been moved away from a branch that was then
		// deleted.
		if !doubted && i+1 < maxScans && snap.head.Target != "" && snap.head.ID.IsZero() {
			doubted = true
			continue
		}
		s.current, s.dirty = snap, false
		return snap, nil
	}
	return nil, fault.Retry(fault.Unavailable, fault.RetrySoon,
		"the repository's refs change faster than they can be read")
}

// stillHere reports whether refs/ is still the directory that the scan began with. If the repository was moved
// meanwhile, perhaps to delete it, missing refs need not be gone.
func (s *Store) stillHere() (bool, error) {
	id, err := s.stat(s.root.path, true)
	return id.kind == directory && id.Dev == s.root.id.Dev && id.Ino == s.root.id.Ino, err
}

// packedRefs scans packed-refs. It returns again if packed-refs was replaced during that, so that the scan of the loose
// refs is too old.
func (l scan) packedRefs() (again bool, err error) {
	s := l.Store
	id, err := s.stat(s.packedPath, true)
	if err != nil {
		return false, err
	}
	if id == s.packedID && (s.settled || s.unchanged()) {
		s.settled = id.settled(l.now)
		return false, nil
	}
	if err := s.contained(s.packedPath); err != nil {
		return false, err
	}
	p, id, err := s.openPacked()
	settled := id.settled(l.now)
	if err == nil && p != nil {
		err = p.prepare()
	}
	if err == nil && p != nil && (!settled || !s.settled && s.packed != nil) {
		p.sum, err = p.checksum(s.seed)
	}
	after, statErr := s.stat(s.packedPath, true)
	switch {
	case statErr != nil:
		return false, statErr
	case after != id:
		return true, nil
	case err != nil:
		return false, err
	}
	switch {
	case p == nil && s.packed == nil:
	case p == nil || s.packed == nil || s.settled || p.sum != s.packed.sum:
		s.dirty = true
	}
	s.packed, s.packedID, s.settled = p, id, settled
	return false, nil
}

// unchanged reports whether the content of the mapped packed-refs is unchanged. The file is known to be the same.
func (s *Store) unchanged() bool {
	if s.packed == nil || s.packed.file == nil {
		return s.packed == nil
	}
	sum, err := s.packed.checksum(s.seed)
	return err == nil && sum == s.packed.sum
}

// tablesListPath is a file that exists if refs are in reftables.
const tablesListPath = "reftable/tables.list"

// refuseReftable is called after a scan of the loose refs. Reftables leave a HEAD that cannot be the name of a ref.
// Without this check, all refs would seem to be gone. It reads the config again only after a change that a migration
// makes.
func (s *Store) refuseReftable() error {
	if !s.checkFormat {
		return nil
	}
	if s.head.entry.kind == odd {
		id, err := s.stat(s.tables[0].path, true)
		if err != nil {
			return err
		}
		if id.kind != missing {
			return fault.Retry(fault.Unavailable, fault.RetrySoon,
				"this repository's refs are stored as reftables, but its config does not set extensions.refStorage")
		}
	}
	s.checkFormat = false
	return nil
}

// build creates a Snapshot from the last scan.
func (s *Store) build() (*Snapshot, error) {
	snap := &Snapshot{packed: s.packed, generation: 1, hidden: s.hidden}
	if s.current != nil {
		snap.generation = s.current.generation + 1
		snap.loose = make([]*refEntry, 0, len(s.current.loose)+8)
	}
	snap.loose = s.root.appendEntries(snap.loose)
	if s.own != nil {
		snap.loose = s.own.appendEntries(snap.loose)
	}
	sortEntries(snap.loose)
	if err := snap.resolveAll(s.head.entry, s.metrics); err != nil {
		return nil, err
	}
	s.memo.limit(len(snap.loose))
	return snap, nil
}
