package watchdog

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"runtime/pprof"
	"runtime/trace"
	"sync"
	"time"
)

// profile writes one of the runtime's profiles.
func profile(name string, debug int) func(io.Writer) error {
	return func(to io.Writer) error { return pprof.Lookup(name).WriteTo(to, debug) }
}

// writeStacks writes the stack of each goroutine, with what it waits for and how long it has.
func writeStacks(to io.Writer) error {
	n := runtime.NumGoroutine()
	if n > manyGoroutines {
		return fmt.Errorf("%d goroutines are too many for a stack of each; goroutines.txt has them together", n)
	}
	for size := min(64<<10+n<<11, stackLimit); ; size = min(2*size, stackLimit) {
		buf := make([]byte, size)
		if n := runtime.Stack(buf, true); n < size || size == stackLimit {
			_, err := to.Write(buf[:n])
			return err
		}
	}
}

// writeCPU profiles the CPU for a while. It fails where somebody does so already.
func (w *Watchdog) writeCPU(to io.Writer) error {
	if err := pprof.StartCPUProfile(to); err != nil {
		return err
	}
	defer pprof.StopCPUProfile()
	select {
	case <-time.After(w.Profile):
	case <-w.stopped.Done():
	}
	return nil
}

func (w *Watchdog) writeTrace(to io.Writer) error {
	return w.recorder.writeTo(w.stopped, to, w.Profile)
}

// recorder keeps the last seconds of the execution trace, as long as that costs little. An event costs about as much as
// switching to another goroutine does, so that a process which switches very often is traced only while a dump is made:
// one that gets nothing done does not switch, and is traced again before the sign has lasted long enough. The methods
// of nil do nothing.
type recorder struct {
	config trace.FlightRecorderConfig

	mu     sync.Mutex
	flight *trace.FlightRecorder // nil: it is paused
	calm   time.Time             // since when there has been little to trace, while it is paused
	ended  bool
}

// Pauses of the recorder: at maxSwitches a second for each CPU it costs about 2 % of the CPU time where each comes with
// a dozen system calls, which are events with a stack (small fetches: 9 % at 8,000), and less elsewhere. It resumes
// when there have been half as many for resumeAfter.
const (
	maxSwitches = 2_000
	resumeAfter = 3 * time.Second
)

// newRecorder starts one that has about as many bytes. There may be one in a process. What came before a sign had
// lasted for stall is in it still, if there is room.
func newRecorder(bytes int64, stall time.Duration) (*recorder, error) {
	r := &recorder{config: trace.FlightRecorderConfig{MinAge: stall + 5*time.Second, MaxBytes: uint64(bytes)}}
	if err := r.start(); err != nil {
		return nil, err
	}
	return r, nil
}

// start begins to trace. The lock is held, or nobody else knows of r.
func (r *recorder) start() error {
	flight := trace.NewFlightRecorder(r.config)
	if err := flight.Start(); err != nil {
		return err
	}
	r.flight = flight
	return nil
}

// pace pauses or resumes for the number of switches to goroutines in a second on each CPU, unless a dump is being made.
// It reports whether it traces.
func (r *recorder) pace(now time.Time, switches float64) bool {
	if r == nil || !r.mu.TryLock() {
		return r != nil
	}
	defer r.mu.Unlock()
	switch {
	case r.flight != nil && switches > maxSwitches:
		r.flight.Stop()
		r.flight, r.calm = nil, time.Time{}
	case r.flight != nil || r.ended:
	case switches > maxSwitches/2:
		r.calm = time.Time{}
	case r.calm.IsZero():
		r.calm = now
	case now.Sub(r.calm) >= resumeAfter:
		_ = r.start() // else at the next look
	}
	return r.flight != nil
}

// writeTo writes what there is. A recorder that is paused traces for a while first, until ctx ends at most.
func (r *recorder) writeTo(ctx context.Context, to io.Writer, while time.Duration) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.flight == nil {
		if r.ended {
			return errEnded
		}
		if err := r.start(); err != nil {
			return err
		}
		select {
		case <-time.After(while):
		case <-ctx.Done():
		}
		defer func() {
			r.flight.Stop()
			r.flight = nil
		}()
	}
	_, err := r.flight.WriteTo(to)
	return err
}

// stop ends it, unless a dump that hangs has it: the process ends, then.
func (r *recorder) stop() {
	if r == nil || !r.mu.TryLock() {
		return
	}
	defer r.mu.Unlock()
	r.ended = true
	if r.flight != nil {
		r.flight.Stop()
		r.flight = nil
	}
}
