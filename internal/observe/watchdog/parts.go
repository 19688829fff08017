package watchdog

import (
	"fmt"
	"io"
	"runtime"
	"runtime/pprof"
	"runtime/trace"
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

// recorder keeps the last seconds of the execution trace. The methods of nil do nothing.
type recorder struct{ flight *trace.FlightRecorder }

// newRecorder starts one that has about as many bytes. There may be one in a process. What came before a sign had lasted for stall is in it still, if
// there is room.
func newRecorder(bytes int64, stall time.Duration) (*recorder, error) {
	r := &recorder{trace.NewFlightRecorder(trace.FlightRecorderConfig{MinAge: stall + 5*time.Second, MaxBytes: uint64(bytes)})}
	if err := r.flight.Start(); err != nil {
		return nil, err
	}
	return r, nil
}

func (r *recorder) writeTo(to io.Writer) error {
	_, err := r.flight.WriteTo(to)
	return err
}

func (r *recorder) stop() {
	if r != nil {
		r.flight.Stop()
	}
}
