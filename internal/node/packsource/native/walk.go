package native

import (
	"bytes"
	"cmp"
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
	each   eachEntry // entry, unless the trees are those of the client

	lenient bool // ignore missing trees, which the client has
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
func (w *treeWalk) add(raw []byte) error { return w.addTo(&w.next, w.passing(), raw) }

// passing returns the set of trees that pass the filter, or nil.
func (w *treeWalk) passing() *objectSet {
	if !w.s.filter.trees {
		return nil
	}
	return w.s.chosen
}

// choose adds a tree that the caller reads. It reports whether it is new.
func (w *treeWalk) choose(raw []byte) bool { _, isNew := w.addNew(w.passing(), raw); return isNew }

// addWanted adds a tree to the pack that a filter does not omit.
func (w *treeWalk) addWanted(raw []byte) error {
	w.s.addTo(w.s.chosen, raw) // a bitmap may have marked it as walked
	return w.addTo(&w.wanted, w.s.chosen, raw)
}

// addTo adds a tree to a level and to a set, which may be nil, if it is new.
func (w *treeWalk) addTo(level *trees, set *objectSet, raw []byte) error {
	at, isNew := w.addNew(set, raw)
	if !isNew {
		return nil
	}
	level.count++
	if at.source < 0 {
		level.loose = append(level.loose, git.RawObjectID(raw))
		return nil
	}
	offset, err := w.s.view.sources[at.source].Offset(at.pos)
	if err != nil {
		return err
	}
	level.packed[at.source] = append(level.packed[at.source], uint64(offset)<<w.shift[at.source]|uint64(at.pos))
	return nil
}

// addNew adds a tree to a set, which may be nil, if it was not walked and the client does not have it. The source of a
// loose tree is -1.
func (w *treeWalk) addNew(set *objectSet, raw []byte) (at place, isNew bool) {
	s := w.s
	at, ok := s.view.find(raw)
	if !ok {
		id := git.RawObjectID(raw)
		if isNew = s.walked.addLoose(id); isNew && set != nil {
			set.addLoose(id)
		}
		return place{source: -1}, isNew
	}
	if !s.walked.add(at) || set != s.known && s.reached.has(raw) {
		return at, false
	}
	if set != nil {
		set.add(at)
	}
	return at, true
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
	if s.known != nil && s.known.has(at) || s.chosen.has(at) || s.reached.has(raw) {
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

// walkKnown adds trees of the client to known, with all that is in them.
func (w *treeWalk) walkKnown(roots [][]byte) error {
	w.each = func(typ git.ObjectType, _, raw []byte) error {
		if typ == git.Tree {
			return w.addTo(&w.next, w.s.known, raw)
		}
		w.s.addTo(w.s.known, raw)
		return nil
	}
	w.lenient = true
	defer func() { w.each, w.lenient = w.entry, false }()
	for _, root := range roots {
		if err := w.addTo(&w.next, w.s.known, root); err != nil {
			return err
		}
	}
	for w.next.count > 0 {
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
		if err := w.loose(id); err != nil && !(w.lenient && fault.Is(err, fault.NotFound)) {
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
	o, data, err := w.packedData(from, pos, git.Tree)
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

// packedData reads an object of a source, or if it is damaged there, the content of another copy.
func (w *treeWalk) packedData(from *source, pos int, typ git.ObjectType) (o *pack.Object, data []byte, err error) {
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
		data, err = w.looseData(git.RawObjectID(from.ID(pos)), typ)
		return nil, data, err
	}
	if err == nil && o.Type != typ {
		err = errType(git.RawObjectID(from.ID(pos)), o.Type, typ)
	}
	return o, nil, err
}

// loose handles a loose tree.
func (w *treeWalk) loose(id git.ObjectID) error {
	if err := w.s.step(); err != nil {
		return err
	}
	data, err := w.looseData(id, git.Tree)
	if err != nil {
		return err
	}
	return w.entries(data, nil)
}

// looseData reads an object through the store.
func (w *treeWalk) looseData(id git.ObjectID, typ git.ObjectType) ([]byte, error) {
	found, data, err := w.s.store.Read(id, 0)
	if err == nil && found != typ {
		err = errType(id, found, typ)
	}
	if err == nil {
		err = w.s.spend(int64(len(data)))
	}
	return data, err
}

// data reads a tree. It is valid until the next object is read, or longer (pack.Reader.Turns).
func (w *treeWalk) data(id git.ObjectID) ([]byte, error) { return w.object(id, git.Tree) }

// object reads an object of a type, as data does.
func (w *treeWalk) object(id git.ObjectID, typ git.ObjectType) ([]byte, error) {
	at, ok := w.s.view.find(id.Raw())
	if !ok {
		return w.looseData(id, typ)
	}
	o, data, err := w.packedData(w.s.view.sources[at.source], at.pos, typ)
	if err != nil || o == nil {
		return data, err
	}
	return o.Data, nil
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

// after skips the entries of a tree that come before an entry, until that entry itself.
func after(tree, entry []byte, size int) []byte {
	if len(tree) == 0 || bytes.HasPrefix(tree, entry) {
		return tree
	}
	name, isTree := entryName(entry, size), entry[0] == '4' // 40000
	for len(tree) > 0 && !bytes.HasPrefix(tree, entry) {
		n := entryLength(tree, size)
		if n == 0 || compareNames(entryName(tree[:n], size), tree[0] == '4', name, isTree) >= 0 {
			break
		}
		tree = tree[n:]
	}
	return tree
}

// compareNames compares the names of two entries by the order of trees: those of directories as if they ended with a
// slash. A file and a directory can have the same name, because they are in different trees.
func compareNames(a []byte, isTree bool, b []byte, isTree2 bool) int {
	n := min(len(a), len(b))
	if c := bytes.Compare(a[:n], b[:n]); c != 0 {
		return c
	}
	return cmp.Compare(nameAt(a, n, isTree), nameAt(b, n, isTree2))
}

// nameAt returns the byte at a position of a name, or the byte after it that decides the order.
func nameAt(name []byte, at int, isTree bool) byte {
	switch {
	case at < len(name):
		return name[at]
	case isTree:
		return '/'
	}
	return 0
}

func errType(id git.ObjectID, found, want git.ObjectType) error {
	return fault.New(fault.Corrupt, "object %s is a %s where a %s should be", id, found, want)
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
