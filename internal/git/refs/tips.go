package refs

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"math"
	"slices"
	"sync"

	"github.com/packhorse-git/packhorse/internal/git"
)

// HasTips reports whether all objects are values of visible refs. It is for Snapshots with a Source. The first call for
// a Base sorts its refs by value, which takes 0.3 s for a million and keeps 4 bytes for each. Later calls make a binary
// search for each object, and compare it with the changes. It reports false for a Base of more than 4 GiB.
func (s *Snapshot) HasTips(ids []git.ObjectID) (bool, error) {
	for _, id := range ids {
		isTip := func(e *refEntry) bool { return e.kind == direct && e.id == id && !s.hides(e.name) }
		if slices.ContainsFunc(s.loose, isTip) {
			continue
		}
		ok, err := s.packed.hasTip(id, func(name git.RefName) bool { return s.findLoose(name) == nil && !s.hides(name) })
		if err != nil || !ok {
			return false, err
		}
	}
	return true, nil
}

// tipIndex has the offsets of the records of a packed-refs file, in the order of their object IDs.
type tipIndex struct {
	once    sync.Once
	offsets []uint32
	err     error
}

// hasTip reports whether a ref has this value, and a name for which counts returns true. A nil p has no refs.
func (p *packed) hasTip(id git.ObjectID, counts func(git.RefName) bool) (found bool, err error) {
	if p == nil {
		return false, nil
	}
	p.tips.once.Do(func() { p.tips.offsets, p.tips.err = p.sortByID() })
	if p.tips.err != nil {
		return false, p.tips.err
	}
	refs, hex := p.tips.offsets, id.AppendHex(nil)
	err = p.do(func(b []byte) error {
		from, _ := slices.BinarySearchFunc(refs, hex, func(off uint32, hex []byte) int {
			return bytes.Compare(b[off:][:len(hex)], hex)
		})
		refs = refs[from:]
		return nil
	})
	for err == nil && !found && len(refs) > 0 {
		var r record
		var name git.RefName
		err = p.do(func(b []byte) (err error) {
			r, err = p.record(b, int(refs[0]))
			name = git.RefName(r.name)
			return err
		})
		if r.id != id {
			break
		}
		found = err == nil && git.IsSafeRefName(string(name)) && counts(name)
		refs = refs[1:]
	}
	return found, err
}

// sortByID returns the offsets of all records in the order of their IDs; none for a file that is too large.
func (p *packed) sortByID() (offsets []uint32, err error) {
	type entry struct {
		prefix uint64 // the first digits of the ID
		off    uint32
	}
	n := p.format.HexSize()
	err = p.do(func(b []byte) error {
		if len(b) > math.MaxUint32 {
			return nil
		}
		entries := make([]entry, 0, bytes.Count(b, []byte{' '}))
		for off := p.body; off < len(b); {
			line, next := p.line(b, off)
			if len(line) < 1+n {
				return p.corrupt(off, "not an object ID")
			}
			if len(line) > 1+n { // otherwise it is a peeled object
				entries = append(entries, entry{binary.BigEndian.Uint64(line), uint32(off)})
			}
			off = next
		}
		slices.SortFunc(entries, func(x, y entry) int {
			if order := cmp.Compare(x.prefix, y.prefix); order != 0 {
				return order
			}
			return bytes.Compare(b[x.off:][:n], b[y.off:][:n])
		})
		offsets = make([]uint32, len(entries))
		for i, e := range entries {
			offsets[i] = e.off
		}
		return nil
	})
	return offsets, err
}
