package packsource

import (
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/pktline"
)

// TestGathering simulates a git that writes at a rate, into pipes of several sizes: reading does not hold it up, and does not look very often at a slow one.
func TestGathering(t *testing.T) {
	t.Parallel()
	const length = 100e6
	for _, c := range []struct {
		capacity int
		rate     float64 // bytes a second
		looks    float64 // at most so many pauses a second
	}{
		{outputBuffer, 1e9, 4000}, {outputBuffer, 300e6, 2000}, {outputBuffer, 70e6, 700}, {outputBuffer, 10e6, 300}, {outputBuffer, 1e5, 300},
		{64 << 10, 300e6, 2e4}, {64 << 10, 70e6, 5000}, {8 << 10, 50e6, 2e4}, {0, 50e6, 2e4},
	} {
		g := newGathering(c.capacity)
		pipe := float64(c.capacity)
		if pipe == 0 {
			pipe = 16 << 10
		}
		var now, there, written float64 // seconds and bytes
		pass := func(seconds float64) {
			n := min(seconds*c.rate, pipe-there, length-written)
			now, there, written = now+seconds, there+n, written+n
		}
		pauses := 0.0
		for done := 0.0; done < length-1; { // what is left of a byte is rounding
			n := min(there, pktline.MaxBandData)
			there, done = there-n, done+n
			pass(5e-6 + n/5e9)
			if pause := g.emptied(int64(n), n < pktline.MaxBandData); pause > 0 {
				if pause > greatestPause {
					t.Fatalf("%+v: a pause of %v", c, pause)
				}
				pauses++
				pass(pause.Seconds() + 20e-6)
			}
		}
		if least := length / c.rate; now > 1.15*least+0.01 || pauses/now > c.looks {
			t.Errorf("%+v: %.3f s of %.3f, %.0f pauses a second (%v)", c, now, least, pauses/now, time.Duration(g.pause))
		}
	}
}
