package packsource

import (
	"bytes"
	"io"
	"testing"

	"pgregory.net/rapid"

	"github.com/packhorse-git/packhorse/internal/git/pktline"
)

// TestFramer writes packs in pieces of any size, with and without flushes. The result is the same bytes in packets.
func TestFramer(t *testing.T) {
	t.Parallel()
	data := make([]byte, 8*pktline.MaxLine)
	for i := range data {
		data[i] = byte(i * 7)
	}
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(1, len(data)).Draw(t, "size")
		if rapid.Bool().Draw(t, "aligned") {
			size = rapid.IntRange(1, 8).Draw(t, "packets") * pktline.MaxBandData
		}
		var framed bytes.Buffer
		f := NewFramer(&framed)
		defer f.Release()
		for rest := data[:size]; len(rest) > 0; {
			n := min(len(rest), rapid.SampledFrom([]int{1, 11, 8192, pktline.MaxBandData, 1 << 20}).Draw(t, "piece"))
			if _, err := f.Write(rest[:n]); err != nil {
				t.Fatal(err)
			}
			if rest = rest[n:]; len(rest) > 0 && !rapid.Bool().Draw(t, "flush") {
				continue
			}
			if err := f.Flush(); err != nil {
				t.Fatal(err)
			}
			if got, want := len(deframe(t, framed.Bytes())), size-len(rest); got != want {
				t.Fatalf("%d bytes were written after a flush, want %d", got, want)
			}
		}
		if !bytes.Equal(deframe(t, framed.Bytes()), data[:size]) {
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
