package balance

import "time"

// tuner finds how many of their slots workers use. What needs a worker's processor is done no sooner two at a time than one after the other; what waits for
// something else is.
//
// It measures how much a worker gets done with 1, 2, 3 ... at once (speeds), how much comes (demand), and how much work differs. From these it predicts for
// each number of slots how much there would be in the workers and in the queue, and so how long work takes, and goes to the least. What is not known well is
// doubted in favour of more slots: too many cost some tens of percent, too few let a queue grow without end. So it begins with all, and goes back to them
// when much waits, unless they gained nothing.
//
// What is not known is tried: while all slots are taken and something waits, one worker uses a step more than the others for a few pieces of work, or a step less.
type tuner struct {
	level  int // a step: the slots that workers use
	most   int // the highest level
	speeds speeds
	demand demand

	busy      time.Duration // for which no worker was idle, but those in reserve
	saturated bool
	since     time.Duration // from when the last is not in busy yet
	learned   int           // pieces of work, up to where it is enough
	due       int           // pieces of work until the level is thought over
	held      int           // pieces of work for which what pressure led to is kept
	flat      bool          // more slots gained nothing when that was known last: no pressure is a reason to use them
	doubted   int           // pieces of work for which there was a reason not to believe that
	trying    int           // workers
	less      budget        // of trials of less
	more      budget        // and of more
}

// budget bounds how much is tried.
type budget struct {
	credit float64 // pieces of work
	calm   float64 // so many end, while no worker is idle, for each one that is tried
}

// earn is for a piece of work that ended: so many, and no more than calmest, allow one to be tried.
func (b *budget) earn(most, calmest float64) {
	b.credit = min(b.credit+1/min(b.calm, calmest), most)
}

// rest makes trials rarer.
func (b *budget) rest() { b.calm = min(b.calm*1.5, calmMost) }

// demand is how much comes, in pieces of work a second.
type demand struct {
	last  time.Duration
	gap   float64 // moving mean, in seconds
	count float64
}

const (
	demandBack  = 256
	demandLeast = 8  // gaps, to know a pause from them
	longest     = 16 // mean gaps; a pause is not what comes
	pause       = 256
)

func (d *demand) add(now time.Duration) {
	gap := (now - d.last).Seconds()
	switch {
	case d.count == 0:
		gap = 0
	case d.count >= demandLeast:
		gap = min(gap, longest*d.gap)
	case d.gap > pause*gap:
		d.gap, d.count = gap, 1 // what came before was a pause
	}
	d.gap += (gap - d.gap) / max(d.count, 1)
	d.last, d.count = now, min(d.count+1, demandBack)
}

func (d *demand) rate() float64 { return 1 / max(d.gap, 1e-9) }

// steps are the numbers of slots that are told apart.
var steps = [...]int{1, 2, 3, 4, 6, 8, 12, 16, 24, 32}

const (
	gainUp     = 0.05 // part of all there is that one level must spare, to go up to it
	gainDown   = 0.03 // and down
	doubtUp    = 0.5  // standard errors
	doubtDown  = 1.0  // to use less: that is the worse error
	doubtPress = 1.5
	wellKnown  = 0.1 // standard error for which nothing is tried, as a part
	heldBy     = 64  // pieces of work
	doubtBy    = 32  // pieces of work
	pressing   = 2   // times all slots is much
	crowdedBy  = 64  // pieces of work
	leastDue   = 8   // pieces of work
	trialKeeps = 4   // times as much as a trial is stays of what was known
	calmLeast  = 3.0
	calmMost   = 64.0
	calmWaits  = 32.0 // where more waits than runs: there is more to gain
)

// stepOf is the step that a number belongs to: the first that is not less, or the last.
func stepOf(n int) int {
	for i, s := range steps {
		if n <= s {
			return i
		}
	}
	return len(steps) - 1
}

// spent is for how long a worker had so many in flight; busy: of that, by the tuner's time.
type spent [len(steps)]struct{ all, busy time.Duration }

// since is the time in each class after another one, in seconds.
func (s *spent) since(before *spent) (in vector) {
	for i := range s {
		in[i+1] = (s[i].all - before[i].all).Seconds()
	}
	in[0] = in[1]
	in[1] = (s[0].busy - before[0].busy).Seconds()
	in[0] -= in[1]
	return in
}

func newTuner() tuner {
	return tuner{less: budget{calm: calmLeast}, more: budget{calm: calmLeast}}
}

// resize sets how many slots there are at the most. Who uses all goes on to.
func (u *tuner) resize(slots int) {
	most := stepOf(slots)
	if most != u.most {
		u.speeds, u.learned, u.flat = speeds{}, 0, false
		u.less, u.more = budget{calm: calmLeast}, budget{calm: calmLeast}
	}
	if u.level == u.most {
		u.level = most
	}
	u.most, u.level, u.speeds.most = most, min(u.level, most), most+1
}

// limit is how many slots a worker uses whose trial is some steps above or below.
func (u *tuner) limit(slots, trial int) int {
	if u.level+trial >= u.most {
		return slots
	}
	return min(slots, u.step(trial))
}

func (u *tuner) step(trial int) int { return steps[min(max(u.level+trial, 0), u.most)] }

// tick notes whether all are busy from now on, but those in reserve.
func (u *tuner) tick(now time.Duration, saturated bool) {
	if u.saturated {
		u.busy += now - u.since
	}
	u.since, u.saturated = now, saturated
}

// time is the tuner's: it stands while a worker is idle.
func (u *tuner) time(now time.Duration) time.Duration {
	if u.saturated {
		return u.busy + now - u.since
	}
	return u.busy
}

// note brings what a worker has spent up to date; called before the number in flight changes.
func (u *tuner) note(w *Worker, now time.Duration) {
	busy := u.time(now)
	if w.inFlight > 0 {
		at := &w.spent[stepOf(w.inFlight)]
		at.all += now - w.noted
		at.busy += busy - w.notedBusy
	}
	w.noted, w.notedBusy = now, busy
}

// class is the one that a worker is in.
func (u *tuner) class(w *Worker) int {
	if w.inFlight == 1 && !u.saturated {
		return 0
	}
	return 1 + stepOf(w.inFlight)
}

// learn takes in a piece of work that ends well, and is worth so many of the mean; 0: nobody knows. It tells whether the level changes for it.
func (u *tuner) learn(t *Ticket, worth float64, p pressure, workers int) (changed bool) {
	w := t.worker
	in := w.spent.since(&t.spent)
	u.speeds.add(&in, worth, min(u.class(w), u.most+1), workers)
	if w.trial < 0 || w.trial > 0 && in[1+min(u.level+1, u.most)] > 0 {
		w.trialLeft--
	}
	least := 2 * workers * steps[u.most] // before, it is what is short that ends
	if u.learned < least && worth > 0 {
		u.learned++
	}
	if u.learned < least || !u.saturated {
		return false
	}
	u.held = max(u.held-1, 0)
	calmest := calmWaits
	if p == pressureLow {
		calmest = calmMost
		u.less.earn(float64(u.trialSize(-1)), calmest) // there is nothing to spare otherwise
	}
	u.more.earn(float64(u.trialSize(1)), calmest)
	if u.due--; u.due > 0 {
		return false
	}
	u.due = max(leastDue, 2*steps[u.most]) // more slots are more to predict
	return u.think(p, workers)
}

// think goes to another level if that is better, or safer when much waits; it tells whether it did. A burst of what computes, or a machine that is slow for a while,
// is no reason to share where that gained nothing. A refusal is, always: sharing makes work slower, but places for it too.
func (u *tuner) think(p pressure, workers int) bool {
	u.speeds.solve()
	switch none, much := u.gain(); {
	case none:
		u.flat, u.doubted = true, 0
	case much:
		u.flat = false
	case u.flat && p >= pressureHigh: // by now it may be another way: a trial tells, or where trials tell nothing, all slots do
		u.more.credit = float64(u.trialSize(1))
		u.doubted += u.due
		u.flat = u.doubted < doubtBy
	}
	return (p == pressureFull || p == pressureHigh && !u.flat) && u.press() || u.decide(workers)
}

// decide goes to a level at which work takes less time, as far as can be told.
func (u *tuner) decide(workers int) bool {
	for i := range u.most + 1 {
		if (i > u.level || i < u.level && u.held == 0) && u.better(i, workers) {
			u.set(i)
			return true
		}
	}
	return false
}

// better tells whether work would take less time at another level, with some doubt of what higher ones get done.
func (u *tuner) better(level, workers int) bool {
	low, high, errs, gain := level, u.level, doubtDown, gainDown
	known := low + 1
	if level > u.level {
		low, high, errs, gain = u.level, level, -doubtUp, gainUp
		known = high
	}
	if !u.speeds.knows(low, known, leastCount) {
		return false
	}
	var done [len(steps)]float64
	for i := range high + 1 {
		done[i] = u.speeds.done(i)
		if i > low && u.speeds.knows(low, i, leastCount) {
			is, err := u.speeds.times(low, i)
			done[i] = max(is+errs*err, 0.1) * done[low]
		} else if i > low && level < u.level { // all that could be
			done[i] = done[i-1] * stepUp(i-1)
		}
	}
	return u.predict(&done, level, workers) < u.predict(&done, u.level, workers)*(1-gain)
}

// press has all workers use all slots; it tells whether that is new.
func (u *tuner) press() bool {
	u.held = heldBy
	if u.level == u.most {
		return false
	}
	u.set(u.most)
	return true
}

// gain tells whether more slots are known to gain none, or much; neither: little is known.
func (u *tuner) gain() (none, much bool) {
	for i := u.level + 1; i <= u.most; i++ {
		if !u.speeds.knows(u.level, i, leastGuard) {
			continue
		}
		is, err := u.speeds.times(u.level, i)
		if is+doubtPress*err < 1+gainUp {
			return true, false
		}
		much = much || is-doubtPress*err > 1+gainUp
	}
	return false, much
}

func (u *tuner) set(level int) {
	u.level, u.flat, u.less.calm, u.more.calm = level, false, calmLeast, calmLeast
}

// trialSize is of how much work a trial is.
func (u *tuner) trialSize(trial int) int {
	return max(leastCount, 2*u.step(trial))
}

// next is the trial that is due, of some workers: 1, -1, or 0 for none.
func (u *tuner) next(workers int) (trial int) {
	for _, t := range []struct {
		trial  int
		budget *budget
	}{{1, &u.more}, {-1, &u.less}} {
		to := u.level + t.trial
		if to >= 0 && to <= u.most && u.trying <= workers/8 && t.budget.credit >= float64(u.trialSize(t.trial)) && !u.knowsWell(min(to, u.level)) {
			return t.trial
		}
	}
	return 0
}

// knowsWell tells whether it is known how much one step more gets done.
func (u *tuner) knowsWell(low int) bool {
	if !u.speeds.knows(low, low+1, leastCount) {
		return false
	}
	is, err := u.speeds.times(low, low+1)
	return err < wellKnown*is
}

// begin begins a trial at a worker.
func (u *tuner) begin(w *Worker, trial int, now, mean time.Duration) {
	u.trying++
	until := now + 4*time.Duration(u.trialSize(trial))*mean
	if trial > 0 { // more is allowed, and not always made use of
		until += 10 * (until - now)
		u.more.credit = 0
	} else {
		u.less.credit = 0
	}
	w.trial, w.trialLeft, w.trialEnds = trial, u.trialSize(trial), until
	u.speeds.forget(1+u.level+trial, trialKeeps*float64(u.trialSize(trial)))
}

// end ends a worker's trial, and tells whether the level changes for it.
func (u *tuner) end(w *Worker, workers int) (changed bool) {
	u.trying--
	trial, to := w.trial, u.level+w.trial
	w.trial = 0
	if to < 0 || to > u.most {
		return false
	}
	u.speeds.solve()
	if u.decide(workers) {
		return true
	}
	switch {
	case w.trialLeft > 0, !u.speeds.knows(min(u.level, to), max(u.level, to), leastCount): // it says little
	case trial > 0:
		u.more.rest()
	default:
		u.less.rest()
	}
	return false
}

// quit ends the trial of a worker that goes.
func (u *tuner) quit(w *Worker) {
	if w.trial != 0 {
		u.trying--
		w.trial = 0
	}
}

// pressure tells how much waits.
type pressure int

const (
	pressureLow pressure = iota // no more than runs
	pressureSome
	pressureHigh // more than twice all slots
	pressureFull // some was refused of late
)
