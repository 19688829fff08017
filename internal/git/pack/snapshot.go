package pack

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/disk"
)

// snapshot is the result of a scan. It is immutable, so readers need no lock.
type snapshot struct {
	dirs   []*objectDir // own first, then alternates in the order git uses
	absent []string     // alternates that did not exist; they are checked again
	faults []error      // damaged indexes and missing alternates
	added  int          // packs that Store.Add added to the result
}

// objectDir is one object directory as the last scan found it.
type objectDir struct {
	path       string // without symbolic links
	packDir    string
	alternates string  // the file
	dirID      disk.ID // of path, taken before it was read, so that a new link in it is noticed
	packID     disk.ID // of packDir, taken before it was read
	altID      disk.ID // of alternates, taken before it was read

	dirYoung, packYoung, altYoung bool // changed so recently that another change may leave its disk.ID the same

	midx      *multiIndex // nil: none, or not usable
	midxID    disk.ID
	midxPacks []*packFile // by pack number
	packs     []*packFile // the others, the newest first
	all       map[string]*packFile
	faults    []error
}

// same reports whether two snapshots have the same packs. Then the same objects are missing from both.
func (snap *snapshot) same(other *snapshot) bool {
	return snap == other || slices.EqualFunc(snap.dirs, other.dirs, func(a, b *objectDir) bool {
		return a.path == b.path && a.midx == b.midx && slices.Equal(a.packs, b.packs) && slices.Equal(a.midxPacks,
			b.midxPacks)
	})
}

// find locates an object in the packs. It skips damaged indexes. The error is Corrupt if an index is damaged and no
// other index has the object.
func (snap *snapshot) find(s *Store, id *git.ObjectID) (location, bool, error) {
	raw := id.Raw()
	last := s.lastHit.Load()
	var failed error
	if last != nil && last.index != nil {
		if offset, ok, err := last.index.find(raw); ok {
			return location{last, offset}, true, nil
		} else if err != nil {
			failed = err
		}
	}
	for _, d := range snap.dirs {
		if d.midx != nil {
			p, offset, ok, err := d.midx.find(raw)
			if ok {
				return location{d.midxPacks[p], offset}, true, nil
			}
			if err != nil {
				failed = err
			}
		}
		for _, p := range d.packs {
			if p == last {
				continue
			}
			offset, ok, err := p.index.find(raw)
			if ok {
				s.lastHit.Store(p)
				return location{p, offset}, true, nil
			}
			if err != nil {
				failed = err
			}
		}
	}
	return location{}, false, fault.Wrap(fault.Corrupt, "an object index is damaged", failed)
}

// copies locates every packed copy of an object.
func (snap *snapshot) copies(id *git.ObjectID) []location {
	var found []location
	for _, d := range snap.dirs {
		if d.midx != nil {
			if p, offset, ok, _ := d.midx.find(id.Raw()); ok {
				found = append(found, location{d.midxPacks[p], offset})
			}
		}
		for _, p := range d.packs {
			if offset, ok, _ := p.index.find(id.Raw()); ok {
				found = append(found, location{p, offset})
			}
		}
	}
	return found
}

// idAt returns the object whose pack entry begins at a location. It scans an index, so it is slow.
func (snap *snapshot) idAt(loc location) (id git.ObjectID, found bool) {
	if loc.pack.index != nil {
		id, found, _ = loc.pack.index.idAt(loc.offset)
		return id, found
	}
	for _, d := range snap.dirs {
		if n := slices.Index(d.midxPacks, loc.pack); n >= 0 {
			id, found, _ = d.midx.idAt(n, loc.offset)
			return id, found
		}
	}
	return id, false
}

// changed reports whether the disk may differ from the snapshot. It makes up to three stat calls for each directory.
func (snap *snapshot) changed(s *Store) (bool, error) {
	for _, d := range snap.dirs {
		if d.dirYoung || d.packYoung || d.altYoung {
			return true, nil
		}
		if s.root != "" {
			if dirID, err := s.stat(d.path); err != nil || dirID != d.dirID {
				return true, err
			}
		}
		packID, err := s.stat(d.packDir)
		if err != nil {
			return false, err
		}
		altID, err := s.stat(d.alternates)
		if err != nil {
			return false, err
		}
		if packID != d.packID || altID != d.altID {
			return true, nil
		}
	}
	for _, path := range snap.absent {
		if id, err := s.stat(path); !leadsNowhere(err) && (err != nil || id != (disk.ID{})) {
			return true, err
		}
	}
	return false, nil
}

// load scans the object directory and its alternates. It reuses the unchanged parts of old.
func (s *Store) load(old *snapshot) (*snapshot, error) {
	snap := &snapshot{}
	if err := s.loadDir(snap, old, s.dir, 0); err != nil {
		return nil, err
	}
	return snap, nil
}

// loadDir adds a directory and, depth first, its alternates to snap. It skips a directory that snap already has, so a
// cycle of alternates ends.
func (s *Store) loadDir(snap, old *snapshot, path string, depth int) error {
	for _, d := range snap.dirs {
		if d.path == path {
			return nil
		}
	}
	if len(snap.dirs) == maxAlternates {
		return fault.New(fault.Invalid, "objects/info/alternates leads to more than %d object directories",
			maxAlternates)
	}
	d, err := s.scan(old.dir(path), path)
	if err != nil {
		return err
	}
	snap.dirs = append(snap.dirs, d)
	snap.faults = append(snap.faults, d.faults...)
	if s.alone {
		return nil
	}
	entries, err := readAlternates(d.alternates)
	if err != nil {
		return err
	}
	if depth > maxAlternateDepth {
		return nil
	}
	if depth == 0 && s.also != "" {
		entries = append(entries, s.also)
	}
	for _, entry := range entries {
		alternate, err := s.resolveAlternate(d.path, entry)
		var missing errNoAlternate
		if errors.As(err, &missing) {
			snap.absent = append(snap.absent, missing.path)
			snap.faults = append(snap.faults, err)
			continue
		}
		if err != nil {
			return err
		}
		if err := s.loadDir(snap, old, alternate, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// dir returns the object directory with the given path, or nil. snap may be nil.
func (snap *snapshot) dir(path string) *objectDir {
	if snap != nil {
		for _, d := range snap.dirs {
			if d.path == path {
				return d
			}
		}
	}
	return nil
}

// scan lists one object directory's packs.
func (s *Store) scan(old *objectDir, path string) (*objectDir, error) {
	d := &objectDir{path: path, packDir: path + "/pack", alternates: path + "/info/alternates"}
	now := s.now()
	var err error
	if d.altID, err = s.stat(d.alternates); err != nil {
		return nil, err
	}
	if d.packID, err = s.stat(d.packDir); err != nil {
		return nil, err
	}
	if err := s.scanLinks(d, old, now); err != nil {
		return nil, err
	}
	d.packYoung, d.altYoung = !d.packID.Settled(now), !d.altID.Settled(now)
	if old != nil && old.packID == d.packID && !old.packYoung {
		kept := *old
		kept.altID, kept.altYoung = d.altID, d.altYoung
		kept.dirID, kept.dirYoung = d.dirID, d.dirYoung
		return &kept, nil
	}
	if err := s.scanPacks(d, old); err != nil {
		return nil, err
	}
	return d, nil
}

// scanLinks returns an error if an entry of an object directory, such as a directory of loose objects, is a link that
// leads outside the root.
func (s *Store) scanLinks(d, old *objectDir, now time.Time) error {
	if s.root == "" {
		return nil
	}
	var err error
	if d.dirID, err = s.stat(d.path); err != nil {
		return err
	}
	d.dirYoung = !d.dirID.Settled(now)
	if old == nil || old.dirYoung || old.dirID != d.dirID {
		entries, err := os.ReadDir(d.path)
		if err != nil && !isAbsent(err) {
			return err
		}
		for _, e := range entries {
			if e.Type()&fs.ModeSymlink == 0 {
				continue
			}
			if err := s.contained(d.path + "/" + e.Name()); err != nil {
				return err
			}
		}
	}
	for _, part := range []string{d.packDir, d.alternates} { // a link may lead to another link
		if err := s.contained(part); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) scanPacks(d, old *objectDir) error {
	entries, err := os.ReadDir(d.packDir)
	if err != nil && !isAbsent(err) {
		return err
	}
	packs, indexes, hasMidx := map[string]bool{}, []string{}, false
	for _, e := range entries {
		name := e.Name()
		if e.Type()&fs.ModeSymlink != 0 {
			if err := s.contained(d.packDir + "/" + name); err != nil {
				return err
			}
		}
		if base, ok := strings.CutSuffix(name, ".pack"); ok {
			packs[base] = true
		} else if base, ok := strings.CutSuffix(name, ".idx"); ok {
			indexes = append(indexes, base)
		}
		hasMidx = hasMidx || name == "multi-pack-index"
	}
	d.all = make(map[string]*packFile, len(indexes))
	for _, base := range indexes {
		if !packs[base] {
			continue
		}
		id, err := s.stat(d.packDir + "/" + base + ".idx")
		if err != nil {
			return err
		}
		if id == (disk.ID{}) {
			continue // removed since it was listed
		}
		p := &packFile{path: d.packDir + "/" + base, hash: s.format.Size(), id: id}
		if old != nil && old.all[base] != nil && old.all[base].id == id {
			p = old.all[base]
		}
		d.all[base] = p
	}
	if hasMidx {
		if err := s.scanMidx(d, old); err != nil {
			return err
		}
	}
	return s.openIndexes(d)
}

// scanMidx opens the multi-pack-index. If it is damaged or names a missing pack, the indexes of the packs are used
// instead, which have the same objects.
func (s *Store) scanMidx(d, old *objectDir) error {
	path := d.packDir + "/multi-pack-index"
	id, err := s.stat(path)
	if err != nil || id == (disk.ID{}) {
		return err
	}
	var m *multiIndex
	if old != nil && old.midx != nil && old.midxID == id {
		m = old.midx
	} else if m, err = openMidx(path, s.format); err != nil {
		return d.note(err, "multi-pack-index")
	}
	packs := make([]*packFile, len(m.layout.packs))
	for i, base := range m.layout.packs {
		if packs[i] = d.all[base]; packs[i] == nil {
			return nil
		}
	}
	d.midx, d.midxID, d.midxPacks = m, id, packs
	return nil
}

// openIndexes opens the index of each pack that the multi-pack-index does not cover.
func (s *Store) openIndexes(d *objectDir) error {
	covered := make(map[*packFile]bool, len(d.midxPacks))
	for _, p := range d.midxPacks {
		covered[p] = true
	}
	for base, p := range d.all {
		if covered[p] {
			continue
		}
		if p.index == nil {
			x, err := openIdx(p.path+".idx", s.format)
			if err != nil {
				if err := d.note(err, base); err != nil {
					return err
				}
				continue
			}
			p = &packFile{path: p.path, hash: p.hash, id: p.id, index: x}
			d.all[base] = p
		}
		d.packs = append(d.packs, p)
	}
	slices.SortFunc(d.packs, func(a, b *packFile) int {
		if a.id.Mtime != b.id.Mtime {
			if a.id.Mtime > b.id.Mtime {
				return -1
			}
			return 1
		}
		return strings.Compare(a.path, b.path)
	})
	return nil
}

// note handles an error of one file. A transient error is returned, and fails the scan. Otherwise the scan continues
// without the file, and the error of a damaged file is kept for Damaged.
func (d *objectDir) note(err error, name string) error {
	switch {
	case transient(err):
		return err
	case isAbsent(err):
		return nil
	}
	d.faults = append(d.faults, fault.Wrap(fault.Corrupt, name+" is damaged", err))
	return nil
}
