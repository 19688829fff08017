package store

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestJointRunBeginsAfterTheCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var j sharedRun[time.Time]
		runs := atomic.Int32{}
		f := func() (time.Time, error) {
			runs.Add(1)
			start := time.Now()
			time.Sleep(10 * time.Millisecond)
			return start, nil
		}
		var callers sync.WaitGroup
		for i := range 1000 {
			callers.Go(func() {
				time.Sleep(time.Duration(i) * time.Microsecond)
				called := time.Now()
				run, _ := j.start(&callers, f)
				if start, err := run.wait(t.Context()); err != nil || start.Before(called) {
					t.Errorf("run began at %v, %v, want not before %v", start, err, called)
				}
			})
		}
		callers.Wait()
		if n := runs.Load(); n != 2 {
			t.Errorf("%d runs for a burst of 1,000 calls, want 2", n)
		}
		if j.running != nil || j.next != nil {
			t.Error("a run is left behind")
		}
	})
}
