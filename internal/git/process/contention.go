package process

import "time"

// mostSampled bounds how many commands Contention looks at: more tell no more.
const mostSampled = 16

// sample is what was seen of a command when it was last looked at.
type sample struct{ ran, waited time.Duration }

// Contention is how long processes of commands that run were on a CPU since it was last called, and for how long they
// were ready to, and waited for one. It looks at some of them, for well below a millisecond. One goroutine calls it.
func (r *Runner) Contention() (ran, waited time.Duration) {
	r.mu.Lock()
	some := make([]*Process, 0, mostSampled)
	for p := range r.running { // in an order that changes
		if len(some) == mostSampled {
			break
		}
		some = append(some, p)
	}
	r.mu.Unlock()
	for _, p := range some {
		l, ok := p.live()
		if !ok {
			continue
		}
		// Else one of its processes has ended, and has taken its part along.
		if l.ran >= p.sampled.ran && l.Delay >= p.sampled.waited {
			ran += l.ran - p.sampled.ran
			waited += l.Delay - p.sampled.waited
		}
		p.sampled = sample{l.ran, l.Delay}
	}
	return ran, waited
}

// live looks at a process; not ok if it has ended.
func (p *Process) live() (Live, bool) {
	p.mu.Lock() // while it is held nobody else has the number
	defer p.mu.Unlock()
	if p.reaped {
		return Live{}, false
	}
	return live(p.process.Pid), true
}
