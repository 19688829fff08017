package pack

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
)

// Entry types that are not object types (gitformat-pack, "Object types").
const (
	OfsDelta = 6
	RefDelta = 7
)

// MaxEntryHeader is the maximum length of an entry's header: a size, and a distance or an object ID.
const MaxEntryHeader = 10 + 32

// EntryHeader is the header of a pack entry.
type EntryHeader struct {
	Kind     byte   // an object type, OfsDelta or RefDelta
	Length   int    // of the header
	Size     int64  // of the inflated stream: the object, or the delta
	Distance int64  // OfsDelta: how far before the entry its base is
	Base     []byte // RefDelta: raw ID, part of the entry
}

// IsDelta reports whether the entry is a delta.
func (e *EntryHeader) IsDelta() bool { return e.Kind == OfsDelta || e.Kind == RefDelta }

// ParseEntry parses the header at the beginning of an entry (gitformat-pack, "pack-*.pack files"). hash is the length
// of a raw object ID.
func ParseEntry(b []byte, hash int) (e EntryHeader, err error) {
	if len(b) == 0 {
		return e, errEntryShort
	}
	c := b[0]
	e.Kind, e.Size = c>>4&7, int64(c&0xf)
	n := 1
	for shift := 4; c&0x80 != 0; shift += 7 {
		if n == len(b) {
			return e, errEntryShort
		}
		if shift > 53 { // a size of 2^60 and more
			return e, errEntrySize
		}
		c = b[n]
		n++
		e.Size |= int64(c&0x7f) << shift
	}
	switch e.Kind {
	case byte(git.Commit), byte(git.Tree), byte(git.Blob), byte(git.Tag):
	case RefDelta:
		if n+hash > len(b) {
			return e, errEntryShort
		}
		e.Base = b[n : n+hash]
		n += hash
	case OfsDelta: // big-endian groups of seven bits, each but the last plus one
		for e.Distance, c = -1, 0x80; c&0x80 != 0; n++ {
			if n == len(b) {
				return e, errEntryShort
			}
			if e.Distance >= 1<<54 {
				return e, errEntrySize
			}
			c = b[n]
			e.Distance = (e.Distance+1)<<7 | int64(c&0x7f)
		}
		if e.Distance == 0 {
			return e, errEntryBase
		}
	default:
		return e, fmt.Errorf("entry type %d is not known", e.Kind)
	}
	e.Length = n
	return e, nil
}

// check compares the header of an entry at an offset with the pack, whose entries end at end.
func (e *EntryHeader) check(at, end int64) error {
	switch {
	case e.Kind == OfsDelta && at-e.Distance < packHeader:
		return errEntryBase
	case e.Size/inflateRatio > end-at:
		return errEntrySize
	}
	return nil
}

const (
	// maxChain is the maximum length of a chain of deltas. Git makes chains of 50, and of at most 4,095 if configured.
	maxChain = 10_000
	// maxWork is the maximum number of bytes that resolving one chain may produce.
	maxWork = 4 << 30
)

var (
	errEntrySize  = errors.New("the entry claims more bytes than its pack can hold")
	errEntryShort = errors.New("the entry's header ends early")
	errEntryBase  = errors.New("the delta has its base outside the pack")
	errChain      = errors.New("the chain of deltas is too long or a loop")
)

// location is a place in a pack.
type location struct {
	pack   *packFile
	offset int64
}

// link is an entry of a delta chain.
type link struct {
	open *openPack
	at   int64 // the entry itself
	data int64 // its zlib stream
	size int64 // of the inflated stream
}

// readEntry reads the header at an offset. Then sc.in is at the zlib stream. The Base is valid until sc is used next.
func (sc *scratch) readEntry(o *openPack, at int64) (EntryHeader, error) {
	if at < packHeader || at >= o.size {
		return EntryHeader{}, fmt.Errorf("offset %d is outside the pack", at)
	}
	sc.seek(o.file, at, o.size)
	b, readErr := sc.in.Peek(MaxEntryHeader)
	e, err := ParseEntry(b, sc.format.Size())
	if err == nil {
		err = e.check(at, o.size)
	}
	if err != nil && readErr != nil {
		err = readErr
	}
	sc.in.Discard(e.Length)
	return e, err
}

// base is the root of a delta chain: a pack entry that is not a delta, or an object outside packs.
type base struct {
	typ   git.ObjectType
	open  *openPack // nil: the object is ref, and not in a pack
	at    int64
	size  int64
	ready bool   // data is there already; it is shared and not to be changed
	data  []byte // if ready
	ref   git.ObjectID
}

// descend follows a chain of deltas from loc to its root. It stores the deltas in sc.chain, that of the object first.
// It does not read a root in a pack: sc.in is then at its zlib stream.
func (s *Store) descend(snap *snapshot, sc *scratch, loc location, useCache bool) (b base, err error) {
	sc.chain = sc.chain[:0]
	// The location when the length was last a power of two. A loop reaches it again.
	var mark location
	for {
		if loc == mark {
			return b, damaged(loc, errChain)
		}
		if n := len(sc.chain); n&(n-1) == 0 {
			mark = loc
		}
		o, err := s.hold(sc, loc.pack)
		if err != nil {
			return b, err
		}
		if useCache {
			if typ, data, ok := s.bases.get(loc); ok {
				return base{typ: typ, open: o, at: loc.offset, size: int64(len(data)), ready: true, data: data}, nil
			}
		}
		e, err := sc.readEntry(o, loc.offset)
		if err != nil {
			return b, damaged(loc, err)
		}
		if !e.IsDelta() {
			return base{typ: git.ObjectType(e.Kind), open: o, at: loc.offset, size: e.Size}, nil
		}
		if len(sc.chain) == maxChain {
			return b, damaged(loc, errChain)
		}
		sc.chain = append(sc.chain, link{open: o, at: loc.offset, data: sc.offset(), size: e.Size})
		if e.Kind == OfsDelta {
			loc.offset -= e.Distance
			continue
		}
		id := git.RawObjectID(e.Base)
		next, err := s.findBase(snap, loc.pack, &id)
		if err != nil {
			return b, damaged(loc, err)
		}
		if next.pack == nil {
			return base{ref: id}, nil
		}
		loc = next
	}
}

// findBase locates the base of a REF_DELTA: in the same pack, where git puts it, or otherwise anywhere.
func (s *Store) findBase(snap *snapshot, p *packFile, id *git.ObjectID) (location, error) {
	if p.index != nil {
		if offset, ok, err := p.index.find(id.Raw()); ok || err != nil {
			return location{p, offset}, err
		}
	}
	loc, _, err := snap.find(s, id)
	return loc, err
}

// hold keeps a pack open while sc is in use.
func (s *Store) hold(sc *scratch, p *packFile) (*openPack, error) {
	for i := len(sc.held) - 1; i >= 0; i-- {
		if sc.held[i].pack == p {
			return sc.held[i], nil
		}
	}
	if len(sc.held) == maxHeld {
		return nil, damaged(location{p, 0}, errChain)
	}
	o, err := s.files.acquire(p)
	if err != nil {
		if errors.Is(err, errGone) || transient(err) {
			return nil, err
		}
		return nil, damaged(location{p, 0}, err)
	}
	sc.held = append(sc.held, o)
	return o, nil
}

// maxHeld is the maximum number of packs of one read.
const maxHeld = 16

func (s *Store) releaseAll(sc *scratch) {
	for _, o := range sc.held {
		s.files.release(o)
	}
	clear(sc.held)
	sc.held = sc.held[:0]
}

// unpack reads the object whose entry is at loc.
func (s *Store) unpack(snap *snapshot, sc *scratch, loc location, limit int64) (git.ObjectType, []byte, error) {
	b, err := s.descend(snap, sc, loc, true)
	if err != nil {
		return 0, nil, err
	}
	if b.open == nil {
		if b.typ, b.data, err = s.readLoose(snap, sc, &b.ref, max(limit, s.maxObject)); err != nil {
			return 0, nil, damaged(loc, fmt.Errorf("the base %s: %w", b.ref, err))
		}
		b.size, b.ready = int64(len(b.data)), true
	}
	if len(sc.chain) > 0 {
		return s.resolve(sc, loc, b, limit)
	}
	if b.size > limit {
		return 0, nil, errTooLarge(b.size, limit)
	}
	data := b.data
	switch {
	case b.ready && sc.share:
	case b.ready:
		data = bytes.Clone(b.data)
	default:
		data = make([]byte, b.size)
		if err := sc.inflate(data); err != nil {
			return 0, nil, damaged(loc, err)
		}
		if sc.share {
			s.bases.put(loc, b.typ, data)
		}
	}
	return b.typ, data, nil
}

// resolve applies the deltas of sc.chain to their root, the last first.
func (s *Store) resolve(sc *scratch, loc location, b base, limit int64) (git.ObjectType, []byte, error) {
	between := max(limit, s.maxObject) // for all but the object itself
	source, err := s.rootData(sc, loc, b, between)
	if err != nil {
		return 0, nil, err
	}
	var work int64
	for i := len(sc.chain) - 1; i >= 0; i-- {
		l := sc.chain[i]
		if l.size > between {
			return 0, nil, errTooLarge(l.size, between)
		}
		delta := sc.buffer(0, l.size)
		sc.seek(l.open.file, l.data, l.open.size)
		if err := sc.inflate(delta); err != nil {
			return 0, nil, damaged(location{l.open.pack, l.at}, err)
		}
		from, to, instructions, err := deltaSizes(delta)
		if err == nil && from != int64(len(source)) {
			err = errDeltaBase
		}
		if err != nil {
			return 0, nil, damaged(location{l.open.pack, l.at}, err)
		}
		if work += to; work > maxWork {
			return 0, nil, errTooMuchWork()
		}
		most := between
		if i == 0 {
			most = limit
		}
		if to > most {
			return 0, nil, errTooLarge(to, most)
		}
		target := s.targetBuffer(sc, i, to)
		if err := applyDelta(target, source, instructions); err != nil {
			return 0, nil, damaged(location{l.open.pack, l.at}, err)
		}
		if i > 0 || sc.share {
			s.bases.put(location{l.open.pack, l.at}, b.typ, target)
		}
		source = target
	}
	return b.typ, source, nil
}

// rootData returns the root of a chain, and inflates it if necessary.
func (s *Store) rootData(sc *scratch, loc location, b base, limit int64) ([]byte, error) {
	if b.size > limit {
		return nil, errTooLarge(b.size, limit)
	}
	if b.ready {
		return b.data, nil
	}
	root := s.targetBuffer(sc, len(sc.chain), b.size)
	if err := sc.inflate(root); err != nil {
		return nil, damaged(location{b.open.pack, b.at}, err)
	}
	s.bases.put(location{b.open.pack, b.at}, b.typ, root)
	return root, nil
}

// targetBuffer returns the buffer for the result at a depth of the chain. The object itself (depth 0) and results to be
// cached get a new buffer; others use two spare buffers in turn.
func (s *Store) targetBuffer(sc *scratch, depth int, size int64) []byte {
	if depth == 0 || s.bases.wants(size) {
		return make([]byte, size)
	}
	return sc.buffer(1+depth%2, size)
}

// damaged returns an error with the pack and the offset of the damage.
func damaged(loc location, err error) error {
	if errors.Is(err, errGone) || fault.Is(err, fault.Corrupt) {
		return err
	}
	if loc.pack == nil {
		return fault.Wrap(fault.Corrupt, "a loose object is damaged", err)
	}
	return fault.Wrap(fault.Corrupt, "a packed object is damaged",
		fmt.Errorf("pack %s, offset %d: %w", loc.pack.name(), loc.offset, err))
}

func errTooMuchWork() error {
	return fault.New(fault.Invalid, "resolving the object's deltas takes more than %d bytes", int64(maxWork))
}

func errTooLarge(size, limit int64) error {
	return fault.New(fault.Invalid, "the object has %d bytes, more than the limit of %d", size, limit)
}

// describe reads the type and size of the object whose entry is at loc; of deltas only the heads are inflated.
func (s *Store) describe(snap *snapshot, sc *scratch, loc location) (git.ObjectType, int64, error) {
	b, err := s.descend(snap, sc, loc, false)
	if err == nil && b.open == nil {
		if b.typ, _, err = s.describeLoose(snap, sc, &b.ref); err != nil {
			err = damaged(loc, fmt.Errorf("the base %s: %w", b.ref, err))
		}
	}
	if err != nil || len(sc.chain) == 0 {
		return b.typ, b.size, err
	}
	l := sc.chain[0]
	sc.seek(l.open.file, l.data, l.open.size)
	head := sc.small[:20]
	n, err := sc.peek(head)
	if err != nil {
		return 0, 0, damaged(loc, err)
	}
	_, size, _, err := deltaSizes(head[:n])
	if err != nil {
		return 0, 0, damaged(loc, err)
	}
	return b.typ, size, nil
}
