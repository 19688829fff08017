package pack

import (
	"errors"
	"path/filepath"
	"slices"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
)

// maxLookups is the maximum number of restarts of one look-up because packs were replaced.
const maxLookups = 4

// lookup calls read with each location of the object until it succeeds: the first pack, the loose object (a location
// without a pack), the other packs. If there is no location, or one is gone, it scans the directories and starts again.
// The error is errAbsent if the object does not exist.
func (s *Store) lookup(id *git.ObjectID, read func(*snapshot, *scratch, location) error) error {
	if len(id.Raw()) != s.format.Size() || s.purged[*id] {
		return errAbsent
	}
	sc := takeScratch(s.format)
	defer sc.release()
	var err error
	for range maxLookups {
		snap := s.snap.Load()
		if err = s.attempt(snap, sc, id, read); err == nil || fault.Is(err, fault.Invalid) {
			return err
		}
		gone := errors.Is(err, errGone)
		if rerr := s.rescan(gone); rerr != nil {
			return rerr
		}
		if !gone && s.snap.Load().same(snap) {
			return err
		}
	}
	return err
}

// attempt is one round of lookup over one snapshot. Of several errors it returns the first.
func (s *Store) attempt(snap *snapshot, sc *scratch, id *git.ObjectID, read func(*snapshot, *scratch,
	location) error) error {
	first, found, failed := snap.find(s, id)
	try := func(loc location) error {
		err := read(snap, sc, loc)
		s.releaseAll(sc)
		if failed == nil || failed == errAbsent {
			failed = err
		}
		return err
	}
	if found && try(first) == nil || try(location{}) == nil {
		return nil
	}
	if !found {
		return failed
	}
	for _, loc := range snap.copies(id) {
		if loc != first && try(loc) == nil {
			return nil
		}
	}
	return failed
}

// readError adds the kind and the text for the caller to an error of a read.
func (s *Store) readError(id git.ObjectID, err error) error {
	switch {
	case err == nil:
		return nil
	case err == errAbsent && s.purged[id]:
		return fault.New(fault.NotFound, "object %s not found: it was purged", id)
	case err == errAbsent:
		if err := s.MissingAlternate(); err != nil {
			return err
		}
		if faults := s.Damaged(); len(faults) > 0 {
			return fault.Wrap(fault.NotFound, "object "+id.String()+" not found: some packs cannot be read",
				faults[0])
		}
		return fault.New(fault.NotFound, "object %s not found", id)
	case fault.Is(err, fault.Corrupt), errors.Is(err, errGone), errors.Is(err, errAbsent):
		return fault.Wrap(fault.Corrupt, "object "+id.String()+" is damaged", err)
	case transient(err):
		return fault.Wrap(fault.Unavailable, "too many files are open", err)
	case fault.KindOf(err) == fault.Internal:
		return fault.Wrap(fault.Internal, "reading object "+id.String(), err)
	}
	return err
}

// Damaged lists the files that the last scan skipped: unreadable indexes and missing alternates.
func (s *Store) Damaged() []error { return s.snap.Load().faults }

// MissingAlternate returns an error of kind Corrupt if the last scan did not find an object directory in
// objects/info/alternates, which may have had a missing object. Otherwise it returns nil. Only the cause has the path.
func (s *Store) MissingAlternate() error {
	snap := s.snap.Load()
	if len(snap.absent) == 0 {
		return nil
	}
	return fault.Wrap(fault.Corrupt,
		"repository is damaged: an object directory that its alternates (objects/info/alternates) name is missing",
		errNoAlternate{snap.absent[0]})
}

// HasAlternates reports whether objects of other repositories may be visible: through alternates, or because the object
// directory is a link to another one.
func (s *Store) HasAlternates() bool { return s.linked || len(s.snap.Load().dirs) > 1 }

// Linked reports whether the object directory is a link to one that may be another repository's.
func (s *Store) Linked() bool { return s.linked }

// Dirs lists the object directories in look-up order, the store's own first.
func (s *Store) Dirs() []string {
	snap := s.snap.Load()
	dirs := make([]string, len(snap.dirs))
	for i, d := range snap.dirs {
		dirs[i] = d.path
	}
	return dirs
}

// AlternatePaths lists the paths by which git may name other object directories in its messages. These are all
// directories that alternates lead to, even missing ones, both as alternates name them and cleaned. It returns nil if
// there are no alternates.
func (s *Store) AlternatePaths() []string {
	snap := s.snap.Load()
	if len(snap.dirs) == 1 && len(snap.absent) == 0 {
		return nil
	}
	paths, _ := Alternates(s.dir) // git cannot name paths that cannot be read
	paths = append(append(paths, s.Dirs()[1:]...), snap.absent...)
	for _, path := range paths {
		paths = append(paths, filepath.Clean(path))
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// Close closes the pack descriptors. Reads in flight finish. Later reads work, but do not keep packs open.
func (s *Store) Close() error {
	s.files.close()
	s.bases.clear()
	for _, d := range s.snap.Load().dirs {
		for _, p := range d.all {
			orders.drop(p.index)
			orders.drop(p.covered.Load())
		}
	}
	return nil
}
