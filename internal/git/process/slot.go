package process

import (
	"context"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
)

// Slot is a slot of a class, for work that may need a command or not.
type Slot struct {
	Waited  time.Duration // in the queue
	release func()
}

// Release ends the use of the slot. It has no effect after a Start that has taken it over, or after the first call.
func (s *Slot) Release() {
	if release := s.release; release != nil {
		s.release = nil
		release()
	}
}

// Acquire waits for a slot of a command's class, for a caller and on a repository. The caller releases it. The errors
// are those of Start.
func (r *Runner) Acquire(ctx context.Context, c *Command) (*Slot, error) {
	cl, ok := r.classes[c.Class]
	if !ok {
		return nil, fault.New(fault.Internal, "no class %q of git commands", c.Class)
	}
	request := inflight.From(ctx)
	request.SetStage(inflight.Queued)
	release, waited, err := r.acquire(ctx, cl, c)
	request.SetStage(inflight.Packing)
	if err != nil {
		r.metrics.refused(c, err)
		return nil, err
	}
	return &Slot{Waited: waited, release: release}, nil
}

func (r *Runner) acquire(ctx context.Context, cl class, c *Command) (func(), time.Duration, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(r.stopping, cancel)()
	release, waited, err := cl.slots.AcquireOn(ctx, c.Caller, c.Repository)
	if err != nil && r.stopping.Err() != nil {
		err = errClosed()
	}
	return release, waited, err
}
