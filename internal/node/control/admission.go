package control

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"runtime"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1/internalv1connect"
	"github.com/packhorse-git/packhorse/internal/schedule/admit"
	"github.com/packhorse-git/packhorse/internal/schedule/balance"
	"github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"
)

// heavyCalls are the unary look-ups whose work grows with the repository, or that wait for the disk. They wait for a
// slot before they enter the small lane, so that they leave room and CPUs for small ones. The streams Log, Files and
// File are heavy too, see begin.
var heavyCalls = []string{
	packhorsev1connect.RepositoryServiceCreateProcedure, packhorsev1connect.RepositoryServiceGetProcedure,
	packhorsev1connect.RepositoryServiceListProcedure, packhorsev1connect.RepositoryServiceDeleteProcedure,
	packhorsev1connect.RepositoryServiceRenameProcedure, packhorsev1connect.RepositoryServiceSetHeadProcedure,
	packhorsev1connect.RepositoryServiceForkProcedure, packhorsev1connect.RepositoryServiceConfigureProcedure,
	internalv1connect.NodeServiceCountCommitsProcedure, packhorsev1connect.EventServiceListProcedure,
}

// workCalls are the unary calls that compute, see enterWork.
var workCalls = []string{
	packhorsev1connect.HistoryServiceMergeBaseProcedure, packhorsev1connect.HistoryServiceAheadBehindProcedure,
	packhorsev1connect.HistoryServiceIsAncestorProcedure, packhorsev1connect.HistoryServiceContainsProcedure,
	packhorsev1connect.MergeServiceMergeProcedure,
}

// pushCalls are the unary calls that change a repository. Hooks can make them wait. Those of them that compute have a
// slot only until then.
var pushCalls = []string{
	packhorsev1connect.CommitServiceCreateProcedure, packhorsev1connect.CommitServiceApplyPatchProcedure,
	packhorsev1connect.RefServiceUpdateProcedure, packhorsev1connect.MergeServiceMergeProcedure,
}

const (
	slotsPerCPU = 2
	// slotQueue and slotWait limit the calls that wait for a slot. They are fewer than the calls of one connection.
	slotQueue = 256
	slotWait  = 30 * time.Second
	// slotPatience is how long a reader may take for a message until its look-up gives up the slot.
	slotPatience = 100 * time.Millisecond
)

// shareOf returns the caller to whose share of the slots a call counts: the client that a gateway names, or the caller
// itself.
func shareOf(header http.Header) string {
	client, _ := url.QueryUnescape(header.Get(node.ShareHeader))
	return cmp.Or(client, header.Get(callerHeader))
}

func newSlots(n int) *balance.Slots {
	if n <= 0 {
		n = slotsPerCPU * runtime.NumCPU()
	}
	return balance.NewSlots(n, balance.Limits{Queue: slotQueue, Wait: slotWait}, balance.Clock{})
}

// admission is the place of a look-up in its lane: a response of one message is in the small lane, a longer one in the
// lane of long responses. It is not safe for concurrent use.
type admission struct {
	server *Server
	seat   *admit.Seat
	slots  *balance.Slots // of the slot
	caller string
	slot   func() // gives back the slot of a heavy look-up; nil: it has none
	begun  bool   // next was called
}

// enter admits a look-up to the small lane. The caller has to call end. The error is of kind Exhausted.
func (s *Server) enter() (*admission, error) {
	seat, err := s.Lanes.Small.Enter("")
	if err != nil {
		return nil, err
	}
	seat.Stay()
	return &admission{server: s, seat: seat}, nil
}

// enterPush admits a call that changes a repository to the lane of pushes. The error is of kind Exhausted.
func (s *Server) enterPush() (*admission, error) {
	p, err := s.enter()
	if err != nil {
		return nil, err
	}
	if err := p.seat.Move(s.Lanes.Push); err != nil {
		p.end()
		return nil, err
	}
	return p, nil
}

// enterHeavy is enter for a heavy look-up, which first waits for a slot. The error is of kind Exhausted, or that of
// ctx.
func (s *Server) enterHeavy(ctx context.Context, caller string) (*admission, error) {
	return s.enterWith(ctx, s.slots, caller)
}

// enterWork is enterHeavy for calls that compute: merges, diffs, blames, archives. They have slots of their own, so
// that they delay neither look-ups nor sessions of Git.
func (s *Server) enterWork(ctx context.Context, caller string) (*admission, error) {
	return s.enterWith(ctx, s.work, caller)
}

func (s *Server) enterWith(ctx context.Context, slots *balance.Slots, caller string) (*admission, error) {
	slot, _, err := slots.Acquire(ctx, balance.Caller(caller))
	if err != nil {
		return nil, err
	}
	p, err := s.enter()
	if err != nil {
		slot()
		return nil, err
	}
	p.slots, p.caller, p.slot = slots, caller, slot
	return p, nil
}

// move changes to the lane of long responses. Later calls do nothing. The error is of kind Exhausted.
func (p *admission) move() error { return p.seat.Move(p.server.Lanes.Hit) }

// next is called before each message of a stream. With the second message the response is a long one. Errors are those
// of move.
func (p *admission) next() error {
	if p.begun {
		return p.move()
	}
	p.begun = true
	return nil
}

// send sends a message of a heavy look-up, after next. A slow reader gives up the slot for others. If it cannot get a
// slot again in time, it continues without one.
func (p *admission) send(ctx context.Context, message func() error) error {
	if err := p.next(); err != nil {
		return err
	}
	slow := time.AfterFunc(slotPatience, p.giveSlot())
	err := message()
	if slow.Stop() || err != nil {
		return err
	}
	p.slot, _, err = p.slots.Acquire(ctx, balance.Caller(p.caller))
	if fault.Is(err, fault.Exhausted) {
		return nil
	}
	return err
}

// giveSlot returns a function that gives up the slot, if there is one.
func (p *admission) giveSlot() func() {
	if p.slot == nil {
		return func() {}
	}
	return p.slot
}

func (p *admission) end() {
	p.seat.Leave()
	p.giveSlot()()
}
