package gittest

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/packhorse-git/packhorse/internal/git"
)

// Pack is the content of a pack (gitformat-pack(5)).
type Pack struct {
	Objects    map[git.ObjectID]git.ObjectType
	Bases      map[git.ObjectID]bool // objects outside of the pack that deltas refer to
	HasOffsets bool                  // a delta names its base by offset
	Late       []git.ObjectID        // deltas whose base comes later in the pack
	Named      []git.ObjectID        // deltas that name a base in the pack by its ID
	Depth      int                   // number of deltas in the longest chain
}

// maxDepth is the maximum length of a chain in git's packs (pack.depth).
const maxDepth = 50

// CheckDeltas returns an error unless the deltas are as git makes them: each base in the pack comes before its deltas,
// and chains are short. offsets reports whether the client understands them. If it does, git may still name a base in
// the pack by its ID, where it copies a part of a pack as a whole.
func (p *Pack) CheckDeltas(offsets bool) error {
	switch {
	case len(p.Late) > 0:
		return fmt.Errorf("the bases of %d deltas come later in the pack, first that of %v", len(p.Late), p.Late[0])
	case !offsets && p.HasOffsets:
		return errors.New("a delta names its base by offset, which the client does not understand")
	case p.Depth > maxDepth:
		return fmt.Errorf("the longest chain has %d deltas, want at most %d", p.Depth, maxDepth)
	}
	return nil
}

// IDs lists the objects, sorted.
func (p *Pack) IDs() []string {
	var ids []string
	for id := range p.Objects {
		ids = append(ids, id.String())
	}
	slices.Sort(ids)
	return ids
}

// Types of entries that are deltas.
const (
	offsetDelta = 6
	refDelta    = 7
)

type packEntry struct {
	typ     byte
	at      int64
	baseAt  int64
	baseID  git.ObjectID
	content []byte
}

// Object is an object of a repository.
type Object struct {
	Type git.ObjectType
	Data []byte
}

// Read reads objects, given by their IDs.
func (r *Repo) Read(ids []string) map[git.ObjectID]Object {
	r.t.Helper()
	objects := make(map[git.ObjectID]Object)
	for out := r.GitIn(strings.Join(ids, "\n")+"\n", "cat-file", "--batch"); out != ""; {
		head, rest, _ := strings.Cut(out, "\n") // "ID TYPE SIZE"
		words := strings.Fields(head)
		size, err := strconv.Atoi(words[len(words)-1])
		if err != nil {
			r.t.Fatalf("git cat-file --batch: %q", head)
		}
		typ, err := git.ParseObjectType(words[1])
		if err != nil {
			r.t.Fatal(err)
		}
		objects[git.MustParseObjectID(words[0])] = Object{typ, []byte(rest[:size])}
		out = strings.TrimPrefix(rest[size:], "\n")
	}
	return objects
}

// packReader holds the objects of a pack that are known so far.
type packReader struct {
	*Pack
	format git.ObjectFormat
	at     map[int64]storedObject
	byID   map[git.ObjectID]storedObject
}

// storedObject is an object of a pack with its offset and the number of deltas in its chain.
type storedObject struct {
	Object
	offset int64
	depth  int
}

// ReadPack reads a pack and all its objects. The function outside reads the bases that are not in the pack. A pack
// is invalid if it has a wrong checksum, an object twice, or bytes after its last object.
func ReadPack(b []byte, format git.ObjectFormat, outside func(git.ObjectID) (git.ObjectType, []byte, error)) (*Pack,
	error) {
	size := format.Size()
	if len(b) < 12+size || string(b[:4]) != "PACK" {
		return nil, errors.New("no pack")
	}
	sum := format.New()
	sum.Write(b[:len(b)-size])
	if !bytes.Equal(sum.Sum(nil), b[len(b)-size:]) {
		return nil, errors.New("bad checksum")
	}
	in := bytes.NewReader(b[:len(b)-size])
	in.Seek(12, io.SeekStart)
	r := &packReader{Pack: &Pack{Objects: make(map[git.ObjectID]git.ObjectType), Bases: make(map[git.ObjectID]bool)},
		format: format, at: make(map[int64]storedObject), byID: make(map[git.ObjectID]storedObject)}
	var deltas []packEntry
	var inflater io.ReadCloser
	for range binary.BigEndian.Uint32(b[8:]) {
		e, err := readEntry(in, format, &inflater)
		if err != nil {
			return nil, fmt.Errorf("entry at %d: %w", e.at, err)
		}
		r.HasOffsets = r.HasOffsets || e.typ == offsetDelta
		if e.typ >= offsetDelta {
			deltas = append(deltas, e)
		} else if err := r.add(storedObject{Object{git.ObjectType(e.typ), e.content}, e.at, 0}); err != nil {
			return nil, err
		}
	}
	if in.Len() != 0 {
		return nil, fmt.Errorf("%d bytes after the last object", in.Len())
	}
	return r.Pack, r.resolve(deltas, outside)
}

func (r *packReader) add(o storedObject) error {
	id := HashObject(r.format, o.Type, o.Data)
	if _, twice := r.Objects[id]; twice {
		return fmt.Errorf("object %v is in the pack twice", id)
	}
	r.Objects[id] = o.Type
	r.at[o.offset], r.byID[id] = o, o
	r.Depth = max(r.Depth, o.depth)
	return nil
}

// addDelta adds the object that a delta makes of its base.
func (r *packReader) addDelta(e *packEntry, base storedObject) error {
	data, err := applyDelta(base.Data, e.content)
	if err != nil {
		return err
	}
	id := HashObject(r.format, base.Type, data)
	if base.offset > e.at {
		r.Late = append(r.Late, id)
	}
	if e.typ == refDelta && base.offset > 0 {
		r.Named = append(r.Named, id)
	}
	return r.add(storedObject{Object{base.Type, data}, e.at, base.depth + 1})
}

// resolve applies the deltas whose bases are known until none is left. It reads bases from outside only if it has to.
func (r *packReader) resolve(deltas []packEntry, outside func(git.ObjectID) (git.ObjectType, []byte, error)) error {
	for useOutside := false; len(deltas) > 0; {
		var left []packEntry
		for _, e := range deltas {
			base, ok := r.at[e.baseAt]
			if e.typ == refDelta {
				base, ok = r.byID[e.baseID]
			}
			if !ok && useOutside && e.typ == refDelta {
				if typ, data, err := outside(e.baseID); err == nil {
					base, ok = storedObject{Object: Object{typ, data}}, true
					r.Bases[e.baseID] = true
				}
			}
			if !ok {
				left = append(left, e)
				continue
			}
			if err := r.addDelta(&e, base); err != nil {
				return err
			}
			useOutside = false
		}
		if len(left) == len(deltas) {
			if useOutside {
				return fmt.Errorf("%d deltas without base", len(left))
			}
			useOutside = true
		}
		deltas = left
	}
	return nil
}

// readEntry reads the next entry with the inflater of the entry before, or a new one.
func readEntry(in *bytes.Reader, format git.ObjectFormat, inflater *io.ReadCloser) (e packEntry, err error) {
	e.at = in.Size() - int64(in.Len())
	c, err := in.ReadByte()
	e.typ = c >> 4 & 7
	size, shift := uint64(c&0xf), 4
	for ; c&0x80 != 0 && err == nil; shift += 7 {
		c, err = in.ReadByte()
		size |= uint64(c&0x7f) << shift
	}
	switch e.typ {
	case offsetDelta:
		c, _ = in.ReadByte()
		n := int64(c & 0x7f)
		for c&0x80 != 0 {
			c, _ = in.ReadByte()
			n = (n+1)<<7 | int64(c&0x7f)
		}
		e.baseAt = e.at - n
	case refDelta:
		raw := make([]byte, format.Size())
		io.ReadFull(in, raw)
		e.baseID = git.RawObjectID(raw)
	}
	if err != nil {
		return e, err
	}
	if *inflater == nil {
		*inflater, err = zlib.NewReader(in)
	} else {
		err = (*inflater).(zlib.Resetter).Reset(in, nil)
	}
	if err == nil {
		e.content, err = io.ReadAll(*inflater)
	}
	if err == nil && uint64(len(e.content)) != size {
		err = fmt.Errorf("%d bytes, the header says %d", len(e.content), size)
	}
	return e, err
}

func applyDelta(base, delta []byte) ([]byte, error) {
	_, n := binary.Uvarint(delta)
	size, m := binary.Uvarint(delta[n:])
	delta = delta[n+m:]
	out := make([]byte, 0, size)
	for len(delta) > 0 {
		op := delta[0]
		delta = delta[1:]
		if op&0x80 == 0 {
			out = append(out, delta[:op]...)
			delta = delta[op:]
			continue
		}
		var v [7]int
		for i := range v {
			if op>>i&1 != 0 {
				v[i] = int(delta[0])
				delta = delta[1:]
			}
		}
		from, length := v[0]|v[1]<<8|v[2]<<16|v[3]<<24, v[4]|v[5]<<8|v[6]<<16
		if length == 0 {
			length = 1 << 16
		}
		if from+length > len(base) {
			return nil, errors.New("a delta copies from behind its base")
		}
		out = append(out, base[from:from+length]...)
	}
	if uint64(len(out)) != size {
		return nil, errors.New("a delta of the wrong size")
	}
	return out, nil
}

// HashObject returns the ID of an object.
func HashObject(format git.ObjectFormat, typ git.ObjectType, data []byte) git.ObjectID {
	h := format.New()
	fmt.Fprintf(h, "%s %d\x00", typ, len(data))
	h.Write(data)
	return git.RawObjectID(h.Sum(nil))
}
