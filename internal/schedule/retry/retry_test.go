package retry

import (
	"context"
	"math"
	"testing"
	"testing/synctest"
	"time"
)

func TestPause(t *testing.T) {
	t.Parallel()
	p := Policy{time.Second, 5 * time.Second}
	for failures, want := range map[int]time.Duration{1: time.Second, 2: 2 * time.Second, 3: 4 * time.Second,
		4: 5 * time.Second, math.MaxInt: 5 * time.Second} {
		if got := p.Pause(failures); got != want {
			t.Errorf("after %d failures: got %v, want %v", failures, got, want)
		}
		if got := p.Jitter(failures); got < want/2 || got > want {
			t.Errorf("after %d failures with jitter: got %v, want half of %v to all", failures, got, want)
		}
	}
}

func TestWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		p, began := Policy{time.Second, time.Second}, time.Now()
		if err := p.Wait(ctx, 1, 5*time.Second); err != nil || time.Since(began) != 5*time.Second {
			t.Errorf("with a hint: got %v after %v, want nil after 5s", err, time.Since(began))
		}
		if err := Sleep(ctx, time.Hour); err != context.DeadlineExceeded || time.Since(began) != time.Minute {
			t.Errorf("at the end of the context: got %v after %v", err, time.Since(began))
		}
	})
}
