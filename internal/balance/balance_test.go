package balance

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
)

func TestAcquire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewSlots(Limits{Slots: 1, Queue: 1, Wait: 10 * time.Second}, Clock{})
		release, waited, err := s.Acquire(t.Context(), "")
		if err != nil || waited != 0 {
			t.Fatal(waited, err)
		}
		got := make(chan time.Duration)
		go func() {
			release, waited, err := s.Acquire(t.Context(), "")
			if err != nil {
				t.Error(err)
			}
			release()
			got <- waited
		}()
		synctest.Wait()
		if s.InUse() != 1 || s.Queued() != 1 || s.Size() != 1 {
			t.Errorf("%d in use, %d queued, %d slots", s.InUse(), s.Queued(), s.Size())
		}
		if _, _, err := s.Acquire(t.Context(), ""); !fault.Is(err, fault.Exhausted) || fault.RetryAfter(err) < time.Second {
			t.Errorf("a full queue: %v", err)
		}
		time.Sleep(3 * time.Second)
		release()
		release()
		if d := <-got; d != 3*time.Second {
			t.Errorf("waited %v, want 3s", d)
		}
		if s.InUse() != 0 || s.Queued() != 0 {
			t.Errorf("%d in use, %d queued at the end", s.InUse(), s.Queued())
		}
	})
}

func TestAcquireGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewSlots(Limits{Slots: 1, Queue: 9, Wait: 10 * time.Second}, Clock{})
		release, _, _ := s.Acquire(t.Context(), "")
		defer release()

		_, waited, err := s.Acquire(t.Context(), "")
		if !fault.Is(err, fault.Exhausted) || waited != 10*time.Second {
			t.Errorf("after the limit: %v, %v", waited, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, waited, err = s.Acquire(ctx, ""); !fault.Is(err, fault.Deadline) || waited != time.Second {
			t.Errorf("after the context's deadline: %v, %v", waited, err)
		}
		if _, _, err = s.Acquire(ctx, ""); !fault.Is(err, fault.Deadline) {
			t.Errorf("with a context that has ended: %v", err)
		}
		if s.Queued() != 0 {
			t.Errorf("%d still queued", s.Queued())
		}
	})
}

// TestCancelRace lets callers give up in the very moment in which slots are passed on: none may be lost.
func TestCancelRace(t *testing.T) {
	t.Parallel()
	s := NewSlots(Limits{Slots: 2, Queue: 1000}, Clock{})
	done := make(chan struct{})
	const callers = 16
	for i := range callers {
		go func() {
			defer func() { done <- struct{}{} }()
			for j := range 500 {
				ctx, cancel := context.WithCancel(context.Background())
				if (i+j)%2 == 0 {
					go cancel()
				}
				if release, _, err := s.Acquire(ctx, ""); err == nil {
					if n := s.InUse(); n > 2 {
						t.Errorf("%d in use", n)
					}
					release()
				}
				cancel()
			}
		}()
	}
	for range callers {
		<-done
	}
	if s.InUse() != 0 || s.Queued() != 0 {
		t.Errorf("%d in use, %d queued at the end", s.InUse(), s.Queued())
	}
}
