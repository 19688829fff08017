package balance

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// TestSchedulerAtOnce changes everything while work comes, waits, gives up and ends: no worker ever has more than its
// slots, and counts come out even.
func TestSchedulerAtOnce(t *testing.T) {
	t.Parallel()
	const slots = 2
	s := New(Options{Limits: Limits{Queue: 1000}})
	var down atomic.Bool
	members := []Member{{Name: "a", Slots: slots}, {Name: "b", Slots: slots, Weight: 3}, {Name: "c", Slots: slots,
		Ready: func() error {
			if down.Load() {
				return errors.New("down")
			}
			return nil
		}}}
	all := s.Set(members)
	running := make([]atomic.Int64, 3)
	stop := make(chan struct{})
	var changes, work sync.WaitGroup
	changes.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			down.Store(i%3 == 0)
			s.Changed()
			_ = s.Drain("b", i%2 == 0)
			s.Narrow(all[0], 1+i%2)
			s.Limit(Limits{Queue: 1000, Each: i % 3})
			_ = s.State(all[0])
		}
	})
	var served atomic.Int64
	for g := range 8 {
		work.Go(func() {
			for i := range 500 {
				ctx, cancel := context.WithCancel(t.Context())
				if i%5 == 0 {
					go cancel()
				}
				seat, err := s.Acquire(ctx, Work{Caller: Caller(strconv.Itoa(g % 3))})
				if err == nil {
					at := int(seat.Worker().Name()[0] - 'a')
					if n := running[at].Add(1); n > slots {
						t.Errorf("%s has %d of %d", seat.Worker().Name(), n, slots)
					}
					served.Add(1)
					running[at].Add(-1)
					seat.Done(Outcome(i % 3))
					seat.Done(OK)
				}
				cancel()
			}
		})
	}
	work.Wait()
	close(stop)
	changes.Wait()
	if s.InUse() != 0 || s.Queued() != 0 || served.Load() == 0 {
		t.Errorf("%d run and %d wait at the end of %d", s.InUse(), s.Queued(), served.Load())
	}
}

// TestWokenByTime: what time alone changes is done for those who wait, though nothing else happens.
func TestWokenByTime(t *testing.T) {
	waits := func(t *testing.T, s *Scheduler, w Work) (waited chan time.Duration) {
		waited = make(chan time.Duration, 1)
		go func() {
			seat, err := s.Acquire(t.Context(), w)
			if err != nil {
				t.Error(err)
				return
			}
			waited <- seat.Waited()
			seat.Done(OK)
		}()
		synctest.Wait()
		return waited
	}
	t.Run("a subject is alone", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := New(Options{Limits: Limits{Queue: 9, Each: 1}})
			s.Set([]Member{{Slots: 2}})
			for _, on := range []string{"other", "mono"} {
				seat, err := s.Acquire(t.Context(), Work{Subject: on})
				if err != nil {
					t.Fatal(err)
				}
				if on == "other" {
					seat.Done(OK)
				}
			}
			if d := <-waits(t, s, Work{Subject: "mono"}); d != recently {
				t.Errorf("it waited for %v, want %v", d, recently)
			}
		})
	})
	t.Run("a worker is ready again", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := New(Options{Limits: Limits{Queue: 9}})
			var down atomic.Bool
			s.Set([]Member{{Name: "a", Slots: 1}, {Name: "b", Slots: 1, Ready: func() error {
				if down.Load() {
					return errors.New("down")
				}
				return nil
			}}})
			down.Store(true)
			s.Changed()
			if _, err := s.Acquire(t.Context(), Work{}); err != nil {
				t.Fatal(err)
			}
			waited := waits(t, s, Work{})
			down.Store(false)
			s.Changed()
			if d := <-waited; d != 0 {
				t.Errorf("told, it waited for %v", d)
			}
		})
	})
}

// TestNoWorker checks that work that no worker can ever do does not wait.
func TestNoWorker(t *testing.T) {
	t.Parallel()
	s := New(Options{Limits: Limits{Queue: 9}})
	refused := func(w Work, kind fault.Kind) {
		t.Helper()
		if seat, err := s.Acquire(t.Context(), w); !fault.Is(err, kind) || seat != nil {
			t.Errorf("%+v: %v, want %v", w, err, kind)
		}
	}
	refused(Work{}, fault.Unavailable)
	all := s.Set([]Member{{Name: "a", Slots: 1}, {Name: "b", Slots: 1}})
	refused(Work{Tried: []string{"a", "b"}}, fault.Unavailable)
	refused(Work{Among: all[:1], Tried: []string{"a"}}, fault.Unavailable)
	seat, err := s.Acquire(t.Context(), Work{Among: all[:1]})
	if err != nil || seat.Reason() != Only || seat.Worker() != all[0] {
		t.Fatal(seat, err)
	}
	refused(Work{Among: all[:1], NoWait: true}, fault.Exhausted)
	if err := s.Drain("a", true); err != nil {
		t.Fatal(err)
	}
	refused(Work{Among: all[:1]}, fault.Unavailable)
	s.Set(nil)
	seat.Done(OK)
	refused(Work{}, fault.Unavailable)
}

// BenchmarkAssign gives work to one of many workers and takes it back; so does each of some goroutines.
func BenchmarkAssign(b *testing.B) {
	for _, n := range []int{1, 16, 1000} {
		for _, how := range []string{"slots", "ready", "among"} {
			b.Run(fmt.Sprint(n, "/", how), func(b *testing.B) {
				s, all := many(n, how)
				work := Work{}
				if how == "among" {
					work.Among = all
				}
				b.ReportAllocs()
				for b.Loop() {
					seat, err := s.Acquire(b.Context(), work)
					if err != nil {
						b.Fatal(err)
					}
					seat.Done(OK)
				}
			})
		}
	}
	b.Run("16/of 8 goroutines", func(b *testing.B) {
		s, _ := many(16, "slots")
		b.ReportAllocs()
		b.SetParallelism(4)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				seat, err := s.Acquire(b.Context(), Work{})
				if err != nil {
					b.Error(err)
					return
				}
				seat.Done(OK)
			}
		})
	})
}

func many(n int, how string) (*Scheduler, []*Worker) {
	s := New(Options{Limits: Limits{Queue: 1000}})
	members := make([]Member, n)
	for i := range members {
		members[i] = Member{Name: strconv.Itoa(i), Slots: 4}
		if how == "ready" {
			members[i].Ready = func() error { return nil }
		}
	}
	return s, s.Set(members)
}
