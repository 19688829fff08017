package pack

import (
	"bytes"
	"compress/flate"
	"compress/zlib"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
)

// inflateAll decodes a deflate stream of at most limit bytes through a window; left is how much of the input is over.
func inflateAll(stream []byte, limit int) (out []byte, left int64, err error) {
	var in window
	in.reset(bytes.NewReader(stream), 0, int64(len(stream)))
	var z inflater
	z.reset(&in, make([]byte, limit))
	err = z.run()
	return z.out[:z.n], z.left(), err
}

func deflate(t testing.TB, data []byte, level int) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := flate.NewWriter(&b, level)
	if err != nil {
		t.Fatal(err)
	}
	w.Write(data)
	w.Close()
	return b.Bytes()
}

// samples are contents that make all kinds of blocks and codes.
func samples() [][]byte {
	rnd := rand.New(rand.NewPCG(3, 3))
	noise := make([]byte, 100<<10)
	for i := range noise {
		noise[i] = byte(rnd.Uint32())
	}
	skewed := make([]byte, 200<<10)
	for i := range skewed {
		skewed[i] = byte(rnd.ExpFloat64() * 12)
	}
	return [][]byte{
		nil, []byte("a"), []byte(strings.Repeat("a", 100<<10)), []byte(strings.Repeat("abc", 1000)), noise, noise[:7], skewed,
		append(append([]byte{}, noise[:40<<10]...), noise[:40<<10]...), []byte(strings.Repeat("tree 0123456789\nparent\n", 300)),
	}
}

func TestInflate(t *testing.T) {
	t.Parallel()
	for i, data := range samples() {
		for _, level := range []int{flate.HuffmanOnly, flate.NoCompression, 1, 6, 9} {
			stream := append(deflate(t, data, level), "rest"...)
			out, left, err := inflateAll(stream, len(data))
			if err != nil || !bytes.Equal(out, data) || left != 4 {
				t.Errorf("sample %d, level %d: %d bytes, %d left, %v; want %d bytes, 4 left", i, level, len(out), left, err, len(data))
			}
			if len(data) == 0 {
				continue
			}
			if out, _, err := inflateAll(stream, len(data)-1); err != errFull || !bytes.Equal(out, data[:len(data)-1]) {
				t.Errorf("sample %d, level %d: into one byte less: %v, want errFull", i, level, err)
			}
			cut := stream[:len(stream)-5-len(stream)/3]
			if out, _, err := inflateAll(cut, len(data)); !errors.Is(err, io.ErrUnexpectedEOF) || !bytes.HasPrefix(data, out) {
				t.Errorf("sample %d, level %d: cut short: %v, want an unexpected end", i, level, err)
			}
		}
	}
}

// FuzzInflate compares with compress/flate: both accept the same streams, make the same of them and end at the same place.
func FuzzInflate(f *testing.F) {
	for _, data := range samples() {
		data = data[:min(len(data), 3000)]
		for _, level := range []int{flate.HuffmanOnly, flate.NoCompression, 6} {
			f.Add(deflate(f, data, level))
		}
	}
	f.Fuzz(func(t *testing.T, stream []byte) {
		const limit = 1 << 16
		in := bytes.NewReader(stream)
		want, wantErr := io.ReadAll(io.LimitReader(flate.NewReader(in), limit+1))
		out, left, err := inflateAll(stream, limit)
		if len(want) > limit {
			if err == nil || !bytes.HasPrefix(want, out) {
				t.Fatalf("%d bytes, %v; compress/flate gives more than %d", len(out), err, limit)
			}
			return
		}
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("%d bytes, %v; compress/flate: %d bytes, %v", len(out), err, len(want), wantErr)
		}
		if err == nil && (!bytes.Equal(out, want) || left != int64(in.Len())) {
			t.Fatalf("%d bytes, %d left; compress/flate: %d bytes, %d left", len(out), left, len(want), in.Len())
		}
	})
}

func BenchmarkInflate(b *testing.B) {
	data := []byte("tree 0123456789012345678901234567890123456789\nparent 9876543210987654321098765432109876543210\n" +
		"author A U Thor <author@example.com> 1700000000 +0000\ncommitter C O Mitter <committer@example.com> 1700000000 +0000\n\n" +
		"pack: read objects in process\n\nThis says at some length what it does and why, as one does.\n")
	var z bytes.Buffer
	w := zlib.NewWriter(&z)
	w.Write(data)
	w.Close()
	sc := takeScratch(1)
	r := bytes.NewReader(z.Bytes())
	dst := make([]byte, len(data))
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		sc.in.reset(r, 0, int64(z.Len()))
		if err := sc.inflate(dst); err != nil {
			b.Fatal(err)
		}
	}
}
