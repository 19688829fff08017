package bulk

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"
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

		// The rest of its time is that of the next answer.
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
		p.give() // its turn has ended, and no other turn starts
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

// A request that lasts keeps no other from its pause, and no pause from its end.
func TestPauseBesideOneThatLasts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPaused()
		p.Began()
		time.Sleep(time.Second)
		p.Served()
		p.Began()
		waits := turn(p, p.take)
		expectTaken(t, waits, false, "in a pause")
		p.Ended()
		expectTaken(t, waits, true, "when the small request was answered, and the long one was not")
		p.give()

		// An answer soon after another one has no pause of its own.
		p.Began()
		time.Sleep(pauseMost + 4*pauseLeast)
		p.Began()
		expectTaken(t, turn(p, p.take), true, "for one of two that came together")
		p.give()
		for range 3 {
			p.Ended()
		}
	})
}

// However many small requests there are, the pump stands still for a fifth of the time at the most.
func TestPausesAreFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPaused()
		begin := time.Now()
		const lasts = 2 * time.Second
		var wg sync.WaitGroup
		var stood time.Duration
		wg.Go(func() {
			w := &waiter{ready: make(chan struct{}, 1)}
			for time.Since(begin) < lasts {
				asked := time.Now()
				p.take(w)
				stood += time.Since(asked)
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
		if most := lasts/(pauseShare+1) + pauseMost; stood > most || stood < most/2 {
			t.Errorf("stood still for %v of %v, want %v at the most, and half of it at least", stood, lasts, most)
		}
	})
}

// A long turn, as with a slow disk, blocks others after a pause only for its own slot.
func TestPauseBesideATurnThatLasts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPump(PumpOptions{Width: 4, Narrow: 3})
		time.Sleep(time.Second)
		p.Served()
		expectTaken(t, turn(p, p.take), true, "before a pause")
		p.Began()
		one, other := turn(p, p.take), turn(p, p.take)
		time.Sleep(pauseMost - 1)
		expectTaken(t, one, false, "in a pause")
		time.Sleep(1)
		expectTaken(t, one, true, "after a pause")
		expectTaken(t, other, true, "after a pause, as a second one")
		p.Ended()
		for range 3 {
			p.give()
		}
	})
}

// Bytes that may be the answer's wait for those that are on their way, and not for the pause.
func TestOwnBytesInAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPaused()
		expectTaken(t, turn(p, p.take), true, "before a pause")
		before := turn(p, p.takeOwn)
		p.Began()
		waits, own := turn(p, p.take), turn(p, p.takeOwn)
		expectTaken(t, own, false, "beyond the width")
		p.give()
		expectTaken(t, own, true, "in a pause, for bytes that may be the answer's")
		expectTaken(t, before, false, "in a pause")
		p.give()
		expectTaken(t, before, false, "in a pause, for bytes that came before it")
		p.Ended()
		expectTaken(t, before, true, "after it")
		expectTaken(t, waits, false, "beyond the width")
		p.give()
		expectTaken(t, waits, true, "after that")
		p.give()
		if n := p.Running(); n != 0 {
			t.Errorf("%d turns left over, want 0", n)
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
			t.Errorf("%d turns left over, want 0", n)
		}
	})
}
