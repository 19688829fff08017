package native

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/bits"
	"slices"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
)

// treeWalk walks trees level by level, each level in the order of the offsets. So packs are read forwards, and delta
// bases, which git puts before their deltas, are read once. The level of a tree is its smallest depth on any path,
// which is what filters of the kind tree:N need. Memory is bounded by the largest level.
type treeWalk struct {
	s      *selection
	reader *pack.Reader
	shift  []int     // by source: the number of bits of a position
	wanted trees     // wanted trees: a filter is applied from their entries on, as to root trees
	level  trees     // to be read now
	next   trees     // to be read after that
	depth  uint64    // of the trees in next
	each   eachEntry // entry
}

// trees are trees to be read.
type trees struct {
	packed [][]uint64 // by source: the offset of each, and in the lower bits its position
	loose  []git.ObjectID
	count  int
}

// baseMemory is the maximum memory for the delta bases of trees.
const baseMemory = 8 << 20

func (w *treeWalk) open(s *selection) {
	packs := make([]*pack.Raw, len(s.view.sources))
	w.shift = make([]int, len(packs))
	for i, source := range s.view.sources {
		packs[i], w.shift[i] = source.Raw, bits.Len(uint(source.Len()))
	}
	w.s, w.each, w.reader = s, w.entry, pack.NewReader(s.store, packs, baseMemory)
	for _, t := range []*trees{&w.wanted, &w.level, &w.next} {
		t.packed = make([][]uint64, len(packs))
	}
}

// add adds a tree of the next level, if it is new.
func (w *treeWalk) add(raw []byte) error {
	return w.addTo(&w.next, w.s.filter.trees, raw)
}

// addWanted adds a tree to the pack that a filter does not omit.
func (w *treeWalk) addWanted(raw []byte) error {
	w.s.addTo(w.s.chosen, raw) // a bitmap may have marked it as walked
	return w.addTo(&w.wanted, true, raw)
}

func (w *treeWalk) addTo(level *trees, choose bool, raw []byte) error {
	s := w.s
	at, ok := s.view.find(raw)
	if !ok {
		id := git.RawObjectID(raw)
		if s.walked.addLoose(id) {
			if choose {
				s.chosen.addLoose(id)
			}
			level.loose = append(level.loose, id)
			level.count++
		}
		return nil
	}
	if !s.walked.add(at) {
		return nil
	}
	if choose {
		s.chosen.add(at)
	}
	offset, err := s.view.sources[at.source].Offset(at.pos)
	if err != nil {
		return err
	}
	level.packed[at.source] = append(level.packed[at.source], uint64(offset)<<w.shift[at.source]|uint64(at.pos))
	level.count++
	return nil
}

// addBlob adds a blob to the pack, unless the client has it or the filter omits it.
func (w *treeWalk) addBlob(raw []byte) error {
	s := w.s
	if !s.filter.blobs {
		return nil
	}
	at, ok := s.view.find(raw)
	if !ok {
		return w.addLooseBlob(git.RawObjectID(raw))
	}
	if s.known != nil && s.known.has(at) || s.chosen.has(at) {
		return nil
	}
	if s.filter.limit < math.MaxUint64 {
		if passes, err := w.isSmall(at); !passes || err != nil {
			return err
		}
	}
	s.chosen.add(at)
	return nil
}

// addLooseBlob adds a blob that is in no source. It may be missing.
func (w *treeWalk) addLooseBlob(id git.ObjectID) error {
	s := w.s
	if s.known != nil && s.known.hasLoose(id) || s.chosen.hasLoose(id) {
		return nil
	}
	typ, size, err := s.header(id)
	if err != nil {
		return err
	}
	if typ != git.Blob || uint64(size) < s.filter.limit {
		s.chosen.addLoose(id)
	}
	return nil
}

// isSmall reports whether a blob passes the limit of the filter.
func (w *treeWalk) isSmall(at place) (bool, error) {
	s := w.s
	if s.omitted == nil {
		s.omitted = s.view.newSet()
	}
	if s.omitted.has(at) {
		return false, nil
	}
	typ, size, err := s.header(git.RawObjectID(s.view.id(at)))
	if err != nil || typ != git.Blob || uint64(size) < s.filter.limit {
		return err == nil, err
	}
	s.omitted.add(at)
	return false, nil
}

// walk walks all trees that were added.
func (w *treeWalk) walk() error {
	if !w.s.filter.passesAt(0) {
		return nil
	}
	if err := w.read(&w.wanted); err != nil {
		return err
	}
	for w.next.count > 0 {
		if w.depth++; !w.s.filter.passesAt(w.depth) {
			return nil
		}
		w.level, w.next = w.next, w.level
		if err := w.read(&w.level); err != nil {
			return err
		}
	}
	return nil
}

// read reads trees, and adds what they contain.
func (w *treeWalk) read(level *trees) error {
	for i, packed := range level.packed {
		from := w.s.view.sources[i]
		slices.Sort(packed)
		for _, tree := range packed {
			if err := w.packed(from, int(tree&(1<<w.shift[i]-1))); err != nil {
				return err
			}
		}
		level.packed[i] = packed[:0]
	}
	for _, id := range level.loose {
		if err := w.loose(id); err != nil {
			return err
		}
	}
	level.loose, level.count = level.loose[:0], 0
	return nil
}

// memory estimates the memory of the walk in bytes.
func (w *treeWalk) memory() int64 {
	n := int64(baseMemory)
	for _, t := range []*trees{&w.wanted, &w.level, &w.next} {
		for _, packed := range t.packed {
			n += 8 * int64(cap(packed))
		}
		n += 33 * int64(cap(t.loose))
	}
	return n
}

// packed handles a tree of a source.
func (w *treeWalk) packed(from *source, pos int) error {
	if err := w.s.step(); err != nil {
		return err
	}
	o, data, err := w.packedData(from, pos)
	if err != nil {
		return err
	}
	if o == nil {
		return w.entries(data, nil)
	}
	o.Mark = true
	if o.Base != nil && o.Base.Mark {
		return w.entries(o.Data, o.Base.Data)
	}
	return w.entries(o.Data, nil)
}

// packedData reads a tree of a source, or if it is damaged there, the content of another copy.
func (w *treeWalk) packedData(from *source, pos int) (o *pack.Object, data []byte, err error) {
	o, err = w.reader.Read(from.Raw, pos)
	work := w.reader.Work
	w.reader.Work = 0
	if o != nil {
		work += int64(len(o.Data))
	}
	if err := w.s.spend(work); err != nil {
		return nil, nil, err
	}
	if fault.Is(err, fault.Corrupt) {
		data, err = w.looseData(git.RawObjectID(from.ID(pos)))
		return nil, data, err
	}
	if err == nil && o.Type != git.Tree {
		err = errNoTree(git.RawObjectID(from.ID(pos)), o.Type)
	}
	return o, nil, err
}

// loose handles a loose tree.
func (w *treeWalk) loose(id git.ObjectID) error {
	if err := w.s.step(); err != nil {
		return err
	}
	data, err := w.looseData(id)
	if err != nil {
		return err
	}
	return w.entries(data, nil)
}

// looseData reads a tree through the store.
func (w *treeWalk) looseData(id git.ObjectID) ([]byte, error) {
	typ, data, err := w.s.store.Read(id, 0)
	if err == nil && typ != git.Tree {
		err = errNoTree(id, typ)
	}
	if err == nil {
		err = w.s.spend(int64(len(data)))
	}
	return data, err
}

// entries handles the entries of a tree. It skips those that are also in a tree that was walked.
func (w *treeWalk) entries(data, walked []byte) error {
	return newEntries(data, walked, w.s.view.format.Size(), w.each)
}

// entry handles an entry of a tree.
func (w *treeWalk) entry(typ git.ObjectType, _, raw []byte) error {
	if typ == git.Tree {
		return w.add(raw)
	}
	return w.addBlob(raw)
}

// eachEntry is called with the type of the object of an entry, the entry, and the raw ID of the object.
type eachEntry func(typ git.ObjectType, entry, raw []byte) error

// newEntries calls fn for the trees and blobs in a tree that an older tree does not have. size is the length of an ID.
func newEntries(data, old []byte, size int, fn eachEntry) error {
	for {
		if len(old) > 0 {
			n := sameEntries(data, old, size)
			data, old = data[n:], old[n:]
		}
		if len(data) == 0 {
			return nil
		}
		n := entryLength(data, size)
		if n == 0 {
			return errTree()
		}
		entry := data[:n]
		if old = after(old, entry, size); bytes.HasPrefix(old, entry) {
			continue
		}
		data = data[n:]
		switch typ := entryType(entry); typ {
		case git.Tree, git.Blob:
			if err := fn(typ, entry, entry[n-size:]); err != nil {
				return err
			}
		case 0:
			return errTree()
		}
	}
}

// sameEntries returns the length of the entries that two trees begin with.
func sameEntries(a, b []byte, size int) (n int) {
	same := 0
	for same+8 <= len(a) && same+8 <= len(b) &&
		binary.NativeEndian.Uint64(a[same:]) == binary.NativeEndian.Uint64(b[same:]) {
		same += 8
	}
	for same < len(a) && same < len(b) && a[same] == b[same] {
		same++
	}
	for {
		length := entryLength(a[n:same], size)
		if length == 0 {
			return n
		}
		n += length
	}
}

// after skips the entries of a tree, the first of which is not entry, with names before that of the entry.
func after(tree, entry []byte, size int) []byte {
	for len(tree) > 0 && !bytes.HasPrefix(tree, entry) {
		n := entryLength(tree, size)
		if n == 0 || bytes.Compare(entryName(tree[:n], size), entryName(entry, size)) >= 0 {
			break
		}
		tree = tree[n:]
	}
	return tree
}

func errNoTree(id git.ObjectID, typ git.ObjectType) error {
	return fault.New(fault.Corrupt, "object %s is a %s where a tree should be", id, typ)
}

func errTree() error { return fault.New(fault.Corrupt, "bogus tree: an entry is damaged") }

// entryLength returns the length of the first entry of a tree, 0 if it is damaged.
func entryLength(data []byte, size int) int {
	end := bytes.IndexByte(data, 0)
	if end < 0 || len(data) < end+1+size {
		return 0
	}
	return end + 1 + size
}

// entryName returns the name of an entry.
func entryName(entry []byte, size int) []byte {
	name := entry[:len(entry)-size-1]
	return name[bytes.IndexByte(name, ' ')+1:]
}

// entryType returns the type of the object of an entry by its mode, Commit for a submodule, 0 if it is damaged.
func entryType(entry []byte) git.ObjectType {
	mode, _, err := pack.EntryMode(entry)
	if err != nil {
		return 0
	}
	switch mode {
	case pack.ModeTree:
		return git.Tree
	case pack.ModeGitlink:
		return git.Commit
	}
	return git.Blob
}
