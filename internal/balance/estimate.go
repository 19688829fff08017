package balance

import "time"

// estimate is how long work of one kind takes: moving averages.
type estimate struct {
	mean time.Duration
	slow time.Duration // of more: what work is worth
	seen int           // how many they are made from; no further than the slow one looks back
}

func (e *estimate) add(d time.Duration) {
	const back = 64
	e.seen = min(e.seen+1, back)
	e.mean += (d - e.mean) / time.Duration(min(e.seen, 8))
	e.slow += (d - e.slow) / time.Duration(e.seen)
}

// estimates are those of routes: of as many as were seen last, in two generations, of which the older one goes when the younger is full.
type estimates struct {
	all      estimate // of all work
	now, old map[string]*estimate
}

// routesKept bounds a generation.
const routesKept = 1024

// of is how long work on a route is expected to take: as all work does, until it is known.
func (s *estimates) of(route string) time.Duration {
	if e := s.find(route); e != nil {
		return e.mean
	}
	return s.all.mean
}

// worth is how long it took on average; false: it is not known.
func (s *estimates) worth(route string) (time.Duration, bool) {
	if e := s.find(route); e != nil && e.seen >= enough/4 {
		return e.slow, true
	}
	return 0, false
}

func (s *estimates) find(route string) *estimate {
	if route == "" {
		return &s.all
	}
	e := s.now[route]
	if e == nil {
		e = s.old[route]
	}
	return e
}

// add notes how long a piece of work took. "" is no route.
func (s *estimates) add(route string, took time.Duration) {
	s.all.add(took)
	if route == "" {
		return
	}
	e := s.now[route]
	if e == nil {
		if e = s.old[route]; e == nil {
			e = new(estimate)
		}
		if len(s.now) >= routesKept {
			s.old, s.now = s.now, nil
		}
		if s.now == nil {
			s.now = map[string]*estimate{}
		}
		s.now[route] = e
	}
	e.add(took)
}
