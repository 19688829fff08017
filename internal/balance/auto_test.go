package balance

import (
	"testing"
	"time"
)

// TestTunerResize: who uses all slots goes on to, others keep their number as far as there are so many, and what was known of other slots is forgotten.
func TestTunerResize(t *testing.T) {
	t.Parallel()
	tried := budget{credit: 5, calm: calmMost}
	for _, c := range []struct {
		from, used, to int
		want           int
		fresh          bool
	}{
		{4, 4, 8, 8, true},
		{4, 1, 8, 1, true},
		{4, 3, 2, 2, true},
		{4, 4, 2, 2, true},
		{4, 2, 4, 2, false},
		{5, 2, 6, 2, false}, // told apart by steps
	} {
		u := newTuner()
		u.resize(c.from)
		u.level, u.learned, u.flat, u.less, u.more = stepOf(c.used), 7, true, tried, tried
		u.resize(c.to)
		if u.limit(c.to, 0) != c.want {
			t.Errorf("%d of %d slots used, then there are %d: %d used, want %d", c.used, c.from, c.to, u.limit(c.to, 0), c.want)
		}
		fresh := budget{calm: calmLeast}
		if is := u.learned == 0 && !u.flat && u.less == fresh && u.more == fresh; is != c.fresh {
			t.Errorf("from %d slots to %d: forgotten: %t, want %t", c.from, c.to, is, c.fresh)
		}
	}
}

// TestTrialThatRanOut: a trial whose time is over before its work is done says little, and makes none rarer.
func TestTrialThatRanOut(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		left  int
		rests bool
	}{{3, false}, {0, true}} {
		u := newTuner()
		u.resize(2)
		u.speeds.weight, u.speeds.pieces = 1, 100
		for i := range u.speeds.speed {
			u.speeds.speed[i], u.speeds.count[i], u.speeds.time[i], u.speeds.b[i] = 1, 50, 50, 50
			u.speeds.a[i][i] = 50
		}
		u.set(1)
		w := &Worker{}
		u.begin(w, -1, 0, time.Second)
		w.trialLeft = c.left
		u.end(w, 2)
		if rests := u.less.calm > calmLeast; rests != c.rests {
			t.Errorf("%d pieces of work left: trials become rarer: %t, want %t", c.left, rests, c.rests)
		}
		if u.trying != 0 || w.trial != 0 {
			t.Errorf("the trial goes on: %d workers, %d", u.trying, w.trial)
		}
	}
}
