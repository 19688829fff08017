package packsource

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"pgregory.net/rapid"

	"github.com/packhorse-git/packhorse/internal/git/pktline"
)

// TestFramer feeds packs in pieces of any size, with and without pauses. The result is the same bytes in packets, and
// the last ones come only at the end.
func TestFramer(t *testing.T) {
	t.Parallel()
	data := make([]byte, 8*pktline.MaxLine)
	for i := range data {
		data[i] = byte(i * 7)
	}
	copy(data, "PACK\x00\x00\x00\x02\x00\x00\x01\x02")
	rapid.Check(t, func(t *rapid.T) {
		const hold = 20
		size := rapid.IntRange(packHeader+hold, len(data)).Draw(t, "size")
		if rapid.Bool().Draw(t, "aligned") {
			size = rapid.IntRange(1, 8).Draw(t, "packets") * pktline.MaxBandData
		}
		f := newFramer(hold)
		defer f.release()
		var framed []byte
		done := 0 // payload bytes given out
		for rest := data[:size]; len(rest) > 0; {
			n := min(len(rest), rapid.SampledFrom([]int{1, 11, 19, 20, 21, 8192, pktline.MaxBandData, 1 << 20}).Draw(t, "piece"))
			piece := bytes.NewReader(rest[:n])
			for piece.Len() > 0 {
				before, room, there := f.total, f.room(), piece.Len()
				if err := f.fill(piece); err != nil {
					t.Fatal(err)
				}
				if got := int(f.total - before); got != min(room, there) {
					t.Fatalf("%d bytes of %d were read with room for %d", got, there, room)
				}
				if piece.Len() > 0 {
					framed = append(framed, f.take(false)...)
					f.sent()
				}
			}
			rest = rest[n:]
			framed = append(framed, f.take(rapid.Bool().Draw(t, "pause"))...)
			f.sent()
			payload := deframe(t, framed)
			if done = len(payload); done > 0 && done > size-len(rest)-hold {
				t.Fatalf("%d bytes given out when %d of %d were read", done, size-len(rest), size)
			}
		}
		if err := f.fill(bytes.NewReader(nil)); err != io.EOF || f.whole() != nil || f.objects != 0x102 {
			t.Fatal(err, f.whole(), f.objects)
		}
		framed = append(framed, f.last()...)
		if !bytes.Equal(deframe(t, framed), data[:size]) {
			t.Fatal("the output has other bytes than the input")
		}
	})
}

func deframe(t *rapid.T, framed []byte) []byte {
	var out []byte
	for r := pktline.NewReader(bytes.NewReader(framed)); ; {
		typ, p, err := r.Next()
		if err == io.EOF {
			return out
		}
		if err != nil || typ != pktline.Data || len(p) < 2 || p[0] != byte(pktline.BandData) {
			t.Fatalf("packet of %d bytes, %v: %v", len(p), typ, err)
		}
		out = append(out, p[1:]...)
	}
}

func TestFramerRefuses(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"this is no pack", "PACK\x00\x00\x00\x04\x00\x00\x00\x00"} {
		f := newFramer(20)
		if err := f.fill(bytes.NewReader([]byte(text))); !errors.Is(err, errGit) {
			t.Errorf("%q: %v", text, err)
		}
		f.release()
	}
}
