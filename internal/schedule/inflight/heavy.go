package inflight

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"
)

// Limits of the heavy-hitter counts.
const (
	heavyNames   = 100 // for each measure and minute, so every name with more than a hundredth of a minute is among them
	HeavyMinutes = 5   // complete ones, in addition to the current one
)

// Heavy is the cost of one repository or caller in the last minutes. Minutes in which it was not among the heaviest do
// not count. Each number is an estimate, because there are more names than counters.
type Heavy struct {
	Name     string
	Requests Estimate // that have ended
	Bytes    Estimate // sent to clients, including those of requests in flight
	CPU      Estimate // of git commands, in nanoseconds
}

// Estimate is a number that may be too high by at most Over.
type Estimate struct{ Value, Over int64 }

func (c *Estimate) add(d Estimate) {
	c.Value += d.Value
	c.Over += d.Over
}

// measure is a measure of the cost of a name.
type measure int

const (
	heavyRequests measure = iota
	heavyBytes
	heavyCPU
	measures
)

// heavyHitters counts for names of one kind in a ring of minutes. The zero value is empty. Safe for concurrent use.
type heavyHitters struct {
	mu      sync.Mutex
	minutes [HeavyMinutes + 1]struct {
		number int64 // of the minute since the board was made, from 1; zero means empty
		counts [measures]sketch
	}
}

// add counts n for a name in a minute. Minutes never decrease.
func (h *heavyHitters) add(minute int64, name string, m measure, n int64) {
	if name == "" || n <= 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	at := &h.minutes[minute%int64(len(h.minutes))]
	if at.number != minute {
		at.number = minute
		for i := range at.counts {
			at.counts[i].list = at.counts[i].list[:0]
			clear(at.counts[i].at)
		}
	}
	at.counts[m].add(name, n)
}

// sum returns the counts of the last minutes up to the given one.
func (h *heavyHitters) sum(minute int64) map[string]*Heavy {
	all := make(map[string]*Heavy)
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range h.minutes {
		at := &h.minutes[i]
		if at.number == 0 || at.number > minute || at.number <= minute-int64(len(h.minutes)) {
			continue
		}
		for m := range at.counts {
			for _, one := range at.counts[m].list {
				all[one.name] = cmp.Or(all[one.name], &Heavy{Name: one.name})
				all[one.name].of(measure(m)).add(one.Estimate)
			}
		}
	}
	return all
}

func (h *Heavy) of(m measure) *Estimate {
	return [...]*Estimate{&h.Requests, &h.Bytes, &h.CPU}[m]
}

// heaviest returns the names among the first of any measure, sorted by bytes, CPU time and requests.
func heaviest(all map[string]*Heavy, limit int) []Heavy {
	names := slices.Collect(maps.Values(all))
	chosen := make(map[*Heavy]struct{})
	for m := range measures {
		slices.SortFunc(names, func(a, b *Heavy) int {
			return cmp.Or(cmp.Compare(b.of(m).Value, a.of(m).Value), cmp.Compare(a.Name, b.Name))
		})
		for _, h := range names[:min(len(names), limit)] {
			if h.of(m).Value > 0 {
				chosen[h] = struct{}{}
			}
		}
	}
	list := make([]Heavy, 0, len(chosen))
	for h := range chosen {
		list = append(list, *h)
	}
	slices.SortFunc(list, func(a, b Heavy) int {
		return cmp.Or(cmp.Compare(b.Bytes.Value, a.Bytes.Value), cmp.Compare(b.CPU.Value, a.CPU.Value),
			cmp.Compare(b.Requests.Value, a.Requests.Value), cmp.Compare(a.Name, b.Name))
	})
	return list
}

// sketch counts the most frequent names in bounded space (Space-Saving, from Metwally, Agrawal, El Abbadi: "Efficient
// Computation of Frequent and Top-k Elements in Data Streams", 2005). A new name replaces the one with the lowest count
// and inherits the count, so that no count is too low.
type sketch struct {
	list []counter
	at   map[string]int
}

type counter struct {
	name string
	Estimate
}

func (s *sketch) add(name string, n int64) {
	if i, ok := s.at[name]; ok {
		s.list[i].Value += n
		return
	}
	if s.at == nil {
		s.at = make(map[string]int)
	}
	i, over := len(s.list), int64(0)
	if i < heavyNames {
		s.list = append(s.list, counter{})
	} else {
		i = 0
		for k := range s.list {
			if s.list[k].Value < s.list[i].Value {
				i = k
			}
		}
		delete(s.at, s.list[i].name)
		over = s.list[i].Value
	}
	s.list[i], s.at[name] = counter{name, Estimate{over + n, over}}, i
}

// minute returns the number of the current minute, from 1.
func (b *Board) minute() int64 { return int64(b.since()/time.Minute) + 1 }

// countRequest counts a finished request for its repository and its caller.
func (b *Board) countRequest(repository, caller string, bytes int64) {
	minute := b.minute()
	b.repositories.add(minute, repository, heavyRequests, 1)
	b.callers.add(minute, caller, heavyRequests, 1)
	b.repositories.add(minute, repository, heavyBytes, bytes)
	b.callers.add(minute, caller, heavyBytes, bytes)
}

// countCPU counts CPU time of git commands.
func (b *Board) countCPU(repository, caller string, cpu time.Duration) {
	minute := b.minute()
	b.repositories.add(minute, repository, heavyCPU, int64(cpu))
	b.callers.add(minute, caller, heavyCPU, int64(cpu))
}

// Heaviest returns the repositories and callers with the highest cost in the current minute and the five before. A name
// is included if it is among the first limit names of any measure. Those with the most bytes come first.
func (b *Board) Heaviest(limit int) (repositories, callers []Heavy) {
	minute := b.minute()
	byRepository, byCaller := b.repositories.sum(minute), b.callers.sum(minute)
	running := func(all map[string]*Heavy, name string, bytes int64) {
		if name != "" && bytes > 0 {
			all[name] = cmp.Or(all[name], &Heavy{Name: name})
			all[name].Bytes.Value += bytes
		}
	}
	b.each(func(r *Request) {
		r.mu.Lock()
		repository, caller := r.repository, r.caller
		r.mu.Unlock()
		running(byRepository, repository, r.bytes.Load())
		running(byCaller, caller, r.bytes.Load())
	})
	return heaviest(byRepository, limit), heaviest(byCaller, limit)
}
