package loadgen

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// A virtual machine stands still while its host runs others, and any server on it is late then. To tell one from the
// other, a process beside the run has a thread on each CPU that sleeps for standstillTick at a time, at a real-time
// priority: when it wakes very late, no program of ours can be the cause. Where the kernel counts stolen time, that
// says how much in all, but not when.
const (
	standstillTick = 5 * time.Millisecond
	// standstillLeast is how late a thread has to be: where the kernel is built without preemption, it ends a system call
	// of another's first, which may copy megabytes.
	standstillLeast = 3 * time.Millisecond
)

// Span is a time in which a CPU did not run us, by the system's monotonic clock.
type Span struct{ From, To time.Duration }

// Standstill is how long the machine stood still in a run: part of the JSON of `packhorse-bench app`.
type Standstill struct {
	Count     int     `json:"count"`
	TotalMS   float64 `json:"total_ms"`
	LongestMS float64 `json:"longest_ms"`
}

// StandstillReport is also what that did to it: part of the JSON of `packhorse-bench lab exists` and `packhorse-bench
// neighbour`.
type StandstillReport struct {
	Standstill
	Requests int         `json:"requests"`   // that were due or under way meanwhile
	Without  Percentiles `json:"without_ms"` // of all the others
}

// Between counts the spans that touch a time, as far as they are in it. It works in place.
func Between(spans []Span, from, to time.Duration) (within []Span, s Standstill) {
	within = slices.DeleteFunc(union(spans), func(s Span) bool { return s.To < from || s.From > to })
	var total, longest time.Duration
	for _, s := range within {
		inside := min(s.To, to) - max(s.From, from)
		total, longest = total+inside, max(longest, inside)
	}
	return within, Standstill{len(within), Milliseconds(total), Milliseconds(longest)}
}

// Answered is one request's: when it was due after the run's begin, and how long after that it was answered.
type Answered struct{ Due, Took time.Duration }

// NewStandstillReport sets apart the answers that a standstill hit. began is the run's begin by the system's monotonic
// clock.
func NewStandstillReport(spans []Span, began time.Duration, answers []Answered) *StandstillReport {
	var last time.Duration
	for _, a := range answers {
		last = max(last, began+a.Due+a.Took)
	}
	spans, all := Between(spans, began, last)
	r := &StandstillReport{Standstill: all}
	var others Samples
	for _, a := range answers {
		from, to := began+a.Due, began+a.Due+a.Took
		if slices.ContainsFunc(spans, func(s Span) bool { return from < s.To && s.From < to }) {
			r.Requests++
			continue
		}
		others = append(others, a.Took)
	}
	r.Without = others.Summarize()
	return r
}

// union sorts spans and joins those that overlap, as the ones of several CPUs do. It works in place.
func union(spans []Span) []Span {
	slices.SortFunc(spans, func(a, b Span) int { return int(a.From - b.From) })
	out := spans[:0]
	for _, s := range spans {
		if n := len(out); n > 0 && s.From <= out[n-1].To {
			out[n-1].To = max(out[n-1].To, s.To)
			continue
		}
		out = append(out, s)
	}
	return out
}

// Plus joins those of two runs.
func (s Standstill) Plus(t Standstill) Standstill {
	return Standstill{s.Count + t.Count, Round(s.TotalMS+t.TotalMS, 3), max(s.LongestMS, t.LongestMS)}
}

func (s *Standstill) String() string {
	if s == nil {
		return "whether the machine stood still is not known (Linux, and CAP_SYS_NICE)"
	}
	if s.Count == 0 {
		return "never stood still"
	}
	return fmt.Sprintf("stood still %d times, %.1f ms in all, %.1f at the most", s.Count, s.TotalMS, s.LongestMS)
}

func (r *StandstillReport) String() string {
	switch {
	case r == nil:
		return (*Standstill)(nil).String()
	case r.Count == 0:
		return r.Standstill.String()
	}
	return fmt.Sprintf("%v; without the %d requests meanwhile: %v", &r.Standstill, r.Requests, r.Without)
}

// standstills is the process that watches. Nil: there is none.
type standstills struct{ process *LoadProcess }

// WatchStandstills begins to watch. args are those of the program that does.
func WatchStandstills(ctx context.Context, args []string) *standstills {
	p, err := StartLoad(ctx, nil, args)
	if err != nil {
		return nil
	}
	if err := p.Ready(ctx); err != nil { // not permitted
		p.Kill()
		return nil
	}
	return &standstills{p}
}

// End stops watching.
func (s *standstills) End() (spans []Span, known bool) {
	if s == nil {
		return nil, false
	}
	err := s.process.Finish(&spans)
	return spans, err == nil
}

func (s *standstills) Kill() {
	if s != nil {
		s.process.Kill()
	}
}

// Disturbs tells whether a turn of that length is better made again: for the time that the machine stands still, and
// then until the queues are gone, all servers are alike.
func (s Standstill) Disturbs(turn time.Duration) bool {
	return s.LongestMS > 20 || s.TotalMS > max(5, Milliseconds(turn)/1000)
}
