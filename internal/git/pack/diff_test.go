package pack

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"
)

// TestAppendDelta applies deltas of random changes.
func TestAppendDelta(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		base := rapid.SliceOfN(rapid.ByteRange(0, 3), diffBlock, 3000).Draw(t, "base")
		if rapid.Bool().Draw(t, "long") {
			base = bytes.Repeat(base, 100)
		}
		target := bytes.Clone(base)
		for range rapid.IntRange(0, 5).Draw(t, "changes") {
			at := rapid.IntRange(0, len(target)).Draw(t, "at")
			end := rapid.IntRange(at, len(target)).Draw(t, "end")
			more := rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "more")
			target = append(append(bytes.Clone(target[:at]), more...), target[end:]...)
		}
		delta, ok := AppendDelta([]byte("x"), base, target, len(target)*2+100)
		if !ok || delta[0] != 'x' {
			t.Fatalf("AppendDelta of %d bytes to %d gave no delta", len(base), len(target))
		}
		from, to, instructions, err := deltaSizes(delta[1:])
		if err != nil || from != int64(len(base)) || to != int64(len(target)) {
			t.Fatalf("delta sizes = %d, %d, %v; want %d, %d", from, to, err, len(base), len(target))
		}
		got := make([]byte, to)
		if err := applyDelta(got, base, instructions); err != nil || !bytes.Equal(got, target) {
			t.Fatalf("the delta makes another object (%v)", err)
		}
		if short, ok := AppendDelta(nil, base, target, len(delta)-2); ok {
			t.Fatalf("a delta of %d bytes with a limit of %d", len(short), len(delta)-2)
		}
	})
}
