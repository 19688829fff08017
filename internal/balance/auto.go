package balance

import (
	"math"
	"time"
)

// tuner finds how many of their slots workers use. What needs a worker's processor is done no sooner two at a time than one after the other; what waits for
// something else is.
//
// It measures what a worker gets done with so many at once. A piece of work that ends is worth what its route takes on average, as a part of what all work
// takes, which grows with sharing. That is shared out over the numbers that ran at its worker meanwhile, by how long they did and how fast that is as far as
// is known; over that time it gives their speed. A number times its speed is what gets done. Only time counts in which no worker was idle: the machine is
// as busy then with few at each as with many. One step more is taken if enough is gained of what it could gain, and taken back if it is not, or not any
// longer. It begins with all slots, and goes back to them when much waits: too many cost some tens of percent, too few let a queue grow without end.
//
// What is not known is tried: while all slots are taken and something waits, one worker uses a step more than the others for a few pieces of work, or a step
// less; rarely, once that tells nothing new.
type tuner struct {
	level  int // a step: the slots that workers use
	most   int // the highest level
	speeds [len(steps)]speed

	busy      time.Duration // for which no worker was idle
	saturated bool
	since     time.Duration // from when the last is not in busy yet
	trying    int           // workers
	less      budget        // of trials of less
	more      budget        // and of more
	held      int           // pieces of work for which less gain is enough to keep what pressure led to
	holds     int           // how many the next time
}

// budget bounds how much is tried.
type budget struct {
	credit float64 // pieces of work
	calm   float64 // so many end for each one that is tried
}

func (b *budget) earn(most float64) { b.credit = min(b.credit+1/b.calm, most) }

// rest makes trials rarer.
func (b *budget) rest(factor float64) { b.calm = min(b.calm*factor, calmMost) }

// steps are the numbers of slots that are told apart.
var steps = [...]int{1, 2, 3, 4, 6, 8, 12, 16, 24, 32}

// speed is what is known of one of them.
type speed struct {
	work  float64 // done, in pieces of mean worth
	time  float64 // that it took, in seconds
	count float64 // pieces of work that it is from
}

const (
	gainUp     = 0.25 // of what one step more could gain, to take it
	gainDown   = 0.16 // to keep it
	gainNeeded = 0.1  // to take it where more waits than runs
	gainAll    = 0.08 // of all steps to the one in use, to keep that, or to the last, to take it where much waits
	gainHeld   = 0.05 // to keep a step that was taken because much waited
	pressing   = 2    // times all slots is much
	holdLeast  = 64   // pieces of work
	holdMost   = 2048
	doubt      = 0.5 // standard errors
	doubtDown  = 0.8 // to use less: that is the worse error
	leastCount = 6
	mostCount  = 128.0
	forgetting = 256.0 // pieces of work, after which less than a half of what was learned still counts
	calmLeast  = 3.0
	calmMost   = 32.0
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

func newTuner() tuner {
	return tuner{less: budget{calm: calmLeast}, more: budget{calm: calmLeast}, holds: holdLeast}
}

// resize sets how many slots there are at the most. Who uses all goes on to.
func (u *tuner) resize(slots int) {
	most := stepOf(slots)
	if u.level == u.most {
		u.level = most
	}
	u.most, u.level = most, min(u.level, most)
}

// limit is how many slots a worker uses whose trial is some steps above or below.
func (u *tuner) limit(slots, trial int) int {
	if u.level+trial >= u.most {
		return slots
	}
	return min(slots, u.step(trial))
}

func (u *tuner) step(trial int) int { return steps[min(max(u.level+trial, 0), u.most)] }

// tick notes whether all are busy from now on.
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

func (u *tuner) speed(i int) float64 {
	s, at := &u.speeds[i], &u.speeds[u.level]
	if s.count >= 1 && s.time > 0 {
		return s.work / s.time
	}
	if at.count >= 1 && at.time > 0 { // as if nothing were gained
		return at.work / at.time * float64(steps[u.level]) / float64(steps[i])
	}
	return 1 / float64(steps[i])
}

// learn takes in a piece of work that ended well, and is worth so many of the mean. It tells whether the level changes for it.
func (u *tuner) learn(t *Ticket, worth float64, p pressure) (changed bool) {
	w, sum := t.worker, 0.0
	var parts [len(steps)]float64
	for i := range parts {
		parts[i] = (w.spent[i].all - t.spent[i].all).Seconds() * u.speed(i)
		sum += parts[i]
	}
	for i := range parts {
		s := &u.speeds[i]
		s.forget(s.count * (1 - 1/forgetting))
		if parts[i] == 0 {
			continue
		}
		all, busy := w.spent[i].all-t.spent[i].all, w.spent[i].busy-t.spent[i].busy
		part := parts[i] / sum * busy.Seconds() / all.Seconds()
		s.forget(mostCount)
		s.work += part * worth
		s.time += busy.Seconds()
		s.count += part
	}
	if w.trial < 0 || w.trial > 0 && parts[min(u.level+1, u.most)] > 0 {
		w.trialLeft--
	}
	if !u.saturated {
		return false
	}
	u.held = max(u.held-1, 0)
	if p == high && u.press() {
		return true
	}
	if p == low { // there is nothing to spare otherwise
		u.less.earn(float64(u.trialSize(-1)))
	}
	u.more.earn(float64(u.trialSize(1)))
	return u.drop()
}

// drop goes down to where the next step, or all that are in use above it, gain nothing, by what is known from when fewer ran than may.
func (u *tuner) drop() bool {
	for i := range u.level {
		gain, err, ok := u.gain(i, i+1)
		all, errAll, okAll := u.gain(i, u.level)
		if ok && gain+doubtDown*err < u.keep() || okAll && all+doubtDown*errAll < gainAll {
			u.set(i)
			u.held = 0
			return true
		}
	}
	return false
}

// keep is the gain for which the step that is in use is kept.
func (u *tuner) keep() float64 {
	if u.held > 0 {
		return gainHeld
	}
	return gainDown
}

// press has all workers use all slots, unless that is known to gain nothing.
func (u *tuner) press() bool {
	if u.level == u.most {
		u.held = max(u.held, holdLeast)
		return false
	}
	if gain, err, ok := u.gain(u.level, u.most); ok && gain+doubt*err < gainAll {
		return false
	}
	u.set(u.most)
	u.held, u.holds = u.holds, min(2*u.holds, holdMost)
	return true
}

func (u *tuner) set(level int) {
	u.level, u.less.calm, u.more.calm = level, calmLeast, calmLeast
}

func (s *speed) forget(count float64) {
	if s.count > count {
		part := count / s.count
		s.work, s.time, s.count = s.work*part, s.time*part, count
	}
}

// trialSize is of how much work a trial is.
func (u *tuner) trialSize(trial int) int {
	return max(leastCount, 2*u.step(trial))
}

// next is the trial that is due, of some workers: 1, -1, or 0 for none. Less is tried where it is not known from when fewer ran than may, or in doubt.
func (u *tuner) next(workers int) (trial int) {
	if u.trying > workers/8 {
		return 0
	}
	if u.level < u.most && u.more.credit >= float64(u.trialSize(1)) {
		return 1
	}
	if u.level > 0 && u.less.credit >= float64(u.trialSize(-1)) {
		if gain, _, ok := u.gain(u.level-1, u.level); !ok || gain < gainDown {
			return -1
		}
	}
	return 0
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
	u.speeds[u.level+trial].forget(float64(8 * u.trialSize(trial)))
}

// end ends a worker's trial, and tells whether the level changes for it.
func (u *tuner) end(w *Worker, p pressure) (changed bool) {
	u.trying--
	trial := w.trial
	w.trial = 0
	if u.level+trial < 0 || u.level+trial > u.most {
		return false
	}
	i := min(u.level, u.level+trial)
	gain, err, ok := u.gain(i, i+1)
	if !ok {
		return false
	}
	switch {
	case trial > 0 && (gain-doubt*err > gainUp || p > low && gain > gainNeeded):
		u.set(u.level + 1)
		return true
	case trial < 0 && gain+doubtDown*err < u.keep():
		u.set(u.level - 1)
		return true
	case trial > 0 && gain+doubt*err < gainUp: // it is known to be good as it is
		u.more.rest(1.5)
	case trial > 0:
		u.more.rest(1.1)
	case gain-doubt*err > gainDown:
		u.less.rest(1.5)
	default:
		u.less.rest(1.1)
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

// gain is which part is gained by one step against a lower one of what it could gain, and its standard error; false: it is not known.
func (u *tuner) gain(low, high int) (gain, err float64, ok bool) {
	a, b := &u.speeds[low], &u.speeds[high]
	if a.count < leastCount || b.count < leastCount || a.work <= 0 || b.work <= 0 {
		return 0, 0, false
	}
	could := float64(steps[high]) / float64(steps[low])
	is := could * (b.work / b.time) / (a.work / a.time)
	return (is - 1) / (could - 1), math.Sqrt(1/a.count+1/b.count) * max(is, 1) / (could - 1), true
}

// pressure tells how much waits.
type pressure int

const (
	low  pressure = iota
	some          // more than runs
	high          // more than twice all slots
)
