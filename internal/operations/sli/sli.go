// Package sli counts how many requests of each class were answered fast enough for their clients.
//
// Each class has a bound. An answer within it is fast, one within four times the bound is tolerable, any other is slow.
// A request that failed for a reason on the server is counted as failed. Mistakes of clients and requests that clients
// gave up do not count. The apdex of a class is the share of fast answers plus half the share of tolerable ones, over
// the last five minutes.
package sli

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Class is a kind of request that is judged by one bound. It is a metric label.
type Class string

// The classes. Small, Hit, Cold and Push are named like their lanes.
const (
	None    Class = ""        // not judged
	Small   Class = "small"   // advertisements, lists of refs, negotiation
	Hit     Class = "hit"     // a pack from the cache, to its first byte
	Cold    Class = "cold"    // a pack that was made, to its first byte
	Push    Class = "push"    // a push, its way here included
	Search  Class = "search"  // a search of code
	Page    Class = "page"    // a page for browsers
	Resolve Class = "resolve" // what revisions name
	App     Class = "app"     // for the application, with what it waits for a worker
	Call    Class = "call"    // a call of the control API that is answered from mapped files
	Heavy   Class = "heavy"   // one whose work grows with the repository
)

// tolerable is the factor of Apdex: a response within this many times the bound is tolerable.
const tolerable = 4

// The apdex covers this number of spans of time, including the current one.
const (
	spans = 10
	span  = 30 * time.Second
)

// Set judges the requests of a process. It is safe for concurrent use; nil judges nothing.
type Set struct {
	now     func() time.Time
	classes map[Class]*class

	requests             *prometheus.CounterVec
	apdex, bounds, asked *prometheus.Desc
}

type class struct {
	bound                         time.Duration
	fast, tolerable, slow, failed prometheus.Counter

	mu     sync.Mutex
	number int64 // of the span that is counted in now
	recent [spans]score
}

// score has the counts of one span.
type score struct{ requests, halves int }

// New makes a Set with a bound for each class; a class without one is not judged.
func New(bounds map[Class]time.Duration) *Set { return newSet(bounds, time.Now) }

func newSet(bounds map[Class]time.Duration, now func() time.Time) *Set {
	s := &Set{now: now, classes: make(map[Class]*class),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_sli_requests_total",
			Help: "Requests by class and verdict: fast (within the bound of [sli]), tolerable (within four times the bound), " +
				"slow, or failed for a reason on the server, refusals included. Mistakes of clients and requests that " +
				"clients gave up are not counted.",
		}, []string{"class", "verdict"}),
		apdex: prometheus.NewDesc("packhorse_sli_apdex",
			"Apdex of the last five minutes, from 0 to 1: the share of fast requests plus half the share of tolerable "+
				"ones. Absent without requests.", []string{"class"}, nil),
		bounds: prometheus.NewDesc("packhorse_sli_fast_enough_seconds", "Bound for a fast answer, by class, from [sli].",
			[]string{"class"}, nil),
		asked: prometheus.NewDesc("packhorse_sli_recent_requests", "Requests of the last five minutes that the apdex covers.",
			[]string{"class"}, nil),
	}
	for name, bound := range bounds {
		if bound <= 0 {
			continue
		}
		with := func(verdict string) prometheus.Counter { return s.requests.WithLabelValues(string(name), verdict) }
		s.classes[name] = &class{bound: bound, fast: with("fast"), tolerable: with("tolerable"), slow: with("slow"),
			failed: with("failed")}
	}
	return s
}

// Answered judges a request that was answered after so long.
func (s *Set) Answered(name Class, took time.Duration) {
	c := s.of(name)
	switch {
	case c == nil:
	case took <= c.bound:
		c.count(s.now(), c.fast, 2)
	case took <= tolerable*c.bound:
		c.count(s.now(), c.tolerable, 1)
	default:
		c.count(s.now(), c.slow, 0)
	}
}

// Failed counts a request that we could not answer.
func (s *Set) Failed(name Class) {
	if c := s.of(name); c != nil {
		c.count(s.now(), c.failed, 0)
	}
}

func (s *Set) of(name Class) *class {
	if s == nil {
		return nil
	}
	return s.classes[name]
}

func (c *class) count(now time.Time, verdict prometheus.Counter, halves int) {
	verdict.Inc()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.turn(now)
	r := &c.recent[c.number%spans]
	r.requests++
	r.halves += halves
}

// turn discards the spans that have ended. The lock is held.
func (c *class) turn(now time.Time) {
	number := now.UnixNano() / int64(span)
	if number <= c.number { // a clock that was set back counts in the span it left
		return
	}
	for i := max(c.number+1, number-spans+1); i <= number; i++ {
		c.recent[i%spans] = score{}
	}
	c.number = number
}

func (c *class) sum(now time.Time) (all score) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.turn(now)
	for _, r := range c.recent {
		all.requests += r.requests
		all.halves += r.halves
	}
	return all
}

// Collectors lists what to register.
func (s *Set) Collectors() []prometheus.Collector {
	return []prometheus.Collector{s.requests, recent{s}}
}

// recent collects the figures of the last minutes.
type recent struct{ *Set }

func (r recent) Describe(ch chan<- *prometheus.Desc) {
	ch <- r.apdex
	ch <- r.asked
	ch <- r.bounds
}

func (r recent) Collect(ch chan<- prometheus.Metric) {
	now := r.now()
	gauge := func(d *prometheus.Desc, v float64, name Class) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, string(name))
	}
	for name, c := range r.classes {
		gauge(r.bounds, c.bound.Seconds(), name)
		all := c.sum(now)
		gauge(r.asked, float64(all.requests), name)
		if all.requests > 0 {
			gauge(r.apdex, float64(all.halves)/float64(2*all.requests), name)
		}
	}
}
