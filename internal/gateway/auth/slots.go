package auth

import (
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// slots limits the requests for callers that run at the same time. Callers of one network can use half of them, so that
// guesses from there do not block others. Safe for concurrent use.
type slots struct {
	all  chan struct{} // one for each running request
	wait time.Duration // how long a caller waits for a slot

	mu       sync.Mutex
	networks map[string]*networkSlots // by the network of the client
}

// networkSlots are the slots of one network.
type networkSlots struct {
	slots chan struct{}
	users int // requests that have a slot or wait for one
}

func newSlots(n int, wait time.Duration) *slots {
	return &slots{all: make(chan struct{}, n), wait: wait, networks: map[string]*networkSlots{}}
}

// enter waits for a slot for a client. leave returns the slot. The error is Exhausted.
func (s *slots) enter(client string) (leave func(), err error) {
	name := network(client)
	s.mu.Lock()
	own := s.networks[name]
	if own == nil {
		own = &networkSlots{slots: make(chan struct{}, cap(s.all)/2)}
		s.networks[name] = own
	}
	own.users++
	s.mu.Unlock()
	limit := time.NewTimer(s.wait)
	defer limit.Stop()
	var held []chan struct{}
	leave = func() {
		for _, slots := range held {
			<-slots
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if own.users--; own.users == 0 {
			delete(s.networks, name)
		}
	}
	for _, slots := range []chan struct{}{own.slots, s.all} {
		select {
		case slots <- struct{}{}:
			held = append(held, slots)
		case <-limit.C:
			leave()
			return nil, fault.Retry(fault.Exhausted, fault.RetryLater,
				"too many callers authenticate at the same time; try again")
		}
	}
	return leave, nil
}
