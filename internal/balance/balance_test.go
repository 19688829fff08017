package balance

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// TestQueue replays random steps against a plain model: never over the limit, first come first served, no slot lost.
func TestQueue(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var q queue
		now := time.Unix(0, 0)
		q.resize(rapid.IntRange(1, 3).Draw(t, "slots"), rapid.IntRange(0, 4).Draw(t, "queue"), now)
		var holding, waiting, gone []*ticket // the model; waiting is in the order of arrival
		settle := func() {
			for len(waiting) > 0 && len(holding) < q.slots {
				holding, waiting = append(holding, waiting[0]), waiting[1:]
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"enter": func(t *rapid.T) {
				tk, ok := q.enter(now)
				if room := len(holding) < q.slots || len(waiting) < q.max; ok != room {
					t.Fatalf("enter: %v, want %v", ok, room)
				}
				if ok {
					waiting = append(waiting, tk)
				}
			},
			"leave": func(t *rapid.T) {
				all := append(append(append([]*ticket(nil), holding...), waiting...), gone...)
				if len(all) == 0 {
					t.Skip()
				}
				tk := all[rapid.IntRange(0, len(all)-1).Draw(t, "who")]
				now = now.Add(time.Duration(rapid.IntRange(0, 100).Draw(t, "ms")) * time.Millisecond)
				q.leave(tk, now)
				holding, waiting = without(holding, tk), without(waiting, tk)
				gone = append(without(gone, tk), tk)
			},
			"resize": func(t *rapid.T) {
				q.resize(rapid.IntRange(1, 4).Draw(t, "slots"), rapid.IntRange(0, 4).Draw(t, "queue"), now)
			},
			"": func(t *rapid.T) {
				settle()
				if q.inUse != len(holding) || q.waiting.Len() != len(waiting) {
					t.Fatalf("%d in use, %d waiting; want %d, %d", q.inUse, q.waiting.Len(), len(holding), len(waiting))
				}
				for _, tk := range holding {
					if !isGranted(tk) {
						t.Fatal("the oldest waits while a slot is free")
					}
				}
				for _, tk := range waiting {
					if isGranted(tk) {
						t.Fatal("a slot was given out of turn")
					}
				}
				if d := q.retryAfter(); d < time.Second || d > time.Minute {
					t.Fatalf("retry after %v", d)
				}
			},
		})
	})
}

func without(ts []*ticket, t *ticket) []*ticket {
	var out []*ticket
	for _, x := range ts {
		if x != t {
			out = append(out, x)
		}
	}
	return out
}

func isGranted(t *ticket) bool {
	select {
	case <-t.granted:
		return true
	default:
		return false
	}
}

func TestAcquire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewSlots(Limits{Slots: 1, Queue: 1, Wait: 10 * time.Second}, Clock{})
		release, waited, err := s.Acquire(t.Context())
		if err != nil || waited != 0 {
			t.Fatal(waited, err)
		}
		got := make(chan time.Duration)
		go func() {
			release, waited, err := s.Acquire(t.Context())
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
		if _, _, err := s.Acquire(t.Context()); !fault.Is(err, fault.Exhausted) || fault.RetryAfter(err) < time.Second {
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
		release, _, _ := s.Acquire(t.Context())
		defer release()

		_, waited, err := s.Acquire(t.Context())
		if !fault.Is(err, fault.Exhausted) || waited != 10*time.Second {
			t.Errorf("after the limit: %v, %v", waited, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, waited, err = s.Acquire(ctx); !fault.Is(err, fault.Deadline) || waited != time.Second {
			t.Errorf("after the context's deadline: %v, %v", waited, err)
		}
		if _, _, err = s.Acquire(ctx); !fault.Is(err, fault.Deadline) {
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
				if release, _, err := s.Acquire(ctx); err == nil {
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
