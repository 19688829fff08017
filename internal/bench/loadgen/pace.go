package loadgen

import "time"

// pace is a token bucket of bytes for one reader. Its burst is one step, so that a delayed reader does not catch up at
// full speed. Not safe for concurrent use.
type pace struct {
	rate   float64 // bytes a second
	step   int64   // maximum bytes of one read
	tokens float64
	last   time.Time
}

// paceStep is the duration of one step of a paced reader. It is long enough that waking up costs little, and short
// enough that the server sees a slow reader and not bursts.
const paceStep = 20 * time.Millisecond

func newPace(rate float64, now time.Time) *pace {
	step := int64(rate * paceStep.Seconds())
	return &pace{rate: rate, step: min(max(step, 4<<10), discardStep), last: now}
}

// take requests up to want bytes. It returns the number of bytes that may be read now, or the time until the next call.
func (p *pace) take(want int64, now time.Time) (n int64, wait time.Duration) {
	p.tokens = min(p.tokens+now.Sub(p.last).Seconds()*p.rate, float64(p.step))
	p.last = now
	want = min(want, p.step)
	if short := float64(want) - p.tokens; short > 0 {
		return 0, time.Duration(short/p.rate*1e9) + time.Microsecond
	}
	return want, 0
}

// spend accounts for the bytes that were read.
func (p *pace) spend(n int64) { p.tokens -= float64(n) }
