package native

import (
	"maps"
	"math/bits"
	"slices"

	"github.com/packhorse-git/packhorse/internal/git"
)

// objectSet is a set of objects: a bit for each object of each source, and the IDs of loose objects.
type objectSet struct {
	view  *view
	bits  [][]uint64 // by source; nil: none of its objects
	loose map[git.ObjectID]struct{}
}

func (v *view) newSet() *objectSet {
	return &objectSet{view: v, bits: make([][]uint64, len(v.sources)), loose: map[git.ObjectID]struct{}{}}
}

// add adds the object at a place, and reports whether it is new.
func (s *objectSet) add(at place) bool {
	b := s.of(at.source)
	word, bit := at.pos/64, uint64(1)<<(at.pos%64)
	if b[word]&bit != 0 {
		return false
	}
	b[word] |= bit
	return true
}

// addLoose adds an object that is in no source, and reports whether it is new.
func (s *objectSet) addLoose(id git.ObjectID) bool {
	if _, ok := s.loose[id]; ok {
		return false
	}
	s.loose[id] = struct{}{}
	return true
}

func (s *objectSet) has(at place) bool {
	b := s.bits[at.source]
	return b != nil && b[at.pos/64]&(1<<(at.pos%64)) != 0
}

func (s *objectSet) hasLoose(id git.ObjectID) bool {
	_, ok := s.loose[id]
	return ok
}

// len counts the objects.
func (s *objectSet) len() int {
	n := len(s.loose)
	for i := range s.bits {
		n += s.count(i)
	}
	return n
}

// count counts the objects of a source.
func (s *objectSet) count(source int) (n int) {
	for _, word := range s.bits[source] {
		n += bits.OnesCount64(word)
	}
	return n
}

// of returns the bits of a source.
func (s *objectSet) of(source int) []uint64 {
	if s.bits[source] == nil {
		s.bits[source] = make([]uint64, (s.view.sources[source].Len()+63)/64)
	}
	return s.bits[source]
}

// addAll adds all objects of a source. No earlier source may have one of them.
func (s *objectSet) addAll(source int) {
	b := s.of(source)
	for i := range b {
		b[i] = ^uint64(0)
	}
	if rest := s.view.sources[source].Len() % 64; rest != 0 {
		b[len(b)-1] = 1<<rest - 1
	}
}

// byRank returns a function that returns the ranks of a source's objects in the order of their offsets, one after the
// other. order is the source's.
func (s *objectSet) byRank(source int, order []uint32) func() (rank int, ok bool) {
	const sparse = 32 // look-ups of ranks are cheaper than a scan if fewer objects than one in so many are chosen
	b, next := s.bits[source], 0
	if n := s.count(source); n < len(order)/sparse {
		ranks := s.ranks(source, order, n)
		return func() (int, bool) {
			if next == len(ranks) {
				return 0, false
			}
			next++
			return ranks[next-1], true
		}
	}
	return func() (int, bool) {
		for ; next < len(order); next++ {
			if pos := order[next]; b[pos/64]&(1<<(pos%64)) != 0 {
				next++
				return next - 1, true
			}
		}
		return 0, false
	}
}

// ranks lists the ranks of a source's n objects.
func (s *objectSet) ranks(source int, order []uint32, n int) []int {
	from, ranks := s.view.sources[source], make([]int, 0, n)
	for w, word := range s.bits[source] {
		for ; word != 0; word &= word - 1 {
			offset, err := from.Offset(w*64 + bits.TrailingZeros64(word))
			if err != nil {
				continue // Order has found it
			}
			if rank, ok := from.Rank(order, offset); ok {
				ranks = append(ranks, rank)
			}
		}
	}
	slices.Sort(ranks)
	return ranks
}

// looseIDs lists the loose objects in order.
func (s *objectSet) looseIDs() []git.ObjectID {
	return slices.SortedFunc(maps.Keys(s.loose), git.ObjectID.Compare)
}

// memory estimates the memory of a set, which may be nil, in bytes.
func (s *objectSet) memory() (n int64) {
	if s == nil {
		return 0
	}
	for _, b := range s.bits {
		n += 8 * int64(len(b))
	}
	return n + 64*int64(len(s.loose))
}
