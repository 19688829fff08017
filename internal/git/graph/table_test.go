package graph

import "testing"

// TestPlace checks that entries fill one chunk after the other, and that no entry has two places.
func TestPlace(t *testing.T) {
	t.Parallel()
	chunk, at := 0, 0
	for i := range uint32(10 * chunkLen) {
		if at == chunkSize(chunk) {
			chunk, at = chunk+1, 0
		}
		if k, n := place(i); k != chunk || n != at {
			t.Fatalf("entry %d is in chunk %d at %d; want %d, %d", i, k, n, chunk, at)
		}
		at++
	}
}
