package native

import (
	"bytes"
	"math"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
)

// FuzzEntryHeader parses a header, writes it, and parses that: the result is the same.
func FuzzEntryHeader(f *testing.F) {
	id := bytes.Repeat([]byte{0xab}, 32)
	for _, size := range []int64{0, 15, 16, 2047, 2048, 1 << 31, math.MaxInt64} {
		f.Add(appendEntry(nil, byte(git.Blob), size), false)
		f.Add(append(appendEntry(nil, pack.RefDelta, size), id...), true)
		f.Add(appendDistance(appendEntry(nil, pack.OfsDelta, size), size>>1|1), false)
	}
	f.Fuzz(func(t *testing.T, b []byte, isLong bool) {
		format := git.SHA1
		if isLong {
			format = git.SHA256
		}
		e, err := pack.ParseEntry(b, format.Size())
		if err != nil {
			return
		}
		if e.Length <= 0 || e.Length > min(len(b), pack.MaxEntryHeader) || e.Kind == pack.OfsDelta && e.Distance <= 0 {
			t.Fatalf("ParseEntry(%x) = %+v, want a header inside the entry", b, e)
		}
		again := appendEntry(nil, e.Kind, e.Size)
		switch e.Kind {
		case pack.OfsDelta:
			again = appendDistance(again, e.Distance)
		case pack.RefDelta:
			again = append(again, e.Base...)
		}
		same, err := pack.ParseEntry(again, format.Size())
		if err != nil || same.Kind != e.Kind || same.Size != e.Size || same.Distance != e.Distance ||
			!bytes.Equal(same.Base, e.Base) || same.Length != len(again) {
			t.Errorf("ParseEntry(%x) = %+v (%v), want %+v", again, same, err, e)
		}
	})
}

// FuzzIndexHeader parses the beginning of an index.
func FuzzIndexHeader(f *testing.F) {
	spec := &packsource.Spec{Wants: []git.ObjectID{git.RawObjectID(make([]byte, 20))}, Filter: "blob:none",
		Repo: packsource.Repository{Format: git.SHA1}}
	table := newIndexTable(git.SHA1, 1)
	table.add(make([]byte, 20), 1, packHeader, 0)
	table.sum = make([]byte, 20)
	var index bytes.Buffer
	if err := writeIndex(&index, spec, &table); err != nil {
		f.Fatal(err)
	}
	f.Add(index.Bytes())
	f.Add([]byte(indexMagic + "\xff\xff\xff\xff"))
	f.Add([]byte(indexMagic + "\x00\x00\x00\x02{}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, n, err := readHeader(bytes.NewReader(b))
		if err == nil && (h.Wants < 0 || n > int64(len(b))) {
			t.Errorf("readHeader = %+v, %d of %d bytes, want a header inside the index", h, n, len(b))
		}
	})
}

// FuzzRuns compares the offsets of written entries with a map.
func FuzzRuns(f *testing.F) {
	f.Add([]byte{1, 1, 1, 0, 7, 3, 200, 5})
	f.Fuzz(func(t *testing.T, steps []byte) {
		var r runs
		want := map[int64]int64{}
		at, to := int64(packHeader), int64(packHeader)
		for _, b := range steps {
			length := int64(b%16) + 1
			if b >= 128 { // not chosen
				at += length
				continue
			}
			r.add(at, at+length, to)
			want[at] = to
			at += length
			to += length + int64(b/64) // a longer header
		}
		for from, to := range want {
			if got, ok := r.find(from); !ok || got != to {
				t.Errorf("find(%d) = %d, %v, want %d", from, got, ok, to)
			}
		}
		if got, ok := r.find(at); ok {
			t.Errorf("find(%d) = %d, want none behind the last entry", at, got)
		}
	})
}
