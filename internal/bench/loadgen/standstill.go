package loadgen

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// A virtual machine stands still while its host runs other machines, and then every server on it is late. To detect
// this, a process beside the run has a thread on each CPU. The thread repeatedly sleeps for standstillTick, at a
// real-time priority. If it wakes very late, the cause is outside the machine. The kernel may count stolen time, but
// without the times when it was stolen.
const (
	standstillTick = 5 * time.Millisecond
	// standstillLeast is the shortest delay that counts. A kernel without preemption first ends a system call of
	// another thread, which may copy megabytes.
	standstillLeast = 3 * time.Millisecond
)

// Span is a time in which a CPU did not run this machine, by the system's monotonic clock.
type Span struct{ From, To time.Duration }

// Standstill is the time that the machine stood still during a run. It is part of the JSON of `packhorse-bench app`.
type Standstill struct {
	Count     int     `json:"count"`
	TotalMS   float64 `json:"total_ms"`
	LongestMS float64 `json:"longest_ms"`
}

// StandstillReport also contains the effect on the run. It is part of the JSON of `packhorse-bench lab exists` and
// `packhorse-bench neighbour`.
type StandstillReport struct {
	Standstill
	Requests int         `json:"requests"`   // requests that were due or in flight during a standstill
	Without  Percentiles `json:"without_ms"` // of the other requests
}

// Between returns the parts of the spans within a time, and their sum. It changes spans.
func Between(spans []Span, from, to time.Duration) (within []Span, s Standstill) {
	within = slices.DeleteFunc(union(spans), func(s Span) bool { return s.To < from || s.From > to })
	var total, longest time.Duration
	for _, s := range within {
		inside := min(s.To, to) - max(s.From, from)
		total, longest = total+inside, max(longest, inside)
	}
	return within, Standstill{len(within), Milliseconds(total), Milliseconds(longest)}
}

// Answered has the time when a request was due, after the start of the run, and its latency.
type Answered struct{ Due, Took time.Duration }

// NewStandstillReport separates the requests that met a standstill. began is the start of the run by the system's
// monotonic clock.
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

// union sorts spans and joins those that overlap, as the spans of several CPUs do. It changes spans.
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

// Plus adds up two runs.
func (s Standstill) Plus(t Standstill) Standstill {
	return Standstill{s.Count + t.Count, Round(s.TotalMS+t.TotalMS, 3), max(s.LongestMS, t.LongestMS)}
}

func (s *Standstill) String() string {
	if s == nil {
		return "standstills of the machine: unknown (needs Linux and CAP_SYS_NICE)"
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

// standstills is the watching process. A nil *standstills watches nothing.
type standstills struct{ process *LoadProcess }

// WatchStandstills starts watching. args are the arguments of the watching process.
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

// Disturbs reports whether a turn of this length should be repeated. During a standstill, and until the queues are
// empty again, all servers look alike.
func (s Standstill) Disturbs(turn time.Duration) bool {
	return s.LongestMS > 20 || s.TotalMS > max(5, Milliseconds(turn)/1000)
}
