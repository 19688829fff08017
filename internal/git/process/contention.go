package process

import "time"

// maxSampled is the maximum number of commands that Contention examines. More would not change the result.
const maxSampled = 16

// sample is the state of a command at the last call of Contention.
type sample struct{ ran, waited time.Duration }

// Contention returns how long processes of running commands ran on a CPU since the last call, and how long they waited
// for one. It samples some of them, in less than a millisecond. It must not be called concurrently.
func (r *Runner) Contention() (ran, waited time.Duration) {
	r.mu.Lock()
	some := make([]*Process, 0, maxSampled)
	for p := range r.running { // in an order that changes
		if len(some) == maxSampled {
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
		// Otherwise one of its processes has ended, and its use is not included any more.
		if l.ran >= p.sampled.ran && l.Delay >= p.sampled.waited {
			ran += l.ran - p.sampled.ran
			waited += l.Delay - p.sampled.waited
		}
		p.sampled = sample{l.ran, l.Delay}
	}
	return ran, waited
}

// live returns the use of a process; ok is false if it has ended.
func (p *Process) live() (Live, bool) {
	p.mu.Lock() // until it is unlocked, the number cannot be reused
	defer p.mu.Unlock()
	if p.reaped {
		return Live{}, false
	}
	return live(p.process.Pid), true
}
