package bench

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// A virtual machine stands still while its host runs others, and any server on it is late then. To tell one from the other, a process beside
// the run has a thread on each CPU that sleeps for standstillTick at a time, at a real-time priority: when it wakes very late, no program of ours can be
// the cause. Where the kernel counts stolen time, that says how much in all, but not when.
const (
	standstillTick = 5 * time.Millisecond
	// standstillLeast is how late a thread has to be: where the kernel is built without preemption, it ends a system call of another's first, which may
	// copy megabytes.
	standstillLeast = 3 * time.Millisecond
)

// span is a time in which a CPU did not run us, by the system's monotonic clock.
type span struct{ From, To time.Duration }

// standstill is how long the machine stood still in a run: part of the JSON of `packhorse-bench app`.
type standstill struct {
	Count     int     `json:"count"`
	TotalMS   float64 `json:"total_ms"`
	LongestMS float64 `json:"longest_ms"`
}

// standstillReport is also what that did to it: part of the JSON of `packhorse-bench lab exists` and `packhorse-bench neighbour`.
type standstillReport struct {
	standstill
	Requests int         `json:"requests"`   // that were due or under way meanwhile
	Without  percentiles `json:"without_ms"` // of all the others
}

// between counts the spans that touch a time, as far as they are in it. It works in place.
func between(spans []span, from, to time.Duration) (within []span, s standstill) {
	within = slices.DeleteFunc(union(spans), func(s span) bool { return s.To < from || s.From > to })
	var total, longest time.Duration
	for _, s := range within {
		inside := min(s.To, to) - max(s.From, from)
		total, longest = total+inside, max(longest, inside)
	}
	return within, standstill{len(within), ms(total), ms(longest)}
}

// answered is one request's: when it was due after the run's begin, and how long after that it was answered.
type answered struct{ due, took time.Duration }

// newStandstillReport sets apart the answers that a standstill hit. began is the run's begin by the system's monotonic clock.
func newStandstillReport(spans []span, began time.Duration, answers []answered) *standstillReport {
	var last time.Duration
	for _, a := range answers {
		last = max(last, began+a.due+a.took)
	}
	spans, all := between(spans, began, last)
	r := &standstillReport{standstill: all}
	var others samples
	for _, a := range answers {
		from, to := began+a.due, began+a.due+a.took
		if slices.ContainsFunc(spans, func(s span) bool { return from < s.To && s.From < to }) {
			r.Requests++
			continue
		}
		others = append(others, a.took)
	}
	r.Without = others.summarize()
	return r
}

// union sorts spans and joins those that overlap, as the ones of several CPUs do. It works in place.
func union(spans []span) []span {
	slices.SortFunc(spans, func(a, b span) int { return int(a.From - b.From) })
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

// plus joins those of two runs.
func (s standstill) plus(t standstill) standstill {
	return standstill{s.Count + t.Count, round(s.TotalMS+t.TotalMS, 3), max(s.LongestMS, t.LongestMS)}
}

func (s *standstill) String() string {
	if s == nil {
		return "whether the machine stood still is not known (Linux, and CAP_SYS_NICE)"
	}
	if s.Count == 0 {
		return "never stood still"
	}
	return fmt.Sprintf("stood still %d times, %.1f ms in all, %.1f at the most", s.Count, s.TotalMS, s.LongestMS)
}

func (r *standstillReport) String() string {
	switch {
	case r == nil:
		return (*standstill)(nil).String()
	case r.Count == 0:
		return r.standstill.String()
	}
	return fmt.Sprintf("%v; without the %d requests meanwhile: %v", &r.standstill, r.Requests, r.Without)
}

// standstills is the process that watches. Nil: there is none.
type standstills struct{ process *loadProcess }

// watchStandstills begins to watch. args are those of the program that does.
func watchStandstills(ctx context.Context, args []string) *standstills {
	p, err := startLoad(ctx, nil, args)
	if err != nil {
		return nil
	}
	if err := p.ready(ctx); err != nil { // not permitted
		p.kill()
		return nil
	}
	return &standstills{p}
}

// end stops watching.
func (s *standstills) end() (spans []span, known bool) {
	if s == nil {
		return nil, false
	}
	err := s.process.finish(&spans)
	return spans, err == nil
}

func (s *standstills) kill() {
	if s != nil {
		s.process.kill()
	}
}
