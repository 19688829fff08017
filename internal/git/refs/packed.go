package refs

import (
	"bytes"
	"fmt"
	"hash/maphash"
	"io"
	"slices"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/disk"
)

// packed is one packed-refs file, sorted. It is immutable unless another program writes to a mapped file.
type packed struct {
	path   string
	file   *disk.Mapping // nil: the bytes are in mem
	mem    []byte
	body   int // offset of the first record
	format git.ObjectFormat
	peel   peelTrait
	sum    uint64 // of the bytes, if withSum is set
	tips   tipIndex
}

// peelTrait is the set of records whose ID is known not to be an annotated tag if they have no ^ line.
type peelTrait uint8

const (
	peelUnknown peelTrait = iota
	peelTags              // those below refs/tags/
	peelAll
)

// smallPacked is the maximum size of a packed-refs file that is read instead of mapped, in bytes.
const smallPacked = 16 << 10

// maxPackedLine is the maximum length of a line: an object ID, a space, a name, a line end.
const maxPackedLine = 64 + 1 + git.MaxRefName + 1

// openPacked opens packed-refs and returns its identity. If the file does not exist, it returns nil and no error.
func (s *Store) openPacked() (*packed, identity, error) {
	path := s.packedPath[:len(s.packedPath)-1]
	p := &packed{path: path, format: s.format}
	f, err := disk.Open(path)
	switch {
	case gone(err):
		return nil, identity{}, nil
	case fault.Is(err, fault.Corrupt):
		id, statErr := s.stat(s.packedPath, true)
		if statErr != nil {
			return nil, id, statErr
		}
		if id.kind == regular { // it was replaced: another identity makes the caller scan again
			id = identity{}
		}
		return nil, id, p.corrupt(0, "not a regular file")
	case err != nil:
		return nil, identity{}, ioError("opening", path, err)
	}
	defer f.Close()
	id, err := s.fstat(int(f.Fd()))
	if err != nil {
		return nil, id, ioError("looking at", path, err)
	}
	if id.Size <= smallPacked {
		if p.mem, err = io.ReadAll(io.LimitReader(f, smallPacked+1)); err != nil {
			return nil, id, ioError("reading", path, err)
		}
		return p, id, nil
	}
	if p.file, err = disk.Map(f); err != nil {
		return nil, id, ioError("mapping", path, err)
	}
	return p, id, nil
}

// do calls fn with the file's bytes, which it must not keep.
func (p *packed) do(fn func(b []byte) error) error {
	if p.file != nil {
		return p.file.Do(fn)
	}
	return fn(p.mem)
}

// checksum hashes the file's bytes.
func (p *packed) checksum(seed maphash.Seed) (sum uint64, err error) {
	err = p.do(func(b []byte) error { sum = maphash.Bytes(seed, b); return nil })
	return sum, err
}

// prepare reads the header and, if the file is not marked as sorted, sorts the records.
func (p *packed) prepare() error {
	sorted := false
	err := p.do(func(b []byte) (err error) {
		if len(b) > 0 && b[len(b)-1] != '\n' {
			return p.corrupt(bytes.LastIndexByte(b, '\n')+1, "last line without an end")
		}
		if len(b) == 0 || b[0] != '#' {
			return nil
		}
		p.body = bytes.IndexByte(b, '\n') + 1
		traits, ok := bytes.CutPrefix(b[:p.body-1], []byte("# pack-refs with:"))
		if !ok || p.body > maxPackedLine {
			return p.corrupt(0, "unknown header")
		}
		for trait := range strings.SplitSeq(string(traits), " ") {
			switch trait {
			case "sorted":
				sorted = true
			case "peeled":
				p.peel = max(p.peel, peelTags)
			case "fully-peeled":
				p.peel = peelAll
			}
		}
		return nil
	})
	if err != nil || sorted {
		return err
	}
	return p.sort()
}

// sort reads every record, and keeps a sorted copy if they are not in order.
func (p *packed) sort() error {
	type span struct {
		name     string
		from, to int
	}
	return p.do(func(b []byte) error {
		inOrder, last := true, []byte(nil)
		n := 0
		for off := p.body; off < len(b); n++ {
			r, err := p.record(b, off)
			if err != nil {
				return err
			}
			inOrder = inOrder && (last == nil || bytes.Compare(last, r.name) < 0)
			last, off = r.name, r.next
		}
		if inOrder {
			return nil
		}
		spans := make([]span, 0, n)
		for off := p.body; off < len(b); {
			r, err := p.record(b, off)
			if err != nil {
				return err
			}
			spans = append(spans, span{string(r.name), off, r.next})
			off = r.next
		}
		slices.SortStableFunc(spans, func(a, b span) int { return strings.Compare(a.name, b.name) })
		mem := make([]byte, 0, len(b)-p.body)
		for _, s := range spans {
			mem = append(mem, b[s.from:s.to]...)
		}
		p.file, p.mem, p.body = nil, mem, 0
		return nil
	})
}

// record is one ref in packed-refs; its slices lie in the file.
type record struct {
	name       []byte
	id, peeled git.ObjectID
	next       int // where the next record begins
	hasPeeled  bool
}

// record reads the record at an offset.
func (p *packed) record(b []byte, off int) (record, error) {
	n := p.format.HexSize()
	line, next := p.line(b, off)
	if len(line) < n+2 || line[n] != ' ' && line[n] != '\t' {
		return record{}, p.corrupt(off, "not an object ID and a ref")
	}
	id, err := git.ParseObjectID(line[:n])
	if err != nil {
		return record{}, p.corrupt(off, "not an object ID")
	}
	r := record{name: line[n+1:], id: id, next: next}
	if next < len(b) && b[next] == '^' {
		line, after := p.line(b, next)
		if len(line) != 1+n {
			return record{}, p.corrupt(next, "not a peeled object ID")
		}
		if r.peeled, err = git.ParseObjectID(line[1:]); err != nil {
			return record{}, p.corrupt(next, "not a peeled object ID")
		}
		r.next, r.hasPeeled = after, true
	}
	return r, nil
}

// line returns the line at an offset, without its end, and the offset of the next one. A line that is too long is
// empty.
func (p *packed) line(b []byte, off int) ([]byte, int) {
	i := bytes.IndexByte(b[off:min(off+maxPackedLine, len(b))], '\n')
	if i < 0 {
		return nil, len(b)
	}
	return b[off : off+i], off + i + 1
}

// start returns the offset of the record that contains the byte at i. A record begins at lo.
func (p *packed) start(b []byte, lo, i int) (int, error) {
	for {
		from := max(lo, i-maxPackedLine)
		j := bytes.LastIndexByte(b[from:i], '\n')
		if j < 0 && from > lo {
			return 0, p.corrupt(from, "line too long")
		}
		i = from + j + 1
		if i <= lo || b[i] != '^' {
			return i, nil
		}
		i--
	}
}

// search returns the offset of the first record whose name is not less than name; len(b) if there is none.
func (p *packed) search(b []byte, name string) (int, error) {
	return p.searchIn(b, p.body, len(b), name)
}

// firstStride is the first distance of searchFrom in bytes: a few records.
const firstStride = 128

// searchFrom searches a name that is probably soon after the record at hint. It doubles the distance each time, so that
// a sorted list of names costs little more than reading the records in order.
func (p *packed) searchFrom(b []byte, hint int, name string) (int, error) {
	n := p.format.HexSize()
	lo := p.body
	for stride, at := firstStride, hint; at < len(b); stride *= 2 {
		line, _ := p.line(b, at)
		if len(line) < n+2 {
			return 0, p.corrupt(at, "not an object ID and a ref")
		}
		switch found := line[n+1:]; {
		case string(found) == name:
			return at, nil
		case string(found) > name:
			return p.searchIn(b, lo, at, name)
		}
		lo = at
		next, err := p.start(b, lo, min(at+stride, len(b)-1))
		if err != nil {
			return 0, err
		}
		if next == lo && at+stride >= len(b) { // it was the last one
			break
		}
		at = next
	}
	return p.searchIn(b, lo, len(b), name)
}

// searchIn is search between two offsets at which records begin: the answer is one of them or between.
func (p *packed) searchIn(b []byte, lo, hi int, name string) (int, error) {
	n := p.format.HexSize()
	for lo < hi {
		mid, err := p.start(b, lo, lo+(hi-lo)/2)
		if err != nil {
			return 0, err
		}
		line, next := p.line(b, mid)
		if len(line) < n+2 {
			return 0, p.corrupt(mid, "not an object ID and a ref")
		}
		if string(line[n+1:]) >= name {
			hi = mid
			continue
		}
		if next < hi && b[next] == '^' {
			_, next = p.line(b, next)
		}
		lo = next
	}
	return lo, nil
}

// ref returns a record as a Ref without its name.
func (p *packed) ref(r *record) Ref {
	return Ref{
		ID: r.id, Peeled: r.peeled,
		PeelKnown: r.hasPeeled || p.peel == peelAll || p.peel == peelTags && bytes.HasPrefix(r.name,
			[]byte("refs/tags/")),
	}
}

// lookup finds one ref. A nil p has no refs.
func (p *packed) lookup(name git.RefName) (ref Ref, found bool, err error) {
	err = p.lookupAll(func(find finder) error {
		ref, found, err = find(name)
		return err
	})
	return ref, found, err
}

// finder finds one ref after the other.
type finder func(name git.RefName) (Ref, bool, error)

// lookupAll calls fn with a finder that is fast for names in order. A nil p has no refs.
func (p *packed) lookupAll(fn func(find finder) error) error {
	if p == nil {
		return fn(func(git.RefName) (Ref, bool, error) { return Ref{}, false, nil })
	}
	return p.do(func(b []byte) error {
		hint := len(b) // no hint yet
		return fn(func(name git.RefName) (Ref, bool, error) {
			off, err := p.searchFrom(b, hint, string(name))
			if err != nil || off == len(b) {
				return Ref{}, false, err
			}
			hint = off
			r, err := p.record(b, off)
			if err != nil || string(r.name) != string(name) || !isRefName(r.name) || r.id.IsZero() {
				return Ref{}, false, err
			}
			hint = r.next
			ref := p.ref(&r)
			ref.Name = name
			return ref, true, nil
		})
	})
}

// batchSize is the number of refs that a cursor reads at once.
const batchSize = 64

// cursor reads the refs whose names begin with a prefix, in batches, so that no callback runs inside the mapping.
type cursor struct {
	p      *packed
	prefix string
	from   string // the first name is not less
	off    int    // of the next record
	begun  bool   // off is valid
	done   bool
	batch  [batchSize]Ref
}

// next reads one batch. The names of a batch share one piece of memory.
func (c *cursor) next() ([]Ref, error) {
	var (
		n     int
		ends  [batchSize]int
		space [batchSize * 64]byte
		names = space[:0]
	)
	err := c.p.do(func(b []byte) (err error) {
		if !c.begun {
			if c.off, err = c.p.search(b, c.from); err != nil {
				return err
			}
			c.begun = true
		}
		for n < batchSize {
			if c.off == len(b) {
				c.done = true
				return nil
			}
			r, err := c.p.record(b, c.off)
			if err != nil {
				return err
			}
			if len(r.name) < len(c.prefix) || string(r.name[:len(c.prefix)]) != c.prefix {
				c.done = true
				return nil
			}
			c.off = r.next
			if !isRefName(r.name) || r.id.IsZero() {
				continue
			}
			c.batch[n] = c.p.ref(&r)
			names = append(names, r.name...)
			ends[n] = len(names)
			n++
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	all, from := git.RefName(names), 0
	for i := range n {
		c.batch[i].Name = all[from:ends[i]]
		from = ends[i]
	}
	return c.batch[:n], nil
}

// corrupt returns an error with the place in packed-refs.
func (p *packed) corrupt(off int, what string) error {
	return fault.Wrap(fault.Corrupt, fmt.Sprintf("packed-refs is damaged at byte %d", off), fmt.Errorf("%s: %s",
		p.path, what))
}
