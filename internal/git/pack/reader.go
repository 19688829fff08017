package pack

import (
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
)

// Reader reads many objects of raw packs, best in the order of their offsets. It keeps the objects that it has read up
// to a limit, as bases of the next deltas. It is used by one goroutine, inside Store.Raw, which closes it.
//
// Read compares the CRC-32 of each entry with the index. It compares the hash of an object with its ID only if there is
// no CRC-32, or if a base is in another pack. Unlike Store.Read it does not try another copy of a damaged object.
type Reader struct {
	MaxObject int64 // maximum size of an object, a base or a delta in bytes; NewReader sets it to that of the store
	Work      int64 // bytes that were inflated and copied, as a measure of time; the caller may reset it
	// Turns counts how often old objects were forgotten. An Object is valid until it has grown by two since the Read.
	Turns int

	store *Store
	packs []*Raw
	limit int64 // of the memory for kept objects in bytes

	window window
	zlib   inflater
	delta  []byte
	chain  []deltaLink

	young, old generation
}

// Object is an object that a Reader has read. It is valid until the next Read, or longer (Reader.Turns), and not to be
// changed.
type Object struct {
	Type git.ObjectType
	Data []byte
	Base *Object // if it is stored as a delta
	Mark bool    // for the caller to set; false again once the Reader does not keep the object any more
}

// deltaLink is a delta between an object and its base.
type deltaLink struct {
	entry
	size int64 // of the delta
}

// entry is an entry of a pack.
type entry struct {
	pack   *Raw
	pos    int // -1: not known
	offset int64
	header int // its length
}

// NewReader returns a reader that finds bases of other packs in packs, and in the store. It keeps objects of limit
// bytes together, and as much again for a moment.
func NewReader(store *Store, packs []*Raw, limit int64) *Reader {
	return &Reader{MaxObject: store.maxObject, store: store, packs: packs, limit: limit, young: newGeneration(),
		old: newGeneration()}
}

// Close ends the use of the Reader and of all Objects that it has read.
func (r *Reader) Close() {
	r.young.close()
	r.old.close()
}

// Read returns the object at a position of a pack. The error is Corrupt if the object or a base of it is damaged or
// missing, and Invalid if it is larger than MaxObject or has too many deltas.
func (r *Reader) Read(p *Raw, pos int) (*Object, error) {
	offset, err := p.Offset(pos)
	if err != nil {
		return nil, err
	}
	o, elsewhere, err := r.descend(entry{pack: p, pos: pos, offset: offset})
	if err != nil {
		return nil, err
	}
	begun := r.Work
	for i := len(r.chain) - 1; i >= 0; i-- {
		l := &r.chain[i]
		if r.Work-begun > maxWork {
			return nil, errTooMuchWork()
		}
		if o, err = r.apply(l, o); err != nil {
			return nil, l.damaged(err)
		}
	}
	if _, ok := p.CRC(pos); ok && !elsewhere {
		return o, nil
	}
	sc := takeScratch(r.store.format)
	defer sc.release()
	if id := git.RawObjectID(p.ID(pos)); !sc.verify(&id, o.Type, o.Data) {
		delete(r.young.objects, entryKey{p, offset})
		return nil, fault.Wrap(fault.Corrupt, "object "+id.String()+" is damaged", errHash)
	}
	return o, nil
}

// descend follows a chain of deltas to the first object that is kept or not a delta. It stores the deltas in r.chain,
// that of the object first. elsewhere reports whether a base is not in the pack of its delta.
func (r *Reader) descend(at entry) (o *Object, elsewhere bool, err error) {
	r.chain = r.chain[:0]
	for {
		if o := r.kept(at.pack, at.offset); o != nil {
			return o, elsewhere, nil
		}
		e, err := r.readHeader(&at)
		if err != nil {
			return nil, false, at.damaged(err)
		}
		if e.Size > r.MaxObject {
			return nil, false, errTooLarge(e.Size, r.MaxObject)
		}
		if !e.IsDelta() {
			o := r.keep(at.pack, at.offset, e.Size)
			o.Type = git.ObjectType(e.Kind)
			if err := r.inflate(&at, o.Data); err != nil {
				return nil, false, at.damaged(r.forget(&at, err))
			}
			return o, elsewhere, nil
		}
		if len(r.chain) == maxChain {
			return nil, false, at.damaged(errChain)
		}
		r.chain = append(r.chain, deltaLink{at, e.Size})
		if e.Kind == OfsDelta {
			at = entry{pack: at.pack, pos: -1, offset: at.offset - e.Distance}
			continue
		}
		from := at.pack
		if at, o, err = r.findBase(from, git.RawObjectID(e.Base)); err != nil || o != nil {
			return o, true, err
		}
		elsewhere = elsewhere || at.pack != from
	}
}

// readHeader reads the header of an entry.
func (r *Reader) readHeader(at *entry) (e EntryHeader, err error) {
	if at.offset < packHeader || at.offset >= at.pack.End {
		return e, fmt.Errorf("offset %d is outside the pack", at.offset)
	}
	b, err := r.window.bytes(at.pack, at.offset, MaxEntryHeader)
	if err != nil {
		return e, err
	}
	r.Work += headerWork
	if e, err = ParseEntry(b, r.store.format.Size()); err == nil {
		err = e.check(at.offset, at.pack.End)
	}
	at.header = e.Length
	return e, err
}

// inflate inflates the zlib stream of an entry into dst, and verifies the CRC-32 of the entry.
func (r *Reader) inflate(at *entry, dst []byte) error {
	rest := at.pack.End - at.offset
	for want := int64(at.header+len(dst)+len(dst)/256) + 64; ; want *= 2 {
		src, err := r.window.bytes(at.pack, at.offset, want)
		if err != nil {
			return err
		}
		r.Work += int64(len(dst))
		n, err := r.zlib.inflate(dst, src[at.header:])
		if err == errInput && int64(len(src)) < rest {
			if len(src) > 2*len(dst)+maxPadding {
				return errPadded
			}
			continue
		}
		if err != nil {
			return err
		}
		return at.verify(src[:at.header+n])
	}
}

const (
	// headerWork is the Work of a header: a pread if headers are far from each other.
	headerWork = 1 << 10
	// maxPadding is the size from which a zlib stream in memory must not be twice as long as its object. A stream can have
	// any number of empty blocks.
	maxPadding = 1 << 20
)

var errPadded = errors.New("the zlib stream is much longer than its object")

// verify compares the CRC-32 of an entry with the index, if it has one.
func (at *entry) verify(b []byte) error {
	if at.pos < 0 {
		order, err := at.pack.Order()
		if err != nil {
			return err
		}
		rank, ok := at.pack.Rank(order, at.offset)
		if !ok {
			return fmt.Errorf("no entry begins at offset %d", at.offset)
		}
		at.pos = int(order[rank])
	}
	if crc, ok := at.pack.CRC(at.pos); ok && crc != crc32.ChecksumIEEE(b) {
		return errCRC
	}
	return nil
}

var errCRC = errors.New("the CRC-32 of the entry is not that of its index")

// findBase finds the base of a REF_DELTA: in the same pack, another pack, or a loose object, which it returns.
func (r *Reader) findBase(p *Raw, id git.ObjectID) (at entry, o *Object, err error) {
	for i := -1; i < len(r.packs); i++ {
		if at.pack = p; i >= 0 {
			at.pack = r.packs[i]
		}
		pos, ok := at.pack.Find(id.Raw())
		if ok {
			at.pos = pos
			at.offset, err = at.pack.Offset(pos)
			return at, nil, err
		}
	}
	o = &Object{}
	if o.Type, o.Data, err = r.store.Read(id, 0); fault.Is(err, fault.NotFound) {
		err = fault.Wrap(fault.Corrupt, "the base of a delta is missing", err)
	}
	return at, o, err
}

// apply makes the object of a delta.
func (r *Reader) apply(l *deltaLink, base *Object) (*Object, error) {
	if int64(cap(r.delta)) < l.size {
		r.delta = make([]byte, l.size+l.size/2)
	}
	delta := r.delta[:l.size]
	if err := r.inflate(&l.entry, delta); err != nil {
		return nil, err
	}
	from, to, instructions, err := deltaSizes(delta)
	switch {
	case err != nil:
		return nil, err
	case from != int64(len(base.Data)):
		return nil, errDeltaBase
	case to > r.MaxObject:
		return nil, errTooLarge(to, r.MaxObject)
	}
	r.Work += to
	o := r.keep(l.pack, l.offset, to)
	o.Type, o.Base = base.Type, base
	if err := applyDelta(o.Data, base.Data, instructions); err != nil {
		return nil, r.forget(&l.entry, err)
	}
	return o, nil
}

// damaged returns an error with the pack and the offset of the damage.
func (at *entry) damaged(err error) error {
	if fault.Is(err, fault.Corrupt) || fault.Is(err, fault.Invalid) {
		return err
	}
	return fault.Wrap(fault.Corrupt, "a packed object is damaged",
		fmt.Errorf("pack %s, offset %d: %w", at.pack.Path, at.offset, err))
}

// window is a part of a pack in memory.
type window struct {
	pack  *Raw
	start int64
	data  []byte
	next  int // bytes of the next pread
}

const (
	minWindow = 4 << 10
	maxWindow = 256 << 10
)

// bytes returns the bytes of a pack from an offset on: at least want of them, unless its entries end before that. They
// are valid until the next call. Reads become larger while they go forwards.
func (w *window) bytes(p *Raw, offset, want int64) ([]byte, error) {
	want = min(want, p.End-offset)
	end := w.start + int64(len(w.data))
	if p == w.pack && offset >= w.start && offset+want <= end {
		return w.data[offset-w.start:], nil
	}
	if p == w.pack && offset >= w.start && offset < end+minWindow {
		w.next = min(2*w.next, maxWindow)
	} else {
		w.next = minWindow
	}
	size := min(max(want, int64(w.next)), p.End-offset)
	if int64(cap(w.data)) < size {
		w.data = make([]byte, size)
	}
	w.data = w.data[:size]
	w.pack, w.start = p, offset
	if n, err := p.File.ReadAt(w.data, offset); int64(n) < size {
		w.pack = nil
		if err == nil {
			err = errors.New("the pack ends early")
		}
		return nil, err
	}
	return w.data, nil
}
