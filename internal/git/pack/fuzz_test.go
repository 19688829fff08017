package pack

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

var formats = []git.ObjectFormat{git.SHA1, git.SHA256}

// seedFiles gives the files of small repositories of both formats that match a pattern.
func seedFiles(f *testing.F, pattern string, build func(r *gittest.Repo)) [][]byte {
	f.Helper()
	var seeds [][]byte
	for _, format := range formats {
		r := gittest.Random(f, 1, gittest.Shape{Commits: 5, Format: format.String()})
		build(r)
		paths, err := filepath.Glob(filepath.Join(r.Dir, "objects", pattern))
		if err != nil || len(paths) == 0 {
			f.Fatal(paths, err)
		}
		for _, path := range paths {
			b, err := os.ReadFile(path)
			if err != nil {
				f.Fatal(err)
			}
			seeds = append(seeds, b)
		}
	}
	return seeds
}

func FuzzIdx(f *testing.F) {
	for _, version := range []string{"1", "2", "2,0x40"} {
		for i, b := range seedFiles(f, "pack/*.idx", func(r *gittest.Repo) {
			packs, _ := filepath.Glob(filepath.Join(r.Dir, "objects/pack/*.pack"))
			r.Git("index-pack", "--index-version="+version, packs[0])
		}) {
			f.Add(b, i == 1)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte, long bool) {
		format := git.SHA1
		if long {
			format = git.SHA256
		}
		l, err := parseIdx(b, format)
		if err != nil {
			return
		}
		if l.count > len(b) {
			t.Fatalf("%d objects in %d bytes", l.count, len(b))
		}
		for i := range min(l.count, 1000) {
			id := b[l.ids+i*l.stride:][:l.hash]
			if at, ok := l.position(b, id); ok && !bytes.Equal(b[l.ids+at*l.stride:][:l.hash], id) {
				t.Fatal("position returned the place of another ID")
			}
			if o, err := l.offset(b, i); err == nil && o < 0 {
				t.Fatal("negative offset")
			}
		}
	})
}

func FuzzMidx(f *testing.F) {
	for i, b := range seedFiles(f, "pack/multi-pack-index", func(r *gittest.Repo) { r.Git("multi-pack-index", "write") }) {
		f.Add(b, i == 1)
	}
	f.Fuzz(func(t *testing.T, b []byte, long bool) {
		format := git.SHA1
		if long {
			format = git.SHA256
		}
		l, err := parseMidx(b, format)
		if err != nil {
			return
		}
		for i := range min(l.count, 1000) {
			id := b[l.ids+i*l.hash:][:l.hash]
			lo, hi := l.fanout.bucket(id[0])
			SearchIDs(b, l.ids, l.hash, lo, hi, id)
			if p, o, err := l.entry(b, i); err == nil && (o < 0 || p >= len(l.packs)) {
				t.Fatal("an entry is out of range")
			}
		}
	})
}

func FuzzDelta(f *testing.F) {
	f.Add([]byte("0123456789"), []byte("\x0a\x05\x90\x05"))
	f.Add([]byte("0123456789"), []byte("\x0a\x08\x91\x02\x03\x03abc\x90\x02"))
	f.Add([]byte("0123456789"), []byte("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x80"))
	f.Add([]byte(""), []byte("\x00\x01\x00"))
	f.Fuzz(func(t *testing.T, base, delta []byte) {
		_, size, rest, err := deltaSizes(delta)
		if err != nil || size > 1<<20 {
			return
		}
		if size < 0 {
			t.Fatal("negative size")
		}
		dst := make([]byte, size, size+8)
		tail := dst[size : size+8]
		err = applyDelta(dst, base, rest)
		if err == nil && size > 0 && len(rest) == 0 {
			t.Error("a delta without instructions made bytes, want none")
		}
		if !bytes.Equal(tail, make([]byte, 8)) {
			t.Error("applyDelta wrote beyond its target")
		}
	})
}

func FuzzEntries(f *testing.F) {
	f.Add([]byte("100644 a\x00"+someID[:20]+"40000 b\x00"+someID[:20]), false)
	f.Add([]byte("160000 a\x00"+someID[:32]), true)
	f.Fuzz(func(t *testing.T, data []byte, long bool) {
		format := formats[0]
		if long {
			format = formats[1]
		}
		used := 0
		err := Entries(data, format, func(mode uint32, name []byte, id git.ObjectID) error {
			if len(name) == 0 || bytes.IndexByte(name, 0) >= 0 || len(id.Raw()) != format.Size() {
				t.Errorf("bad entry %o %q %s", mode, name, id)
			}
			used++
			return nil
		})
		if err == nil && used == 0 && len(data) > 0 {
			t.Error("read no bytes of a non-empty object")
		}
	})
}

func FuzzParseCommit(f *testing.F) {
	f.Add([]byte("tree " + someID + "\nparent " + someID + "\nparent " + someID +
		"\nauthor A <a> 1 +0\ncommitter C <c> 12 +0\n\nx"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := ParseCommit(data, git.SHA1)
		if err != nil {
			return
		}
		again := fmt.Sprintf("tree %s\n", c.Tree)
		for _, p := range c.Parents {
			again += fmt.Sprintf("parent %s\n", p)
		}
		if !bytes.EqualFold(data[:len(again)], []byte(again)) {
			t.Errorf("%q was read as %q", data, again)
		}
		if c.Date < 0 {
			t.Errorf("date %d", c.Date)
		}
	})
}

func FuzzParseTag(f *testing.F) {
	f.Add([]byte("object " + someID + "\ntype commit\ntag v1\ntagger T <t> 1 +0\n\nx"))
	f.Fuzz(func(t *testing.T, data []byte) {
		id, typ, err := ParseTag(data, git.SHA1)
		if err != nil {
			return
		}
		if again := fmt.Sprintf("object %s\ntype %s\ntag ", id, typ); !bytes.EqualFold(data[:len(again)], []byte(again)) {
			t.Errorf("%q was read as %q", data, again)
		}
	})
}

func FuzzLooseHeader(f *testing.F) {
	for _, s := range []string{"blob 12\x00x", "commit 0\x00", "tree 007\x00", "tag 99999999999999999999\x00",
		"blob  1\x00", "blob 1"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		typ, size, used, err := parseLooseHeader(b)
		if err != nil {
			return
		}
		if again := fmt.Sprintf("%s %d\x00", typ, size); again != string(b[:used]) {
			t.Errorf("%q was read as %q", b, again)
		}
	})
}

func FuzzAlternates(f *testing.F) {
	for _, s := range []string{"/a\n../b\n#c\n\n", `"a\tb\303\251"` + "\n/c", `"a`, `"\x"`, `""`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, path := range parseAlternates(b) {
			if path == "" {
				t.Error("got an empty path")
			}
		}
	})
}

// FuzzEntry reads an entry from a pack with arbitrary bytes after the header.
func FuzzEntry(f *testing.F) {
	var z bytes.Buffer
	w := zlib.NewWriter(&z)
	w.Write([]byte("hello"))
	w.Close()
	f.Add(append([]byte{3<<4 | 5}, z.Bytes()...))
	f.Add(append([]byte{6<<4 | 5, 1}, z.Bytes()...))
	f.Add(append([]byte{7<<4 | 5}, append([]byte(someID[:20]), z.Bytes()...)...))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f})
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, body []byte) {
		objects := filepath.Join(dir, "objects")
		if err := os.MkdirAll(filepath.Join(objects, "pack"), 0o700); err != nil {
			t.Fatal(err)
		}
		header := binary.BigEndian.AppendUint32([]byte("PACK\x00\x00\x00\x02"), 1)
		path := filepath.Join(objects, "pack", "pack-1")
		write(t, path+".pack", append(append(header, body...), make([]byte, 20)...))
		s, err := Open(objects, Options{MaxObject: 1 << 16})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		sc := takeScratch(git.SHA1)
		loc := location{&packFile{path: path, hash: 20}, packHeader}
		typ, size, herr := s.describe(s.snap.Load(), sc, loc)
		s.releaseAll(sc)
		typ2, data, err := s.unpack(s.snap.Load(), sc, loc, 1<<16)
		s.releaseAll(sc)
		if err == nil && (herr != nil || typ != typ2 || size != int64(len(data))) {
			t.Errorf("Header says %v, %d, %v; Read %v, %d", typ, size, herr, typ2, len(data))
		}
	})
}

// position finds an object ID by binary search.
func (l *idxLayout) position(b, id []byte) (int, bool) {
	lo, hi := l.fanout.bucket(id[0])
	return SearchIDs(b, l.ids, l.stride, lo, hi, id)
}
