package balance

import "time"

// estimate is how long work of one kind takes: a moving average.
type estimate struct {
	mean time.Duration
	seen int // how many it is made from; no further than enough
}

func (e *estimate) add(d time.Duration) {
	if e.seen = min(e.seen+1, enough); e.seen == 1 {
		e.mean = d
		return
	}
	e.mean += (d - e.mean) / 8
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

func (s *estimates) find(route string) *estimate {
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
