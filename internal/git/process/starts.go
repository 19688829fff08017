package process

import (
	"sync"
	"time"
)

// starts holds the starts that are in progress. Its lock is held only briefly, so that the watchdog can read it while
// starts hang.
type starts struct {
	mu  sync.Mutex
	all map[*Process]time.Time
}

// begin notes a start, until end is called.
func (s *starts) begin(p *Process) (end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[*Process]time.Time{}
	}
	s.all[p] = time.Now()
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.all, p)
	}
}

// Starting is for how long the system has been starting a process that it has not started yet, of several the longest;
// 0: there is none. A start takes milliseconds, however large we are: one that takes seconds has found a disk or a
// kernel that does not answer.
func (r *Runner) Starting() (longest time.Duration) {
	r.starts.mu.Lock()
	defer r.starts.mu.Unlock()
	for _, began := range r.starts.all {
		longest = max(longest, time.Since(began))
	}
	return longest
}
