package pack

import (
	"bytes"
	"errors"
	"slices"
	"sort"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
)

// Prefix is the beginning of an object ID: at least two hexadecimal digits.
type Prefix struct {
	digits string // lower case
	least  git.ObjectID
}

// ParsePrefix parses hexadecimal digits of either case. ok reports whether an ID of the format can begin with them.
func ParsePrefix(s string, format git.ObjectFormat) (p Prefix, ok bool) {
	if len(s) < 2 || len(s) > format.HexSize() {
		return p, false
	}
	p.digits = strings.ToLower(s)
	id, err := git.ParseObjectID(p.digits + strings.Repeat("0", format.HexSize()-len(s)))
	p.least = id
	return p, err == nil
}

// begins reports whether a raw ID begins with the prefix.
func (p *Prefix) begins(raw []byte) bool {
	whole, least := len(p.digits)/2, p.least.Raw()
	return bytes.Equal(raw[:whole], least[:whole]) && (len(p.digits)%2 == 0 || raw[whole]>>4 == least[whole]>>4)
}

// maxPrefixed is the maximum number of objects with one prefix.
const maxPrefixed = 10_000

var errManyPrefixed = fault.New(fault.Invalid, "more than %d objects have IDs that begin like this; give more digits",
	maxPrefixed)

// WithPrefix lists the objects whose IDs begin with a prefix, in order and without duplicates. It includes all objects
// that exist during the whole call. The error is of kind Invalid if there are more than 10,000.
func (s *Store) WithPrefix(p Prefix) ([]git.ObjectID, error) {
	dirs := s.snap.Load().dirs
	found, err := s.loosePrefixed(dirs, &p, nil)
	if err != nil {
		return nil, err
	}
	if err := s.rescan(false); err != nil { // after the loose objects, so that objects packed meanwhile are found
		return nil, err
	}
	snap := s.snap.Load()
	// alternates were added
	if !slices.EqualFunc(snap.dirs, dirs, func(a, b *objectDir) bool { return a.path == b.path }) {
		if found, err = s.loosePrefixed(snap.dirs, &p, found); err != nil {
			return nil, err
		}
	}
	found, damage := snap.prefixed(&p, found)
	slices.SortFunc(found, git.ObjectID.Compare)
	found = slices.DeleteFunc(slices.Compact(found), s.Purged)
	if len(found) > maxPrefixed {
		return nil, errManyPrefixed
	}
	if len(found) == 0 && damage != nil {
		return nil, fault.Wrap(fault.Corrupt, "an object index is damaged", damage)
	}
	return found, nil
}

// loosePrefixed adds loose objects of all directories.
func (s *Store) loosePrefixed(dirs []*objectDir, p *Prefix, found []git.ObjectID) ([]git.ObjectID, error) {
	for _, d := range dirs {
		for id, err := range looseIn(d.path, p.least.Raw()[0], s.format) {
			switch {
			case transient(err):
				return nil, fault.Wrap(fault.Unavailable, "too many files are open", err)
			case err != nil:
				return nil, fault.Wrap(fault.Internal, "looking for objects", err)
			case p.begins(id.Raw()):
				found = append(found, id)
			}
		}
		if len(found) > 2*maxPrefixed {
			return nil, errManyPrefixed
		}
	}
	return found, nil
}

// prefixed adds the objects of all packs. It skips damaged indexes, and returns the error of the last one.
func (snap *snapshot) prefixed(p *Prefix, found []git.ObjectID) (all []git.ObjectID, damage error) {
	add := func(raw []byte) { found = append(found, git.RawObjectID(raw)) }
	for _, d := range snap.dirs {
		if d.midx != nil {
			l := d.midx.layout
			damage = errors.Join(damage, d.midx.file.Do(func(b []byte) error {
				eachPrefixed(b, &l.fanout, l.ids, l.hash, p, add)
				return nil
			}))
		}
		for _, pack := range d.packs {
			l := pack.index.layout
			damage = errors.Join(damage, pack.index.file.Do(func(b []byte) error {
				eachPrefixed(b, &l.fanout, l.ids, l.stride, p, add)
				return nil
			}))
		}
	}
	return found, damage
}

// eachPrefixed calls fn for the IDs of a sorted table that begin with a prefix, for at most maxPrefixed+1 of them.
func eachPrefixed(b []byte, f *fanout, ids, stride int, p *Prefix, fn func(raw []byte)) {
	least := p.least.Raw()
	at := func(i int) []byte { return b[ids+i*stride:][:len(least)] }
	lo, hi := f.bucket(least[0])
	first := lo + sort.Search(hi-lo, func(i int) bool { return bytes.Compare(at(lo+i), least) >= 0 })
	for i := first; i < min(hi, first+maxPrefixed+1) && p.begins(at(i)); i++ {
		fn(at(i))
	}
}
