// Package pack reads the objects of a repository in process: packs by their indexes and multi-pack-indexes, loose
// objects, alternates, of both object formats.
//
// A scan of the object directories makes a snapshot: an immutable list of mapped indexes. Every lookup uses the present
// snapshot without a lock, and reads memory. Refresh compares the identities of the directories (device, inode, times)
// with the snapshot. It scans only directories that differ, or are too young for a reliable identity. `git gc` and `git
// repack` replace packs at any time. A reader keeps its open pack, and a reader that finds its pack gone scans and
// retries.
//
// Only indexes are mapped, through disk.Mapping. Entries are read by pread into bounded buffers. All input is checked:
// every number against the size of the data that it counts, and chains of deltas for loops and length. Read returns
// only bytes whose hash matches the object ID. If a copy of an object or of a delta base is damaged, another copy in a
// pack or a loose file is used.
//
// Formats: gitformat-pack(5) (packs version 2 and 3, indexes version 1 and 2, multi-pack-index version 1),
// gitformat-chunk(5), gitrepository-layout(5) (loose objects, alternates).
//
// Limits. A Store does not verify the checksums of whole packs and indexes: a flipped bit in an index can hide an
// object. A Verifier does. Incremental multi-pack-indexes are ignored; the index of each pack is used instead. Replace
// refs and grafts are not applied. If the clock of a file system lags (NFS), the second of two changes in one of its
// ticks may stay hidden until the next change. A store keeps at most 64 packs open and 4 MiB of delta bases.
package pack

import (
	"errors"
	"maps"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/disk"
)

// defaultMaxObject is Options.MaxObject if that is 0.
const defaultMaxObject = 64 << 20

// Options configure a Store.
type Options struct {
	Format    git.ObjectFormat
	Root      string // object directories must be in this directory, with links resolved; "": no limit
	MaxObject int64  // maximum size of delta bases, and of objects if Read's limit is 0, in bytes; 0: 64 MiB
	Alone     bool   // do not follow alternates
	Also      string // another object directory, read as if it were the last alternate; "": none
	// Purged are objects that do not exist for callers, whether files have them or not. They may be bases of deltas.
	Purged map[git.ObjectID]bool
}

// Store reads the objects of one object directory and its alternates. It is safe for concurrent use.
type Store struct {
	dir       string // without symbolic links
	linked    bool   // the directory is a link to one that may be another repository's
	root      string // the same; "" means no limit
	plainRoot string // the root as it was given
	format    git.ObjectFormat
	maxObject int64
	alone     bool
	also      string
	purged    map[git.ObjectID]bool
	emptyTree git.ObjectID

	stat func(path string) (disk.ID, error)
	now  func() time.Time

	snap    atomic.Pointer[snapshot]
	lastHit atomic.Pointer[packFile] // of snap; the next look-ups mostly hit the same pack
	files   descriptors
	bases   baseCache

	scans   atomic.Uint64 // scans begun
	refresh sync.Mutex    // held while scanning
	lastErr error         // of the last scan; guarded by refresh
}

// Open reads the object directory ("<repository>/objects"). The error is NotFound if there is none, Denied if it or one
// of its alternates is outside the root.
func Open(objectsDir string, o Options) (*Store, error) {
	return open(objectsDir, o, disk.Stat, time.Now)
}

func open(objectsDir string, o Options, stat func(string) (disk.ID, error), now func() time.Time) (*Store, error) {
	s := &Store{format: o.Format, maxObject: o.MaxObject, alone: o.Alone, also: o.Also, purged: o.Purged, stat: stat,
		now: now}
	if s.format == 0 {
		s.format = git.SHA1
	}
	if s.maxObject <= 0 {
		s.maxObject = defaultMaxObject
	}
	h := s.format.New()
	h.Write([]byte("tree 0\x00"))
	s.emptyTree = git.RawObjectID(h.Sum(nil))
	var err error
	if s.dir, err = realPath(objectsDir); err != nil {
		if isAbsent(err) {
			return nil, fault.Wrap(fault.NotFound, "the repository has no object directory", err)
		}
		return nil, fault.Wrap(fault.Internal, "opening the object directory", err)
	}
	if s.linked, err = isLinked(objectsDir, s.dir); err != nil {
		return nil, fault.Wrap(fault.Internal, "opening the object directory", err)
	}
	if o.Root != "" {
		if s.root, err = realPath(o.Root); err != nil {
			return nil, fault.Wrap(fault.Internal, "opening the root directory", err)
		}
		if s.plainRoot, err = filepath.Abs(o.Root); err != nil {
			return nil, fault.Wrap(fault.Internal, "opening the root directory", err)
		}
		if !disk.Below(s.root, s.dir) {
			return nil, fault.Wrap(fault.Denied, "the repository's object directory is outside the served root",
				errors.New(s.dir))
		}
	}
	if err := s.rescan(true); err != nil {
		return nil, err
	}
	return s, nil
}

// isLinked reports whether path is a link: real is its path without links.
func isLinked(path, real string) (bool, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return false, err
	}
	parent, err := filepath.EvalSymlinks(filepath.Dir(path))
	return real != filepath.Join(parent, filepath.Base(path)), err
}

// realPath returns the absolute path without symbolic links.
func realPath(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(path)
}

// Purged reports whether an object is one of Options.Purged.
func (s *Store) Purged(id git.ObjectID) bool { return s.purged[id] }

// Refresh makes changes of other programs to the object directories visible: new and removed packs, multi-pack-indexes
// and alternates. Without changes it costs three stats for each directory. Loose objects need no Refresh. If it fails,
// the previous snapshot stays in use.
func (s *Store) Refresh() error {
	return s.rescan(false)
}

// maxAdded is the maximum number of packs that Add adds without a scan. Files of removed packs stay open until a scan.
const maxAdded = 64

// Add makes a pack visible that this process has just written into the store's own directory, given by the name of its
// files without the extension. It does not read the directory: the next Refresh does.
func (s *Store) Add(name string) error {
	s.refresh.Lock()
	next, err := s.with(name)
	if next != nil {
		s.snap.Store(next)
	}
	s.refresh.Unlock()
	if next == nil && err == nil {
		err = s.rescan(false)
	}
	return scanError(err)
}

// with returns the present snapshot with another pack; nil if a scan is due. The directory's identity in it is that
// before the pack was written.
func (s *Store) with(name string) (*snapshot, error) {
	old := s.snap.Load()
	if old.added == maxAdded {
		return nil, nil
	}
	own := *old.dirs[0]
	id, err := s.stat(own.packDir + "/" + name + ".idx")
	if err != nil || own.all[name] != nil && own.all[name].id == id {
		return nil, err
	}
	p := &packFile{path: own.packDir + "/" + name, hash: s.format.Size(), id: id}
	if p.index, err = openIdx(p.path+".idx", s.format); err != nil {
		return nil, err
	}
	own.packs = append([]*packFile{p}, own.packs...)
	own.all = maps.Clone(own.all)
	own.all[name] = p
	next := *old
	next.dirs = append([]*objectDir{&own}, old.dirs[1:]...)
	next.added++
	return &next, nil
}

// rescan loads a new snapshot if the disk may differ from the current one, or if forced. When it returns, the snapshot
// is newer than the call, or is still valid.
func (s *Store) rescan(force bool) error {
	begun := s.scans.Load()
	if snap := s.snap.Load(); snap != nil && !force {
		if changed, err := snap.changed(s); err != nil || !changed {
			return scanError(err)
		}
	}
	s.refresh.Lock()
	defer s.refresh.Unlock()
	if s.scans.Load() > begun { // another scan began after this call
		return s.lastErr
	}
	s.scans.Add(1)
	old := s.snap.Load()
	snap, err := s.load(old)
	if s.lastErr = scanError(err); err != nil {
		return s.lastErr
	}
	s.snap.Store(snap)
	s.forget(old, snap)
	return nil
}

func scanError(err error) error {
	var kind *fault.Error
	switch {
	case err == nil || errors.As(err, &kind):
		return err
	case transient(err):
		return fault.Wrap(fault.Unavailable, "too many files are open", err)
	}
	return fault.Wrap(fault.Internal, "reading the object directory", err)
}

// forget closes the files of the old snapshot that are not in the new one.
func (s *Store) forget(old, snap *snapshot) {
	if old == nil {
		return
	}
	kept := map[*packFile]bool{}
	for _, d := range snap.dirs {
		for _, p := range d.all {
			kept[p] = true
		}
	}
	dropped := false
	for _, d := range old.dirs {
		for _, p := range d.all {
			if !kept[p] {
				s.files.drop(p)
				dropped = true
			}
		}
	}
	if last := s.lastHit.Load(); last != nil && !kept[last] {
		s.lastHit.CompareAndSwap(last, nil)
	}
	if dropped {
		s.bases.clear()
	}
}

// Has reports whether the object exists, also if it is damaged. A hit in a pack does not allocate memory. A miss costs
// a Refresh.
func (s *Store) Has(id git.ObjectID) (bool, error) {
	found, _, err := s.has(id, true)
	return found, err
}

// Lookups looks up many objects, some of which may be missing. After a Refresh without changes, further misses cost no
// Refresh. It is used by one goroutine.
type Lookups struct {
	store   *Store
	current bool // a Refresh found no changes
}

// Lookups starts a series of lookups. They find all objects that exist now.
func (s *Store) Lookups() Lookups { return Lookups{store: s} }

// Has reports whether the object exists, as Store.Has does.
func (l *Lookups) Has(id git.ObjectID) (found bool, err error) {
	found, nothingNew, err := l.store.has(id, !l.current)
	l.current = l.current || nothingNew
	return found, err
}

// has looks for an object. If it is missing and refresh is set, it also checks for changes of the directories.
// nothingNew is true if there were none.
func (s *Store) has(id git.ObjectID, refresh bool) (found, nothingNew bool, err error) {
	if len(id.Raw()) != s.format.Size() || s.purged[id] {
		return false, false, nil
	}
	snap := s.snap.Load()
	_, found, failed := snap.find(s, &id)
	if found {
		return true, false, nil
	}
	if found, err := s.hasLoose(snap, &id); found || err != nil {
		return found, false, err
	}
	if id == s.emptyTree {
		return true, false, nil
	}
	if !refresh {
		return false, false, failed
	}
	if err := s.rescan(false); err != nil {
		return false, false, err
	}
	next := s.snap.Load()
	if nothingNew = next.same(snap); !nothingNew {
		snap = next
		if found, err := s.hasLoose(snap, &id); found || err != nil {
			return found, false, err
		}
	}
	_, found, err = snap.find(s, &id)
	return found, nothingNew, err
}

// Header reads an object's type and size without inflating it. The errors are those of Read.
func (s *Store) Header(id git.ObjectID) (typ git.ObjectType, size int64, err error) {
	err = s.lookup(&id, func(snap *snapshot, sc *scratch, loc location) error {
		if loc.pack == nil {
			typ, size, err = s.describeLoose(snap, sc, &id)
		} else {
			typ, size, err = s.describe(snap, sc, loc)
		}
		return err
	})
	if err == errAbsent && id == s.emptyTree {
		return git.Tree, 0, nil
	}
	return typ, size, s.readError(id, err)
}

// Read returns a whole object of at most limit bytes; 0: Options.MaxObject. The caller owns the returned bytes.
// The error is NotFound if the object does not exist, Corrupt if no copy of it can be read, Invalid if it is larger
// than the limit.
func (s *Store) Read(id git.ObjectID, limit int64) (typ git.ObjectType, data []byte, err error) {
	return s.read(id, limit, false)
}

// ReadShared is Read for a version of a directory, of which other versions are read next. It is kept as a base of their
// deltas. The bytes must not be changed.
func (s *Store) ReadShared(id git.ObjectID, limit int64) (git.ObjectType, []byte, error) {
	return s.read(id, limit, true)
}

func (s *Store) read(id git.ObjectID, limit int64, share bool) (typ git.ObjectType, data []byte, err error) {
	if limit <= 0 {
		limit = s.maxObject
	}
	err = s.lookup(&id, func(snap *snapshot, sc *scratch, loc location) error {
		if loc.pack == nil {
			typ, data, err = s.readLoose(snap, sc, &id, limit)
		} else {
			sc.share = share
			typ, data, err = s.unpack(snap, sc, loc, limit)
		}
		return s.check(sc, &id, typ, data, loc, err)
	})
	if err == errAbsent && id == s.emptyTree {
		return git.Tree, []byte{}, nil
	}
	if fault.Is(err, fault.Corrupt) && s.repair(&id, &typ, &data, limit) {
		return typ, data, nil
	}
	if err != nil {
		return 0, nil, s.readError(id, err)
	}
	return typ, data, nil
}

// check returns err, or if there is none whether data is the object's.
func (s *Store) check(sc *scratch, id *git.ObjectID, typ git.ObjectType, data []byte, loc location, err error) error {
	if err == nil && !sc.verify(id, typ, data) {
		s.bases.clear()
		err = damaged(loc, errHash)
	}
	return err
}
