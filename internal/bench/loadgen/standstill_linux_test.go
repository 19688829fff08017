package loadgen

import (
	"errors"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestStandstill takes a CPU at a higher priority, as a host does. It retries if the runtime interrupted that, as on a
// busy machine.
func TestStandstill(t *testing.T) {
	const long = 50 * time.Millisecond
	var began time.Duration
	var spans []Span
	for range 50 {
		began, spans = takeCPU(t, long)
		var seen time.Duration
		for _, s := range spans {
			seen += max(0, min(s.To, began+long)-max(s.From, began))
		}
		if seen >= long/2 { // the kernel lets others in between, for some milliseconds
			return
		}
	}
	t.Errorf("a CPU was taken from %v on for %v; seen: %v", began, long, spans)
}

// takeCPU takes the first CPU for a while. It returns the time when that began and the spans that standStills found.
func takeCPU(t *testing.T, long time.Duration) (began time.Duration, spans []Span) {
	t.Helper()
	spans, err := standStills(func() error {
		done := make(chan error)
		go func() {
			runtime.LockOSThread() // for good
			var one unix.CPUSet
			cpus, err := allowedCPUs()
			if err == nil {
				one.Set(cpus[0])
				err = errors.Join(unix.SchedSetaffinity(0, &one),
					unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 2}, 0))
			}
			began = Monotonic()
			for Monotonic() < began+long {
			}
			done <- err
		}()
		return <-done
	})
	if errors.Is(err, unix.EPERM) {
		t.Skip("SKIPPED: a priority of real time is not permitted here")
	}
	if err != nil {
		t.Fatal(err)
	}
	return began, spans
}
