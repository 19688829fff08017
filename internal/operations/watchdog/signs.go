package watchdog

import (
	"fmt"
	"math"
	"runtime/metrics"
	"time"
)

// Signs of missing progress. They are causes of dumps and values of a metric label.
const (
	signScheduler = "scheduler" // runnable goroutines do not run
	signProbe     = "probe"     // a probe gets no answer
)

// reading has the measurements of one moment.
type reading struct {
	at     time.Time
	late   time.Duration // delay of the watchdog's own timer
	slow   float64       // share of goroutine switches that came after a wait of a second or more: 0 to 1
	probes []probing
}

// probing is the time since when a probe has had no answer.
type probing struct {
	name string
	d    time.Duration
}

// slowPart is the share of switches that may come after a wait of a second.
const slowPart = 0.01

// finding is a sign that deserves a dump.
type finding struct{ sign, why string }

// signs finds the signs in readings. A probe without an answer counts as soon as it has lasted for stall. The share of
// slow switches varies, so it counts when each reading was bad for that long.
type signs struct {
	stall     time.Duration
	slowSince time.Time // zero: the last reading was good
}

// findings returns the signs that deserve a dump now, the most specific ones first.
func (s *signs) findings(r reading) (found []finding) {
	for _, p := range r.probes {
		if p.d >= s.stall {
			found = append(found, finding{signProbe, fmt.Sprintf("the probe %q has had no answer for %v", p.name,
				p.d.Round(time.Millisecond))})
		}
	}
	if r.late >= s.stall {
		found = append(found, finding{signScheduler, fmt.Sprintf("the watchdog itself did not run for %v",
			r.late.Round(time.Millisecond))})
	}
	switch {
	case r.slow <= slowPart:
		s.slowSince = time.Time{}
	case s.slowSince.IsZero():
		s.slowSince = r.at
	}
	if r.slow > slowPart && r.at.Sub(s.slowSince) >= s.stall {
		found = append(found, finding{signScheduler, fmt.Sprintf(
			"%.0f %% of the goroutines that could run waited for more than a second", r.slow*100)})
	}
	return found
}

// ruler reads the runtime's histogram of the times for which runnable goroutines waited.
type ruler struct {
	sample []metrics.Sample
	counts []uint64 // at the last reading
}

// read returns the share of the times since the last call that were a second or more.
func (l *ruler) read() float64 {
	if l.sample == nil {
		l.sample = []metrics.Sample{{Name: "/sched/latencies:seconds"}}
	}
	metrics.Read(l.sample)
	if v := l.sample[0].Value; v.Kind() == metrics.KindFloat64Histogram {
		return l.share(v.Float64Histogram())
	}
	return 0
}

func (l *ruler) share(h *metrics.Float64Histogram) float64 {
	var all, slow uint64
	first := l.counts == nil
	for i, n := range h.Counts {
		if !first {
			n -= l.counts[i]
		}
		all += n
		if from := h.Buckets[i]; from >= 1 && !math.IsInf(from, 0) {
			slow += n
		}
	}
	l.counts = append(l.counts[:0], h.Counts...)
	if first || all == 0 {
		return 0
	}
	return float64(slow) / float64(all)
}
