package inflight

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Class is a kind of request that is judged by one bound. It is a metric label.
type Class string

// The classes. ClassSmall, ClassHit, ClassCold and ClassPush are named like their lanes.
const (
	NoClass      Class = ""        // not judged
	ClassSmall   Class = "small"   // advertisements, lists of refs, negotiation
	ClassHit     Class = "hit"     // a pack from the cache, to its first byte
	ClassCold    Class = "cold"    // a pack that was made, to its first byte
	ClassPush    Class = "push"    // a push, its way here included
	ClassSearch  Class = "search"  // a search of code
	ClassPage    Class = "page"    // a page for browsers
	ClassResolve Class = "resolve" // what revisions name
	ClassApp     Class = "app"     // for the application, with what it waits for a worker
	ClassCall    Class = "call"    // a call of the control API that is answered from mapped files
	ClassHeavy   Class = "heavy"   // one whose work grows with the repository
)

// tolerable is the factor of Apdex: a response within this many times the bound is tolerable.
const tolerable = 4

// Levels counts how many requests of each class were answered fast enough for their clients. It is safe for concurrent
// use; nil judges nothing.
//
// Each class has a bound. An answer within it is fast, one within four times the bound is tolerable, any other is slow.
// A request that failed for a reason on the server is counted as failed. Mistakes of clients and requests that clients
// gave up do not count. The apdex of a class is the share of fast answers plus half the share of tolerable ones.
type Levels struct{ classes map[Class]*class }

type class struct {
	bound                         time.Duration
	fast, tolerable, slow, failed prometheus.Counter
}

// LevelBounds returns the bound of each class, multiplied by scale.
func LevelBounds(scale float64) map[Class]time.Duration {
	bounds := map[Class]time.Duration{
		ClassSmall: 100 * time.Millisecond, ClassHit: 250 * time.Millisecond, ClassCold: 10 * time.Second,
		ClassPush: 10 * time.Second, ClassSearch: time.Second, ClassPage: 500 * time.Millisecond,
		ClassResolve: 25 * time.Millisecond, ClassApp: time.Second, ClassCall: 25 * time.Millisecond,
		ClassHeavy: 2 * time.Second,
	}
	for class, bound := range bounds {
		bounds[class] = time.Duration(float64(bound) * scale)
	}
	return bounds
}

// NewLevels makes a Levels with a bound for each class; a class that is absent is not judged.
func NewLevels(bounds map[Class]time.Duration, r prometheus.Registerer) *Levels {
	requests := promauto.With(r).NewCounterVec(prometheus.CounterOpts{
		Name: "packhorse_sli_requests_total",
		Help: "Requests by class and verdict: fast (within the bound of the class), tolerable (within four times the " +
			"bound), slow, or failed for a reason on the server, refusals included. Mistakes of clients do not count.",
	}, []string{"class", "verdict"})
	s := &Levels{classes: make(map[Class]*class)}
	for name, bound := range bounds {
		with := func(verdict string) prometheus.Counter { return requests.WithLabelValues(string(name), verdict) }
		s.classes[name] = &class{bound: bound, fast: with("fast"), tolerable: with("tolerable"), slow: with("slow"),
			failed: with("failed")}
	}
	return s
}

// Answered judges a request that was answered after so long.
func (s *Levels) Answered(name Class, took time.Duration) {
	c := s.of(name)
	switch {
	case c == nil:
	case took <= c.bound:
		c.fast.Inc()
	case took <= tolerable*c.bound:
		c.tolerable.Inc()
	default:
		c.slow.Inc()
	}
}

// Failed counts a request that we could not answer.
func (s *Levels) Failed(name Class) {
	if c := s.of(name); c != nil {
		c.failed.Inc()
	}
}

func (s *Levels) of(name Class) *class {
	if s == nil {
		return nil
	}
	return s.classes[name]
}
