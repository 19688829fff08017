package sched

import (
	"fmt"
	"math"
	"time"

	"github.com/packhorse-git/packhorse/internal/schedule/balance"
)

// packhorse is the gateway's own scheduler with the simulation's clock. Its queue and the time in it are unlimited
// here.
type packhorse struct {
	core    *balance.Core
	index   map[*balance.Worker]int
	tickets map[*schedJob]*balance.Ticket
	waiting map[*balance.Ticket]*schedJob
	granted []*balance.Ticket // by the current call
	alarm   float64           // time of its next event
}

func newPackhorse(s *schedSim) schedPolicy {
	p := &packhorse{index: map[*balance.Worker]int{}, tickets: map[*schedJob]*balance.Ticket{},
		waiting: map[*balance.Ticket]*schedJob{}, alarm: math.Inf(1)}
	p.core = balance.NewCore(balance.Limits{Queue: math.MaxInt},
		func(t *balance.Ticket) { p.granted = append(p.granted, t) })
	slots := s.cell.slots
	if _, n, _ := findPolicy(s.cell.policy); n > 0 {
		slots = min(slots, n)
	}
	members := make([]balance.Member, s.cell.workers)
	for i := range members {
		members[i] = balance.Member{Name: fmt.Sprintf("w%04d", i), Slots: slots}
	}
	for i, w := range p.core.Set(0, members) {
		p.index[w] = i
	}
	return p
}

// time returns the simulation's time for the scheduler.
func (s *schedSim) time() time.Duration { return time.Duration(s.now * float64(time.Second)) }

func (p *packhorse) arrive(s *schedSim, j *schedJob) {
	t, err := p.core.Enter(s.time(), balance.Work{})
	if err != nil {
		panic(fmt.Sprintf("sched: an unlimited queue refuses a request: %v", err))
	}
	p.tickets[j] = t
	if t.Worker() != nil {
		p.begin(s, j, t)
	} else {
		p.waiting[t] = j
	}
	p.follow(s)
}

func (p *packhorse) leave(s *schedSim, j *schedJob) {
	t := p.tickets[j]
	delete(p.tickets, j)
	p.core.Leave(s.time(), t, balance.OK)
	p.follow(s)
}

func (p *packhorse) wake(s *schedSim, _ int) {
	if p.alarm <= s.now {
		p.alarm = math.Inf(1)
	}
	p.core.Wake(s.time())
	p.follow(s)
}

// follow handles the effects of the last call.
func (p *packhorse) follow(s *schedSim) {
	for len(p.granted) > 0 {
		t := p.granted[0]
		p.granted = p.granted[1:]
		j := p.waiting[t]
		delete(p.waiting, t)
		p.begin(s, j, t)
	}
	if at, ok := p.core.Next(s.time()); ok {
		if when := at.Seconds() + float64(time.Nanosecond)/float64(time.Second); when < p.alarm {
			p.alarm = when
			s.at(when, 0)
		}
	}
}

func (p *packhorse) begin(s *schedSim, j *schedJob, t *balance.Ticket) {
	s.start(j, p.index[t.Worker()])
}
