package balance

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
)

func TestAcquire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewSlots(1, Limits{Queue: 1, Wait: 10 * time.Second}, Clock{})
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
		s := NewSlots(1, Limits{Queue: 9, Wait: 10 * time.Second}, Clock{})
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
	s := NewSlots(2, Limits{Queue: 1000}, Clock{})
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

// fastOnes has a caller hold slots for a time, one after the other, so that it is known how long they are held.
func fastOnes(t *testing.T, s *Slots, c Caller, n int, held time.Duration) {
	t.Helper()
	for range n {
		release, _, err := s.Acquire(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(held)
		release()
	}
}

// TestRefusesAtOnce checks that only work that would plainly wait too long is refused at once.
func TestRefusesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewSlots(2, Limits{Queue: 100, Wait: 10 * time.Second}, Clock{})
		ctx, cancel := context.WithCancel(t.Context())
		wait := func(c Caller) (refused error) {
			answer := make(chan error, 1)
			go func() {
				release, _, err := s.Acquire(ctx, c)
				if err == nil {
					defer release()
					<-ctx.Done()
				}
				answer <- err
			}()
			synctest.Wait()
			select {
			case err := <-answer:
				return err
			default:
				return nil
			}
		}
		fastOnes(t, s, "ann", enough-1, 4*time.Second)
		for i := range 20 { // two have slots
			if err := wait("ann"); err != nil {
				t.Fatalf("the %d. while little is known: %v", i, err)
			}
		}
		cancel()
		synctest.Wait()

		ctx, cancel = context.WithCancel(t.Context())
		defer cancel()
		s = NewSlots(2, Limits{Queue: 100, Wait: 10 * time.Second}, Clock{})
		fastOnes(t, s, "ann", enough, 4*time.Second)
		fastOnes(t, s, "ann", 1, 2*time.Minute) // a single value has little effect
		if s.scheduler.core.queue.held < 10*time.Second || s.scheduler.core.queue.typical > 5*time.Second {
			t.Errorf("held for %v, mostly %v", s.scheduler.core.queue.held, s.scheduler.core.queue.typical)
		}
		admitted, began := 0, time.Now()
		var err error
		for ; err == nil && admitted < 100; admitted++ {
			err = wait("ann")
		}
		if admitted -= 1; admitted < 2+2*10/5 || admitted > 2+2*10/4+1 {
			t.Errorf("%d were let in", admitted)
		}
		if !fault.IsCallerLimit(err) || fault.RetryAfter(err) < time.Second || time.Since(began) != 0 {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		for _, c := range []Caller{"bob", "eve", "192.0.2.0/24"} {
			if err := wait(c); err != nil {
				t.Errorf("%s, who has nothing there: %v", c, err)
			}
		}
		// A caller that waits for others gets no CallerLimit.
		for i := 0; ; i++ {
			if err := wait(Caller(fmt.Sprint("caller-", i))); err != nil {
				if fault.IsCallerLimit(err) || i == 0 {
					t.Errorf("the %d. of many: %v", i, err)
				}
				break
			}
		}
	})
}

// TestCallerLimitOwnQueue checks that a caller gets a CallerLimit behind its own requests, and not in a queue full of
// requests of others.
func TestCallerLimitOwnQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const wait = 10 * time.Second
		s := NewSlots(1, Limits{Queue: 3, Wait: wait}, Clock{})
		var work sync.WaitGroup
		acquire := func(c Caller) (err error) {
			_, _, err = s.Acquire(t.Context(), c) // and keeps it
			return err
		}
		begin := func(c Caller, share bool) {
			work.Go(func() {
				if err := acquire(c); fault.IsCallerLimit(err) != share || err == nil {
					t.Errorf("%q: %v, want it to be for its own share: %t", c, err, share)
				}
			})
			synctest.Wait()
		}
		if err := acquire("ann"); err != nil {
			t.Fatal(err)
		}
		begin("ann", true)
		begin("ann", true)
		begin("ann", true)
		if err := acquire("ann"); !fault.IsCallerLimit(err) {
			t.Errorf("a queue full of its own: %v", err)
		}
		begin("bob", false) // and the youngest of ann's goes
		begin("eve", false) // the same
		if err := acquire("zoe"); fault.IsCallerLimit(err) || !fault.Is(err, fault.Exhausted) {
			t.Errorf("a queue full of others: %v", err)
		}
		work.Wait()
		if err := acquire(""); fault.IsCallerLimit(err) || !fault.Is(err, fault.Exhausted) {
			t.Errorf("where callers are not told from one another: %v", err)
		}
	})
}

// TestResizeWhileWatched changes how many slots there are while others ask.
func TestResizeWhileWatched(t *testing.T) {
	t.Parallel()
	s := NewSlots(1, Limits{}, Clock{})
	var resized sync.WaitGroup
	resized.Go(func() { s.Resize(3, Limits{}) })
	if n := s.Limit(); n != 1 && n != 3 {
		t.Errorf("%d slots", n)
	}
	s.Narrow(2)
	resized.Wait()
	if s.Size() != 3 {
		t.Errorf("%d slots", s.Size())
	}
}
