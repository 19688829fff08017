package pack

import (
	"errors"

	"github.com/packhorse-git/packhorse/internal/git"
)

// repair reads an object of which all copies are damaged, if the damage is in a delta base that has an undamaged copy
// in another pack or a loose object.
func (s *Store) repair(id *git.ObjectID, typ *git.ObjectType, data *[]byte, limit int64) bool {
	return s.lookup(id, func(snap *snapshot, sc *scratch, loc location) error {
		if loc.pack == nil {
			return errAbsent
		}
		b, err := s.soundBase(snap, sc, loc, max(limit, s.maxObject))
		if err == nil {
			*typ, *data, err = s.resolve(sc, loc, b, limit)
		}
		return s.check(sc, id, *typ, *data, loc, err)
	}) == nil
}

// soundBase follows the chain of deltas of the entry at loc to a base that has another copy.
// It leaves the deltas from there on in sc.chain.
func (s *Store) soundBase(snap *snapshot, sc *scratch, loc location, limit int64) (base, error) {
	sc.chain = sc.chain[:0]
	for range maxRepair {
		o, err := s.hold(sc, loc.pack)
		if err != nil {
			return base{}, err
		}
		e, err := sc.readEntry(o, loc.offset)
		if err != nil {
			return base{}, damaged(loc, err)
		}
		if !e.IsDelta() {
			break
		}
		sc.chain = append(sc.chain, link{open: o, at: loc.offset, data: sc.offset(), size: e.Size})
		id, known := git.RawObjectID(e.Base), true
		if e.Kind == OfsDelta {
			loc.offset -= e.Distance
			id, known = snap.idAt(loc)
		} else if loc, err = s.findBase(snap, loc.pack, &id); err != nil {
			return base{}, err
		}
		if known {
			if b, ok := s.otherCopy(snap, &id, loc, limit); ok {
				return b, nil
			}
		}
		if loc.pack == nil {
			break
		}
	}
	return base{}, damaged(loc, errors.New("no base of it has another copy"))
}

// maxRepair is the maximum number of bases that repair tries. It may scan an index for each.
const maxRepair = 64

// otherCopy reads an object from anywhere but one place.
func (s *Store) otherCopy(snap *snapshot, id *git.ObjectID, not location, limit int64) (base, bool) {
	sc := takeScratch(s.format)
	defer sc.release()
	defer s.releaseAll(sc)
	try := func(typ git.ObjectType, data []byte, err error) (base, bool) {
		if err != nil || !sc.verify(id, typ, data) {
			return base{}, false
		}
		return base{typ: typ, size: int64(len(data)), ready: true, data: data, ref: *id}, true
	}
	if b, ok := try(s.readLoose(snap, sc, id, limit)); ok {
		return b, true
	}
	for _, loc := range snap.copies(id) {
		if loc != not {
			if b, ok := try(s.unpack(snap, sc, loc, limit)); ok {
				return b, true
			}
		}
	}
	return base{}, false
}

var errHash = errors.New("the bytes are not the object's")
