package bulk

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// turn takes one in the background.
func turn(p *Pump, take func(*waiter)) (taken chan struct{}) {
	taken = make(chan struct{})
	go func() {
		take(&waiter{ready: make(chan struct{}, 1)})
		close(taken)
	}()
	synctest.Wait()
	return taken
}

func expectTaken(t *testing.T, taken chan struct{}, want bool, when string) {
	t.Helper()
	synctest.Wait()
	select {
	case <-taken:
		if !want {
			t.Errorf("a turn began %s", when)
		}
	default:
		if want {
			t.Errorf("no turn began %s", when)
		}
	}
}

// newPaused is a pump that has a whole pause to give.
func newPaused() *Pump {
	p := NewPump(PumpOptions{Width: 2, Narrow: 1})
	time.Sleep(time.Second)
	p.Served()
	return p
}

func TestPauseEndsWithTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPaused()
		p.Began()
		p.Began()
		taken := turn(p, p.take)
		time.Sleep(time.Millisecond)
		p.Ended()
		expectTaken(t, taken, false, "before the last of two small requests was answered")
		p.Ended()
		expectTaken(t, taken, true, "when all were answered")
		p.give()
		if s := testutil.ToFloat64(p.metrics.paused); s < 0.000_999 || s > 0.001_001 {
			t.Errorf("counted a pause of %v s, want 0.001", s)
		}

		// What it has left is the next one's.
		p.Began()
		taken = turn(p, p.take)
		time.Sleep(pauseMost - time.Millisecond - 1)
		expectTaken(t, taken, false, "in a second pause")
		time.Sleep(1)
		expectTaken(t, taken, true, "after as long as both may be")
		p.give()
		p.Ended()
	})
}

func TestPauseIsShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPaused()
		running := turn(p, p.take)
		expectTaken(t, running, true, "before a pause")
		p.Began()
		waits := turn(p, p.take)
		p.give() // its turn is over, and no other begins
		expectTaken(t, waits, false, "in a pause")
		time.Sleep(pauseMost)
		expectTaken(t, waits, true, "after the longest pause, while a request lasts")
		p.give()
		p.Ended()

		// There is no other one for some time.
		p.Began()
		expectTaken(t, turn(p, p.take), true, "right after a pause")
		p.give()
		p.Ended()
		time.Sleep(pauseShare * pauseLeast)
		p.Began()
		waits = turn(p, p.take)
		time.Sleep(pauseLeast - 1)
		expectTaken(t, waits, false, "in the next pause")
		time.Sleep(1)
		expectTaken(t, waits, true, "after it")
		p.give()
		p.Ended()
	})
}

// However many small requests there are, the pump stands still for a fifth of the time at the most.
func TestPausesAreFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPaused()
		begin := time.Now()
		const lasts = 2 * time.Second
		var wg sync.WaitGroup
		wg.Go(func() {
			w := &waiter{ready: make(chan struct{}, 1)}
			for time.Since(begin) < lasts {
				p.take(w)
				time.Sleep(20 * time.Microsecond)
				p.give()
			}
		})
		for time.Since(begin) < lasts {
			p.Began()
			time.Sleep(300 * time.Microsecond)
			p.Served()
			p.Ended()
			time.Sleep(10 * time.Microsecond)
		}
		wg.Wait()
		paused := testutil.ToFloat64(p.metrics.paused)
		if most := lasts.Seconds()/(pauseShare+1) + pauseMost.Seconds(); paused > most || paused < most/2 {
			t.Errorf("stood still for %.3f of %v, want %.3f s at the most, and half of it at least", paused, lasts, most)
		}
	})
}

func TestNoPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPaused()
		time.Sleep(smallWindow)
		p.Began()
		expectTaken(t, turn(p, p.take), true, "for a request that may be a clone's, while no small one is about")
		p.give()
		p.Ended()

		p.Served()
		p.Began()
		waits := turn(p, p.take)
		expectTaken(t, waits, false, "in a pause")
		expectTaken(t, turn(p, p.takeOwn), true, "for bytes that may be the answer's")
		p.Ended()
		expectTaken(t, waits, false, "beyond the width")
		p.give()
		expectTaken(t, waits, true, "after it")
		p.give()
		if n := p.Running(); n != 0 {
			t.Errorf("%d turns left over", n)
		}
	})
}
