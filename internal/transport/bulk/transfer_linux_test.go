package bulk

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestWarm checks that pages are in the page cache before a turn, also those that left it after an earlier check.
func TestWarm(t *testing.T) {
	t.Parallel()
	const size = 8 << 20
	f, _ := tempFile(t, size)
	if err := f.Sync(); err != nil { // dirty pages stay in the cache
		t.Fatal(err)
	}
	server, _ := connect(t, NewPump(PumpOptions{}), time.Minute)
	out := &server.out
	out.source = int(f.Fd())
	for range 2 {
		if err := unix.Fadvise(out.source, 0, 0, unix.FADV_DONTNEED); err != nil {
			t.Fatal(err)
		}
		for offset := int64(0); offset < size; offset += 3 << 20 {
			n := min(4<<20, size-offset)
			if err := out.warm(offset, int(n)); err != nil {
				t.Fatal(err)
			}
			for _, at := range []int64{offset, offset + n - 1} {
				if !out.cached(at) {
					t.Errorf("byte %d is not in the page cache after warm(%d, %d)", at, offset, n)
				}
			}
		}
		out.warmedAt -= warmTime // a check is due
	}
}
