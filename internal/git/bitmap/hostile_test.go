package bitmap

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// Any damaged byte of a file from which bits or places are taken is noticed.
func TestDamagedFiles(t *testing.T) {
	for _, format := range formats {
		r := gittest.Random(t, 4, gittest.Shape{Commits: 10, Format: format.String()})
		addPacks(t, "git", r.Dir)
		r.Git("multi-pack-index", "write", "--bitmap")
		bitmaps, err := filepath.Glob(packDir(r) + "/*.bitmap")
		if err != nil || len(bitmaps) != 1 {
			t.Fatalf("the bitmaps are %q, %v, want one", bitmaps, err)
		}
		for _, path := range append(bitmaps, packDir(r)+"/multi-pack-index") {
			whole, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for at := 0; at < len(whole); at += 1 + len(whole)/300 {
				b := slices.Clone(whole)
				b[at] ^= 1 << (at % 8)
				openDamaged(t, path, b, format)
				openDamaged(t, path, whole[:at], format)
			}
			write(t, path, whole)
		}
		if _, err := Open(t.Context(), packDir(r), format); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := Open(ctx, packDir(r), format); !errors.Is(err, context.Canceled) {
			t.Errorf("Open with a canceled context: %v, want context.Canceled", err)
		}
	}
}

func openDamaged(t *testing.T, path string, b []byte, format git.ObjectFormat) {
	t.Helper()
	write(t, path, b)
	if _, err := Open(t.Context(), filepath.Dir(path), format); err == nil {
		t.Fatalf("Open of a damaged %s: no error, want one", path)
	} else if fault.Is(err, fault.Corrupt) && strings.Contains(fault.Message(err), path) {
		t.Errorf("the message %q has the path, want it only in the cause", fault.Message(err))
	}
}

// encode writes an EWAH bitmap of these words.
func encode(words ...uint64) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(64*len(words)))
	b = binary.BigEndian.AppendUint32(b, uint32(len(words)))
	for _, w := range words {
		b = binary.BigEndian.AppendUint64(b, w)
	}
	return binary.BigEndian.AppendUint32(b, 0)
}

// marker is the word before run words of a bit and a number of literal words.
func marker(bit, run, literals uint64) uint64 { return bit | run<<1 | literals<<33 }

func TestEWAH(t *testing.T) {
	const all = math.MaxUint64
	for _, test := range []struct {
		name  string
		words []uint64
		want  []uint64 // nil: an error
	}{
		{"nothing", nil, []uint64{0, 0, 0}},
		{"literals", []uint64{marker(0, 0, 2), 5, 6}, []uint64{5, 6, 0}},
		{"runs", []uint64{marker(1, 1, 1), 5, marker(1, 1, 0)}, []uint64{all, 5, all}},
		{"zeros beyond the end", []uint64{marker(0, 5, 1), 0, marker(0, 1<<32-1, 0)}, []uint64{0, 0, 0}},
		{"ones beyond the end", []uint64{marker(1, 4, 0)}, nil},
		{"ones after the end", []uint64{marker(0, 1<<32-1, 0), marker(1, 1, 0)}, nil},
		{"literal beyond the end", []uint64{marker(0, 2, 2), 1, 1}, nil},
		{"longest run", []uint64{marker(1, 1<<32-1, 0)}, nil},
		{"missing literals", []uint64{marker(0, 0, 2), 1}, nil},
		{"most literals", []uint64{marker(0, 0, 1<<31-1), 1}, nil},
	} {
		b := encode(test.words...)
		e, err := ewahAt(b, 0)
		if err != nil || e.end != len(b) {
			t.Errorf("%s: ewahAt = end %d, %v, want %d, nil", test.name, e.end, err, len(b))
			continue
		}
		got := make([]uint64, 3)
		if err := e.xor(got); (err != nil) != (test.want == nil) || err == nil && !slices.Equal(got, test.want) {
			t.Errorf("%s: xor = %x, %v, want %x", test.name, got, err, test.want)
		}
		for end := range b {
			if _, err := ewahAt(b[:end], 0); err == nil {
				t.Errorf("%s: ewahAt of %d of %d bytes: no error, want one", test.name, end, len(b))
			}
		}
	}
}

// A chain as long as the file allows ends, and each entry is read once.
func TestLongChain(t *testing.T) {
	const commits = 100_000
	sum := make([]byte, git.SHA1.Size())
	b := append([]byte("BITM\x00\x01\x00\x01"), binary.BigEndian.AppendUint32(nil, commits)...)
	b = append(b, sum...)
	for range types {
		b = append(b, encode()...)
	}
	for i := range uint32(commits) {
		b = binary.BigEndian.AppendUint32(b, i)
		b = append(b, byte(min(i, 1)), 0)
		b = append(b, encode(marker(0, uint64(i/64), 1), 1<<(i%64))...)
	}
	b = append(b, sum...)
	l, err := parse(b, commits, sum)
	if err != nil {
		t.Fatal(err)
	}
	set := make([]uint64, words(commits))
	if err := l.xorCommit(b, commits-1, set); err != nil {
		t.Fatal(err)
	}
	for i, w := range set {
		if want := uint64(math.MaxUint64) >> ((64 - min(commits-64*i, 64)) % 64); w != want {
			t.Fatalf("word %d = %x, want %x", i, w, want)
		}
	}
}

// FuzzParse checks that damaged files are errors, and that neither time nor memory depend on the numbers in them.
func FuzzParse(f *testing.F) {
	for _, format := range formats {
		r := gittest.Random(f, 5, gittest.Shape{Commits: 5, Format: format.String()})
		makeBitmap(f, "git", r.Dir, []string{"-c pack.writeBitmapLookupTable=true repack -adb"})
		paths, err := filepath.Glob(packDir(r) + "/*.bitmap")
		if err != nil || len(paths) != 1 {
			f.Fatal(paths, err)
		}
		b, err := os.ReadFile(paths[0])
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, uint32(100), format == git.SHA256)
		flipped := rand.New(rand.NewPCG(1, 1))
		for range 50 {
			c := slices.Clone(b)
			c[flipped.IntN(len(c))] ^= 1 << flipped.IntN(8)
			f.Add(c, uint32(100), format == git.SHA256)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte, count uint32, long bool) {
		hash := git.SHA1.Size()
		if long {
			hash = git.SHA256.Size()
		}
		if len(b) < headerSize+hash {
			return
		}
		count %= 1 << 20
		began := time.Now()
		l, err := parse(b, int(count), b[headerSize:headerSize+hash])
		if err != nil {
			return
		}
		if len(l.entries) > len(b)/entryHeader {
			t.Fatalf("%d commits in %d bytes", len(l.entries), len(b))
		}
		set := make([]uint64, words(int(count)))
		for i := range l.entries {
			_ = l.xorCommit(b, i, set)
		}
		for _, typ := range []git.ObjectType{git.Commit, git.Tree, git.Blob, git.Tag} {
			_ = l.xorType(b, typ, set)
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Fatalf("%d bytes took %v", len(b), took)
		}
	})
}
