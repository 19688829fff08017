package retry

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
)

var errDown = errors.New("down")

// world is a cache and a server that takes a second to answer with a number.
type world struct {
	*testing.T
	*Answers[string, int]
	fail  error
	since time.Time
	asked int
}

func newWorld(t *testing.T) *world {
	return &world{T: t, Answers: NewAnswers[string, int](2, 10*time.Second, time.Now)}
}

func (w *world) ask(key string) (int, bool, error) {
	return w.Ask(w.Context(), key, w.since, func() (Answer[int], error) {
		time.Sleep(time.Second)
		w.asked++
		now := time.Now()
		return Answer[int]{w.asked, now.Add(time.Minute), now.Add(2 * time.Minute), now.Add(time.Hour)}, w.fail
	})
}

func (w *world) want(step string, want int, stale bool, fails error, asked int) {
	w.Helper()
	got, isStale, err := w.ask("a")
	w.Wait()
	if got != want || isStale != stale || err != fails || w.asked != asked {
		w.Errorf("%s: got %d, stale %v, %v after %d questions; want %d, %v, %v after %d", step, got, isStale, err, w.asked,
			want, stale, fails, asked)
	}
}

func TestTimes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.fail = errDown
		w.want("down", 0, false, errDown, 1)
		w.fail = nil
		w.want("failed lately", 0, false, errDown, 1)
		time.Sleep(10 * time.Second)
		w.want("first", 2, false, nil, 2)
		w.want("known", 2, false, nil, 2)
		if v, ok := w.Get("a"); v != 2 || !ok {
			t.Errorf("Get = %d, %v", v, ok)
		}
		time.Sleep(time.Minute)
		if _, ok := w.Get("a"); ok {
			t.Error("Get returns an answer that has to be renewed")
		}
		began := time.Now()
		if v, _, _ := w.ask("a"); v != 2 || time.Since(began) != 0 {
			t.Errorf("before Expires: got %d after %v, want 2 at once", v, time.Since(began))
		}
		w.Wait()
		w.want("renewed", 3, false, nil, 3)
		time.Sleep(3 * time.Minute)
		w.fail = errDown
		w.want("down", 3, true, nil, 4)
		w.want("down, not asked", 3, true, nil, 4)
		time.Sleep(time.Hour)
		w.want("too old", 0, false, errDown, 5)
		w.Forget("a")
		w.fail = nil
		w.want("forgotten", 6, false, nil, 6)
		time.Sleep(3 * time.Minute)
		w.fail = fault.New(fault.Exhausted, "too many")
		if _, isStale, err := w.ask("a"); isStale || err != w.fail {
			t.Errorf("refused: %v, stale %v", err, isStale)
		}
		time.Sleep(10 * time.Second)
		w.fail, w.since = nil, time.Now()
		w.want("since now", 8, false, nil, 8)
		w.fail, w.since = errDown, time.Now()
		w.want("since now, down", 8, true, nil, 9)
		w.want("since now, failed lately", 8, true, nil, 9)
		for _, key := range []string{"b", "c"} {
			_, _, _ = w.ask(key)
		}
		if n := w.known.Len(); n != 2 {
			t.Errorf("%d answers, want at most 2", n)
		}
	})
}

func TestCallersShareAQuestion(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		first := func() (Answer[int], error) { time.Sleep(time.Second); return Answer[int]{Value: 1}, nil }
		if _, _, err := w.Ask(gone, "a", time.Time{}, first); err != context.Canceled {
			t.Errorf("a caller that left: %v", err)
		}
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() {
				if v, _, err := w.ask("a"); v != 1 || err != nil {
					t.Errorf("got %d, %v; want the answer to the caller that left", v, err)
				}
			})
		}
		all.Wait()
		if w.known.Len() != 0 || len(w.running) != 0 {
			t.Error("an answer without an end is kept")
		}
	})
}
