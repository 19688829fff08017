package admit

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/packhorse-git/packhorse/internal/schedule/balance"
)

// Pressure narrows slots while the machine is short of CPU or memory, and widens them again: by a factor down, in steps
// up, never below one.
//
// It observes the machine and not the duration of work, unlike usual adaptive limiters: one pack takes a thousand times
// as long as another. The machine is short of CPU when a sleeping goroutine is woken late, like a small request would
// be. The kernel's figure (/proc/pressure/cpu) does not help: git processes, which should give way, wait for each other
// as soon as all CPUs are used. Safe for concurrent use.
type Pressure struct {
	queues  []*balance.Slots
	suffers func() bool // evaluates the last second
	stop    chan struct{}
	done    sync.WaitGroup
}

const (
	pressureStep = time.Second
	narrowBy     = 0.7
	widenBy      = 0.1
	// lateStep is how often the time is checked while a slot is taken, and late is the tolerated delay of a check. The
	// machine is short of CPU if more than lateMost checks in a second were later.
	lateStep = 20 * time.Millisecond
	late     = 20 * time.Millisecond
	lateMost = 4
)

// NewPressure watches over the slots until it is closed.
func NewPressure(queues ...*balance.Slots) *Pressure {
	p := &Pressure{queues: queues, stop: make(chan struct{})}
	memory, late := newMemory("/"), &lateness{busy: p.busy, stop: p.stop}
	p.suffers = func() bool {
		wasLate := late.look()
		return memory.short() || wasLate
	}
	p.done.Go(late.run)
	p.done.Go(p.run)
	return p
}

// Close ends the observation. The slots are unchanged.
func (p *Pressure) Close() {
	close(p.stop)
	p.done.Wait()
}

// busy reports whether a slot is taken. Otherwise there is nothing to narrow.
func (p *Pressure) busy() bool {
	return slices.ContainsFunc(p.queues, func(s *balance.Slots) bool { return s.InUse() > 0 })
}

func (p *Pressure) run() {
	tick := time.NewTicker(pressureStep)
	defer tick.Stop()
	part := 1.0 // of the slots that may be used
	for {
		select {
		case <-p.stop:
			return
		case <-tick.C:
		}
		part = next(part, p.busy() && p.suffers())
		for _, s := range p.queues {
			s.Narrow(int(math.Ceil(part * float64(s.Size()))))
		}
	}
}

// next is the part of the slots for the next second.
func next(part float64, suffers bool) float64 {
	const least = 1.0 / 1024 // as many slots as there may be: one is left
	if suffers {
		return max(part*narrowBy, least)
	}
	return min(part+widenBy, 1)
}

// lateness counts how often a goroutine wakes late.
type lateness struct {
	busy func() bool
	stop chan struct{}
	late atomic.Int64
}

func (l *lateness) run() {
	timer := time.NewTimer(lateStep)
	defer timer.Stop()
	for {
		step := lateStep
		if !l.busy() {
			step = pressureStep
		}
		began := time.Now()
		timer.Reset(step)
		select {
		case <-l.stop:
			return
		case <-timer.C:
		}
		if time.Since(began)-step > late {
			l.late.Add(1)
		}
	}
}

func (l *lateness) look() bool { return l.late.Swap(0) > lateMost }
