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

	"github.com/packhorse-git/packhorse/internal/schedule/retry"
)

// profile writes one of the runtime's profiles.
func profile(name string, debug int) func(io.Writer) error {
	return func(to io.Writer) error { return pprof.Lookup(name).WriteTo(to, debug) }
}

// writeStacks writes the stack of each goroutine, with the reason and duration of its wait.
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

// writeCPU writes a CPU profile. It fails if another profile is running.
func (w *Watchdog) writeCPU(to io.Writer) error {
	if err := pprof.StartCPUProfile(to); err != nil {
		return err
	}
	defer pprof.StopCPUProfile()
	_ = retry.Sleep(w.stopped, w.Profile)
	return nil
}

func (w *Watchdog) writeTrace(to io.Writer) error {
	return w.recorder.writeTo(w.stopped, to, w.Profile)
}

// recorder keeps the last seconds of the execution trace while that is cheap. An event costs about as much as a
// goroutine switch, so a process that switches very often is traced only during a dump. A process without progress does
// not switch, so tracing resumes before a sign has lasted long enough. Methods of a nil recorder do nothing.
type recorder struct {
	config trace.FlightRecorderConfig

	mu     sync.Mutex
	flight *trace.FlightRecorder // nil: it is paused
	calm   time.Time             // since when there has been little to trace, while it is paused
	ended  bool
}

// Pauses of the recorder. At maxSwitches per second and CPU, tracing costs about 2 % of the CPU time if each switch
// comes with a dozen system calls. These are events with a stack: small fetches cost 9 % at 8,000 switches. Elsewhere
// tracing costs less. It resumes after half that rate for resumeAfter.
const (
	maxSwitches = 2_000
	resumeAfter = 3 * time.Second
)

// newRecorder starts a recorder of about the given number of bytes. A process may have one. If there is space, the
// trace still contains the time before a sign that has lasted for stall.
func newRecorder(bytes int64, stall time.Duration) (*recorder, error) {
	r := &recorder{config: trace.FlightRecorderConfig{MinAge: stall + 5*time.Second, MaxBytes: uint64(bytes)}}
	if err := r.start(); err != nil {
		return nil, err
	}
	return r, nil
}

// start starts tracing. The caller holds the lock, or r is not shared yet.
func (r *recorder) start() error {
	flight := trace.NewFlightRecorder(r.config)
	if err := flight.Start(); err != nil {
		return err
	}
	r.flight = flight
	return nil
}

// pace pauses or resumes tracing according to the goroutine switches per second and CPU, except during a dump. It
// reports whether the recorder traces.
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

// writeTo writes the trace. A paused recorder traces for a while first, at most until ctx ends.
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
		_ = retry.Sleep(ctx, while)
		defer func() {
			r.flight.Stop()
			r.flight = nil
		}()
	}
	_, err := r.flight.WriteTo(to)
	return err
}

// stop stops tracing, unless a dump that hangs uses the recorder. The process is ending then.
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
