package packsource

import (
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/process"
)

// TestGathering simulates a git that writes at a rate, into pipes of several sizes: reading does not hold it up, and
// does not look very often at a slow one.
func TestGathering(t *testing.T) {
	t.Parallel()
	const length = 100e6
	for _, c := range []struct {
		capacity int
		rate     float64 // bytes a second
		looks    float64 // at most so many pauses a second
	}{
		{outputBuffer, 700e6, 900}, {outputBuffer, 300e6, 900}, {outputBuffer, 70e6, 700}, {outputBuffer, 10e6, 300},
		{outputBuffer, 1e5, 300},
		{process.LargePipe, 150e6, 900}, {process.LargePipe, 50e6, 900}, {64 << 10, 70e6, 0}, {8 << 10, 50e6, 0},
		{0, 50e6, 0},
	} {
		g := newGathering(c.capacity)
		pipe := max(float64(c.capacity), 8<<10)
		var now, there, written float64 // seconds and bytes
		pass := func(seconds float64) {
			n := min(seconds*c.rate, pipe-there, length-written)
			now, there, written = now+seconds, there+n, written+n
		}
		pauses := 0.0
		for done := 0.0; done < length-1; { // the rest of a byte is rounding
			n := min(there, pktline.MaxBandData)
			there, done = there-n, done+n
			pass(5e-6 + n/5e9)
			if pause := g.emptied(int64(n), n < pktline.MaxBandData); pause > 0 {
				if pause > greatestPause {
					t.Fatalf("%+v: a pause of %v", c, pause)
				}
				pauses++
				pass(pause.Seconds() + 100e-6) // the runtime's timers are late by this
			}
		}
		if least := length / c.rate; now > 1.15*least+0.01 || pauses/now > c.looks {
			t.Errorf("%+v: %.3f s of %.3f, %.0f pauses a second (%v)", c, now, least, pauses/now, time.Duration(g.pause))
		}
	}
}
