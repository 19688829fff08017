package pack

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// forged is a pack that git would not make.
type forged struct {
	body    []byte
	offsets []int
	ids     []git.ObjectID
	zlib    *zlib.Writer
}

func newForged() *forged {
	return &forged{body: []byte("PACK\x00\x00\x00\x02\x00\x00\x00\x00"), zlib: zlib.NewWriter(nil)}
}

// add appends an entry that claims a size; prefix stands between its header and its zlib stream.
func (p *forged) add(id git.ObjectID, kind byte, size uint64, prefix, content []byte) {
	p.ids, p.offsets = append(p.ids, id), append(p.offsets, len(p.body))
	c := kind<<4 | byte(size&15)
	for size >>= 4; size > 0; size >>= 7 {
		p.body = append(p.body, c|0x80)
		c = byte(size & 0x7f)
	}
	p.body = append(append(p.body, c), prefix...)
	var z bytes.Buffer
	p.zlib.Reset(&z)
	p.zlib.Write(content)
	p.zlib.Close()
	p.body = append(p.body, z.Bytes()...)
}

// write makes the pack and an index of version 1 for it.
func (p *forged) write(t *testing.T, objects, name string) {
	t.Helper()
	binary.BigEndian.PutUint32(p.body[8:], uint32(len(p.ids)))
	order := make([]int, len(p.ids))
	var fan [256]uint32
	for i, id := range p.ids {
		order[i] = i
		for b := int(id.Raw()[0]); b < 256; b++ {
			fan[b]++
		}
	}
	slices.SortFunc(order, func(a, b int) int { return p.ids[a].Compare(p.ids[b]) })
	var idx []byte
	for _, n := range fan {
		idx = binary.BigEndian.AppendUint32(idx, n)
	}
	for _, i := range order {
		idx = append(binary.BigEndian.AppendUint32(idx, uint32(p.offsets[i])), p.ids[i].Raw()...)
	}
	trailer := bytes.Repeat([]byte{7}, 20)
	path := filepath.Join(objects, "pack", name)
	write(t, path+".pack", append(p.body, trailer...))
	h := git.SHA1.New()
	h.Write(append(idx, trailer...))
	write(t, path+".idx", h.Sum(append(idx, trailer...)))
}

func hashOf(typ git.ObjectType, data string) git.ObjectID {
	var sc scratch
	sc.hash = git.SHA1.New()
	id := git.RawObjectID(make([]byte, 20))
	sc.verify(&id, typ, []byte(data))
	return git.RawObjectID(slices.Clone(sc.hash.Sum(nil)))
}

func numbered(n int) git.ObjectID {
	return git.RawObjectID(binary.BigEndian.AppendUint32(make([]byte, 16), uint32(n)))
}

func objectsDir(t *testing.T) string {
	t.Helper()
	objects := filepath.Join(t.TempDir(), "objects")
	if err := os.MkdirAll(filepath.Join(objects, "pack"), 0o700); err != nil {
		t.Fatal(err)
	}
	return objects
}

func TestHostilePack(t *testing.T) {
	t.Parallel()
	p := newForged()
	expected := map[git.ObjectID]fault.Kind{}
	add := func(kind fault.Kind, entry byte, size uint64, prefix, content []byte) git.ObjectID {
		id := numbered(len(p.ids))
		p.add(id, entry, size, prefix, content)
		expected[id] = kind
		return id
	}
	self, next := numbered(0), numbered(2)
	delta := []byte{5, 5, 0x90, 5}
	add(fault.Corrupt, RefDelta, 4, self.Raw(), delta) // its own base
	first := add(fault.Corrupt, RefDelta, 4, next.Raw(), delta)
	add(fault.Corrupt, RefDelta, 4, first.Raw(), delta) // a loop of two
	missing := numbered(1 << 20)
	add(fault.Corrupt, RefDelta, 4, missing.Raw(), delta)
	add(fault.Corrupt, byte(git.Blob), 1<<60, nil, []byte("hello"))
	add(fault.Corrupt, byte(git.Blob), 1<<40, nil, []byte("hello"))
	add(fault.Corrupt, byte(git.Blob), 1<<62, nil, []byte("hello"))
	add(fault.Corrupt, byte(git.Blob), 4, nil, []byte("hello")) // longer than it says
	add(fault.Corrupt, byte(git.Blob), 6, nil, []byte("hello"))
	add(fault.Corrupt, byte(git.Blob), 5, nil, []byte("hello")) // another object
	add(fault.Corrupt, 5, 5, nil, []byte("hello"))
	add(fault.Corrupt, 0, 5, nil, []byte("hello"))
	add(fault.Corrupt, OfsDelta, 4, []byte{0}, delta)                           // its own base
	add(fault.Corrupt, OfsDelta, 4, []byte{0xff, 0xff, 0xff, 0x7f}, delta)      // before the pack
	add(fault.Corrupt, OfsDelta, 4, bytes.Repeat([]byte{0xff}, 20), delta)      // beyond 2^63
	bomb := add(fault.Invalid, byte(git.Blob), 8<<20, nil, make([]byte, 8<<20)) // larger than the limit
	huge := binary.AppendUvarint(binary.AppendUvarint(nil, 8<<20), 1<<40)       // makes 2^40 bytes of it
	add(fault.Invalid, RefDelta, uint64(len(huge)), bomb.Raw(), huge)
	add(fault.Corrupt, byte(git.Blob), 5, nil, []byte("world")) // the root of a chain
	for range maxChain + 10 {
		add(fault.Corrupt, OfsDelta, 4, []byte{byte(len(p.body) - p.offsets[len(p.offsets)-1])}, delta) // too deep
	}
	objects := objectsDir(t)
	p.write(t, objects, "pack-hostile")
	s, err := Open(objects, Options{MaxObject: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ids := append(slices.Clone(p.ids[:25]), p.ids[len(p.ids)-1])
	for _, id := range ids {
		if _, _, err := s.Read(id, 0); !fault.Is(err, expected[id]) {
			t.Errorf("Read(%s): kind %v, %v; want %v", id, fault.KindOf(err), err, expected[id])
		}
		if _, size, err := s.Header(id); err != nil && !fault.Is(err, fault.Corrupt) || size < 0 {
			t.Errorf("Header(%s): %d, %v", id, size, err)
		}
	}
}

// TestThinPack reads deltas whose bases are in another pack, in an alternate, or loose.
func TestThinPack(t *testing.T) {
	t.Parallel()
	const text, changed = "the text of the base", "the text of the base, longer"
	rest := changed[len(text):]
	delta := append([]byte{byte(len(text)), byte(len(changed)), 0x90, byte(len(text)), byte(len(rest))}, rest...)
	baseID, id := hashOf(git.Blob, text), hashOf(git.Blob, changed)
	thin := newForged()
	thin.add(id, RefDelta, uint64(len(delta)), baseID.Raw(), delta)
	whole := newForged()
	whole.add(baseID, byte(git.Blob), uint64(len(text)), nil, []byte(text))
	want := []object{{id, git.Blob, []byte(changed)}}
	for _, where := range []string{"other pack", "alternate", "loose"} {
		objects := objectsDir(t)
		thin.write(t, objects, "pack-thin")
		switch where {
		case "other pack":
			whole.write(t, objects, "pack-whole")
		case "alternate":
			other := objectsDir(t)
			whole.write(t, other, "pack-whole")
			if err := os.Mkdir(filepath.Join(objects, "info"), 0o700); err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(objects, "info/alternates"), []byte(other))
		default:
			r := gittest.Init(t)
			r.GitIn(text, "hash-object", "-w", "--stdin")
			thin.write(t, filepath.Join(r.Dir, "objects"), "pack-thin")
			objects = filepath.Join(r.Dir, "objects")
		}
		s := openStore(t, strings.TrimSuffix(objects, "/objects"), git.SHA1)
		expect(t, s, want)
	}
}

// TestOrderOfHugeOffsets sorts offsets that no pack can have.
func TestOrderOfHugeOffsets(t *testing.T) {
	t.Parallel()
	offsets := []uint64{math.MaxInt64, 12, 1 << 60, 1<<60 - 1, math.MaxInt64 - 1}
	b := []byte{0xff, 't', 'O', 'c', 0, 0, 0, 2}
	for range 256 {
		b = binary.BigEndian.AppendUint32(b, uint32(len(offsets)))
	}
	for i := range offsets {
		id := numbered(i)
		b = append(b, id.Raw()...)
	}
	b = append(b, make([]byte, 4*len(offsets))...)
	var large []byte
	for i, offset := range offsets {
		b = binary.BigEndian.AppendUint32(b, 1<<31|uint32(min(i, len(offsets)-2)))
		if i < len(offsets)-1 { // an index has room for one less
			large = binary.BigEndian.AppendUint64(large, offset)
		}
	}
	b = append(append(b, large...), make([]byte, 40)...)
	layout, err := parseIdx(b, git.SHA1)
	if err != nil {
		t.Fatal(err)
	}
	order, err := (&Table{&packIndex{layout: layout}, b}).sortByOffset()
	if err != nil || len(order) != len(offsets) || order[0] != 1 || order[len(order)-1] != 0 {
		t.Errorf("the order is %v (%v), want 1 first and 0 last", order, err)
	}
}

// TestPaddedStream reads an object whose zlib stream has many empty blocks. The Reader, which has streams in memory,
// does not follow it.
func TestPaddedStream(t *testing.T) {
	t.Parallel()
	content := "a small blob"
	id := hashOf(git.Blob, content)
	var z bytes.Buffer
	w := zlib.NewWriter(&z)
	for z.Len() < 8<<20 {
		w.Flush()
	}
	w.Write([]byte(content))
	w.Close()
	p := newForged()
	p.ids, p.offsets = append(p.ids, id), append(p.offsets, len(p.body))
	p.body = append(append(p.body, byte(git.Blob)<<4|byte(len(content))), z.Bytes()...)
	objects := objectsDir(t)
	p.write(t, objects, "pack-padded")
	s, err := Open(objects, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, data, err := s.Read(id, 0); err != nil || string(data) != content {
		t.Errorf("Store.Read = %q, %v, want the content", data, err)
	}
	err = s.Raw(1, func(packs []*Raw) error {
		r := NewReader(s, packs, 1<<20)
		if _, err := r.Read(packs[0], 0); !fault.Is(err, fault.Corrupt) {
			t.Errorf("Reader.Read: the error is %v, want one of kind Corrupt", err)
		}
		if n := cap(r.window.data); n > 4<<20 {
			t.Errorf("the Reader has a window of %d bytes", n)
		}
		r.MaxObject = 5
		if _, err := r.Read(packs[0], 0); !fault.Is(err, fault.Invalid) {
			t.Errorf("Reader.Read of a large object: the error is %v, want one of kind Invalid", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
