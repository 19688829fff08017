package control

import (
	"context"
	"runtime"
	"time"

	"github.com/packhorse-git/packhorse/internal/admit"
	"github.com/packhorse-git/packhorse/internal/balance"
	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1/internalv1connect"
	"github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"
)

// Heavy look-ups are those whose work grows with the repository, or that wait for the disk. They wait for slots of their own before they enter
// the small lane: however many there are, they leave room in it, and CPUs, for what is small. Log, DiffStat and Files are the others (enterHeavy).
var heavyCalls = []string{
	packhorsev1connect.RepositoryServiceCreateProcedure, packhorsev1connect.RepositoryServiceGetProcedure,
	packhorsev1connect.RepositoryServiceListProcedure, packhorsev1connect.RepositoryServiceDeleteProcedure,
	packhorsev1connect.RepositoryServiceSetHeadProcedure,
	internalv1connect.NodeServiceCountCommitsProcedure,
}

const (
	slotsPerCPU = 2
	// slotQueue and slotWait bound those that wait for a slot: fewer than the calls that one connection carries.
	slotQueue = 256
	slotWait  = 30 * time.Second
	// slotPatience is how long a reader may take for a message before the slot of its look-up goes to another.
	slotPatience = 100 * time.Millisecond
)

func newSlots(n int) *balance.Slots {
	if n <= 0 {
		n = slotsPerCPU * runtime.NumCPU()
	}
	return balance.NewSlots(n, balance.Limits{Queue: slotQueue, Wait: slotWait}, balance.Clock{})
}

// takeSlot waits for a heavy look-up's slot. The errors are those of balance.Slots.Acquire.
func (s *Server) takeSlot(ctx context.Context, caller string) (release func(), err error) {
	release, waited, err := s.slots.Acquire(ctx, balance.Caller(caller))
	s.Metrics.slotWait.Observe(waited.Seconds())
	return release, err
}

// place is where a look-up runs: what fits into one message is small, a longer answer has its place among the long ones. Used by one goroutine.
type place struct {
	server *Server
	seat   *admit.Seat
	caller string
	slot   func() // gives back the slot of a heavy one; nil: it has none
	begun  bool   // the first message has been sent, or is about to be
}

// enter lets a look-up into the small lane, or refuses it with an error of kind Exhausted. Who was let in calls end.
func (s *Server) enter() (*place, error) {
	seat, err := s.Lanes.Small.Enter("")
	if err != nil {
		return nil, err
	}
	seat.Stay()
	return &place{server: s, seat: seat}, nil
}

// enterHeavy is enter for a heavy look-up: it has a slot before it enters. Errors are of kind Exhausted, or that of ctx.
func (s *Server) enterHeavy(ctx context.Context, caller string) (*place, error) {
	slot, err := s.takeSlot(ctx, caller)
	if err != nil {
		return nil, err
	}
	p, err := s.enter()
	if err != nil {
		slot()
		return nil, err
	}
	p.caller, p.slot = caller, slot
	return p, nil
}

// move goes to the lane of long answers, or fails with an error of kind Exhausted. More than once does nothing.
func (p *place) move() error { return p.seat.Move(p.server.Lanes.Hit) }

// next is called before each message of a stream: the first is a look-up's, with the second the answer is a long one. Errors are those of move.
func (p *place) next() error {
	if p.begun {
		return p.move()
	}
	p.begun = true
	return nil
}

// send sends one more message of a heavy look-up (next). A slow reader keeps no slot from others. What has begun is not refused for it: if no slot becomes free in time it goes on without one.
func (p *place) send(ctx context.Context, message func() error) error {
	if err := p.next(); err != nil {
		return err
	}
	slow := time.AfterFunc(slotPatience, p.giveSlot())
	err := message()
	if slow.Stop() || err != nil {
		return err
	}
	p.slot, err = p.server.takeSlot(ctx, p.caller)
	if fault.Is(err, fault.Exhausted) {
		return nil
	}
	return err
}

// giveSlot gives the slot back, if there is one.
func (p *place) giveSlot() func() {
	if p.slot == nil {
		return func() {}
	}
	return p.slot
}

func (p *place) end() {
	p.seat.Leave()
	p.giveSlot()()
}
