package mirror

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestBlockWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []byte
		var sizes []int
		full := error(nil)
		w := newBlockWriter(100, func(p []byte) error { // continues a file of 100 bytes
			got, sizes = append(got, p...), append(sizes, len(p))
			return full
		})
		var want []byte
		checked := 0
		add := func(n int, isLast bool) error {
			for i := range w.space()[:n] {
				w.space()[i] = byte(len(want) * 31 >> 3)
				want = append(want, w.space()[i])
			}
			return w.add(n, isLast)
		}
		check := func(when string, wantSizes ...int) {
			t.Helper()
			synctest.Wait()
			if !slices.Equal(sizes[checked:], wantSizes) || !slices.Equal(got, want[:len(got)]) {
				t.Errorf("%s: wrote %v, want %v; the same bytes: %t", when, sizes[checked:], wantSizes,
					slices.Equal(got, want[:len(got)]))
			}
			checked = len(sizes)
		}
		for range 2 { // a fast origin
			for len(w.space()) > 1000 {
				_ = add(1000, false)
			}
			_ = add(len(w.space()), false)
		}
		check("fast origin", blockBytes-100, blockBytes)

		_ = add(10, false)
		time.Sleep(blockDelay / 2)
		_ = add(20, false)
		check("before the delay")
		time.Sleep(blockDelay / 2)
		check("slow origin", 30)
		_ = add(len(w.space()), false)
		check("rest of the block", blockBytes-30)
		_ = add(7, true)
		check("end", 7)

		full = errors.New("full")
		_ = add(1, false)
		time.Sleep(blockDelay)
		check("full disk", 1)
		if err := add(1, true); err != full {
			t.Errorf("add() after a failed write = %v, want %v", err, full)
		}
		w.close()
		time.Sleep(blockDelay)
		check("close")
	})
}
