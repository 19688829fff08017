package pack

import (
	"bytes"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/klauspost/compress/zlib"
)

// deflate returns data as a zlib stream of a level.
func deflate(t testing.TB, data []byte, level int) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := zlib.NewWriterLevel(&b, level)
	if err != nil {
		t.Fatal(err)
	}
	w.Write(data)
	w.Close()
	return b.Bytes()
}

func inflateSamples() [][]byte {
	random := make([]byte, 70_000)
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := range random {
		random[i] = byte(rnd.Uint32())
	}
	skewed := make([]byte, 50_000)
	for i := range skewed {
		skewed[i] = byte(rnd.ExpFloat64() * 9)
	}
	return [][]byte{{}, {'x'}, []byte("a line\n"), bytes.Repeat([]byte{7}, 300_000), random, skewed,
		[]byte(strings.Repeat("the same words again and again, ", 3000)), random[:40],
		append(append([]byte(nil), random[:9000]...), skewed[:9000]...)}
}

func TestInflater(t *testing.T) {
	var z inflater
	for i, data := range inflateSamples() {
		for level := zlib.HuffmanOnly; level <= 9; level++ {
			stream := deflate(t, data, level)
			for _, behind := range []int{0, 1, 7, 100} {
				src := append(bytes.Clone(stream), bytes.Repeat([]byte{0xa5}, behind)...)
				got := make([]byte, len(data))
				n, err := z.inflate(got, src)
				if err != nil || n != len(stream) || !bytes.Equal(got, data) {
					t.Fatalf("sample %d, level %d, %d bytes behind: inflate = %d, %v, want %d bytes", i, level, behind,
						n, err, len(stream))
				}
			}
			if _, err := z.inflate(make([]byte, len(data)+1), stream); err == nil {
				t.Errorf("sample %d, level %d: a short stream was not noticed", i, level)
			}
			if len(data) > 0 {
				if _, err := z.inflate(make([]byte, len(data)-1), stream); err == nil {
					t.Errorf("sample %d, level %d: a long stream was not noticed", i, level)
				}
			}
			for _, cut := range []int{1, 3, 5, len(stream) / 2, len(stream) - 1} {
				if n := len(stream) - cut; n >= 0 {
					if _, err := z.inflate(make([]byte, len(data)), stream[:n]); err != errInput {
						t.Errorf("sample %d, level %d: inflate of %d of %d bytes = %v, want %v", i, level, n,
							len(stream), err, errInput)
					}
				}
			}
		}
	}
}

// FuzzInflater compares the inflater with another one on damaged streams.
func FuzzInflater(f *testing.F) {
	for _, data := range inflateSamples() {
		if len(data) < 20_000 {
			for _, level := range []int{zlib.HuffmanOnly, 1, 6, 9} {
				f.Add(deflate(f, data, level))
			}
		}
	}
	f.Fuzz(func(t *testing.T, stream []byte) {
		var want []byte
		r, err := zlib.NewReader(bytes.NewReader(stream))
		if err == nil {
			want, err = io.ReadAll(io.LimitReader(r, 1<<20))
		}
		if len(want) == 1<<20 {
			return
		}
		var z inflater
		got := make([]byte, len(want))
		_, ours := z.inflate(got, stream)
		if err == zlib.ErrChecksum { // the caller's task
			err = nil
		}
		if (err == nil) != (ours == nil) {
			t.Fatalf("inflate = %v, want %v", ours, err)
		}
		if err == nil && !bytes.Equal(got, want) {
			t.Fatalf("inflate returned other bytes")
		}
	})
}

func BenchmarkInflater(b *testing.B) {
	tree := []byte("100644 README\x0001234567890123456789100644 a.txt\x0098765432109876543210")
	stream := deflate(b, tree, 6)
	dst := make([]byte, len(tree))
	var z inflater
	b.ReportAllocs()
	for b.Loop() {
		if _, err := z.inflate(dst, stream); err != nil {
			b.Fatal(err)
		}
	}
}
