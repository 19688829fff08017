package balance

import "time"

// subjects counts work by its subject and bounds the slots of one subject.
//
// The bound holds only while there is work on other subjects, or was recently. A subject that is alone, like the only
// repository of a small server, leaves no slot idle.
type subjects struct {
	all    map[string]*subject // those with work
	recent [2]arrival          // the latest arrival, and the latest on another subject
}

type subject struct{ waiting, holding int }

type arrival struct {
	subject string
	at      time.Duration
}

// recently is how long a subject counts as present after work on it arrived.
const recently = time.Minute

// note notes that work arrives.
func (s *subjects) note(name string, now time.Duration) {
	if name == "" {
		return
	}
	if s.recent[0].subject != name {
		s.recent[1] = s.recent[0]
	}
	s.recent[0] = arrival{name, now}
}

// count changes the numbers of pieces of work that wait and that hold slots.
func (s *subjects) count(name string, waiting, holding int) {
	if name == "" {
		return
	}
	one := s.all[name]
	if one == nil {
		one = new(subject)
		s.all[name] = one
	}
	one.waiting += waiting
	one.holding += holding
	if *one == (subject{}) {
		delete(s.all, name)
	}
}

// isBounded reports whether a subject must not get another slot now. each is its maximum number of slots; 0 means no
// maximum.
func (s *subjects) isBounded(name string, each int, now time.Duration) bool {
	one := s.all[name]
	if each == 0 || one == nil || one.holding < each {
		return false
	}
	if len(s.all) > 1 {
		return true
	}
	_, ok := s.boundEnds(each, now)
	return ok
}

// boundEnds returns when the only subject with work is no longer bounded, and whether there is such a time.
func (s *subjects) boundEnds(each int, now time.Duration) (at time.Duration, ok bool) {
	if each == 0 || len(s.all) != 1 {
		return 0, false
	}
	for _, a := range s.recent {
		if s.all[a.subject] == nil && a.subject != "" && a.at+recently > now && a.at+recently > at {
			at, ok = a.at+recently, true
		}
	}
	return at, ok
}
