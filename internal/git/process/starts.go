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

// begin adds a start. end removes it.
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

// Starting returns the age of the oldest start in progress; 0: there is none. A start takes milliseconds. If it takes
// seconds, a disk or the kernel hangs.
func (r *Runner) Starting() (longest time.Duration) {
	r.starts.mu.Lock()
	defer r.starts.mu.Unlock()
	for _, began := range r.starts.all {
		longest = max(longest, time.Since(began))
	}
	return longest
}
