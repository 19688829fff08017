package balance

import (
	"slices"
	"time"
)

// subjects counts a queue's work by what it is on, and bounds how many slots one subject has. The zero bound is none.
//
// The bound holds only while others are about. A subject that is alone, as the one repository of a small server is, then leaves no slot idle; and one
// that others come back to within aboutFor finds a slot free for them at once, instead of behind work that takes minutes.
type subjects struct {
	each int // slots; 0: no bound
	all  map[string]*subject
	top  []string   // those with each slots or more
	last [2]arrival // the latest, and the latest on another subject than that
}

// subject is what there is on one: it has work, or it is not there.
type subject struct{ waiting, holding int }

type arrival struct {
	on string
	at time.Duration
}

// aboutFor is how long a subject counts as being about after work on it came.
const aboutFor = time.Minute

// arrive notes work that comes.
func (s *subjects) arrive(on string, now time.Duration) {
	if on == "" {
		return
	}
	if s.last[0].on != on {
		s.last[1] = s.last[0]
	}
	s.last[0] = arrival{on, now}
}

// count changes how many wait and hold slots.
func (s *subjects) count(on string, waiting, holding int) {
	if on == "" {
		return
	}
	one := s.all[on]
	if one == nil {
		one = new(subject)
		s.all[on] = one
	}
	one.waiting += waiting
	one.holding += holding
	if *one == (subject{}) {
		delete(s.all, on)
	}
	if s.each == 0 {
		return
	}
	switch is, was := one.holding >= s.each, one.holding-holding >= s.each; {
	case is && !was:
		s.top = append(s.top, on)
	case was && !is:
		i := slices.Index(s.top, on)
		s.top = slices.Delete(s.top, i, i+1)
	}
}

// resize sets the bound.
func (s *subjects) resize(each int) {
	s.each, s.top = max(each, 0), s.top[:0]
	if s.each == 0 {
		return
	}
	for name, one := range s.all {
		if one.holding >= s.each {
			s.top = append(s.top, name)
		}
	}
}

// alone tells whether no other subject is about.
func (s *subjects) alone(on string, now time.Duration) bool {
	if len(s.all) > 1 || len(s.all) == 1 && s.all[on] == nil {
		return false
	}
	for _, a := range s.last {
		if a.on != "" && a.on != on && now-a.at < aboutFor {
			return false
		}
	}
	return true
}

// bounded tells whether a subject may have no further slot now.
func (s *subjects) bounded(on string, now time.Duration) bool {
	one := s.all[on]
	return on != "" && s.each > 0 && one != nil && one.holding >= s.each && !s.alone(on, now)
}

// full lists the subjects that may have no further slot now, and tells how many wait for them.
func (s *subjects) full(now time.Duration) (names []string, waiting int) {
	for _, name := range s.top {
		if s.bounded(name, now) {
			names = append(names, name)
			waiting += s.all[name].waiting
		}
	}
	return names, waiting
}

// lapse is when a subject may be alone because no other has been about for long enough, after which others of its work may have slots; false: never, as it is.
func (s *subjects) lapse(now time.Duration) (at time.Duration, ok bool) {
	if len(s.top) == 0 || len(s.all) != 1 {
		return 0, false
	}
	for _, a := range s.last {
		if s.all[a.on] == nil && a.on != "" && a.at+aboutFor > now && (!ok || a.at+aboutFor > at) {
			at, ok = a.at+aboutFor, true
		}
	}
	return at, ok
}
