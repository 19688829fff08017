package inflight

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"
)

// How much is remembered of who was heavy.
const (
	heavyNames   = 100 // of each measure and minute; whatever makes more than a hundredth of a minute is among them
	HeavyMinutes = 5   // whole ones, and the one that runs
)

// Heavy is what one repository, or one caller, has cost in the last minutes, those minutes left out in which others cost so much more that it was not
// kept. Of the minutes that count each number is right or too great by Over of it at most: the names are more than are counted exactly.
type Heavy struct {
	Name     string
	Requests Counted // that have ended
	Bytes    Counted // sent to clients; those of requests that run are in it, as far as they have been sent
	CPU      Counted // of git commands, in nanoseconds
}

// Counted is a number and by how much it may be too great.
type Counted struct{ Value, Over int64 }

func (c *Counted) add(d Counted) {
	c.Value += d.Value
	c.Over += d.Over
}

// measures are what is counted of a name.
type measure int

const (
	heavyRequests measure = iota
	heavyBytes
	heavyCPU
	measures
)

// heavyHitters counts for names of one kind, in minutes that replace each other. Safe for concurrent use; the zero value is empty.
type heavyHitters struct {
	mu      sync.Mutex
	minutes [HeavyMinutes + 1]struct {
		number int64 // of the minute since the board was made, from 1; 0: none
		counts [measures]sketch
	}
}

// add counts for a name in a minute. Minutes only go on.
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
			at.counts[i].clear()
		}
	}
	at.counts[m].add(name, n)
}

// sum is what was counted in the minutes up to one.
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
			for _, one := range at.counts[m].heap {
				all[one.name] = cmp.Or(all[one.name], &Heavy{Name: one.name})
				all[one.name].of(measure(m)).add(one.Counted)
			}
		}
	}
	return all
}

func (h *Heavy) of(m measure) *Counted {
	return [...]*Counted{&h.Requests, &h.Bytes, &h.CPU}[m]
}

// heaviest are those that are among the most of any measure, by what they have sent, then by CPU time and requests.
func heaviest(all map[string]*Heavy, most int) []Heavy {
	names := slices.Collect(maps.Values(all))
	chosen := make(map[*Heavy]struct{})
	for m := range measures {
		slices.SortFunc(names, func(a, b *Heavy) int {
			return cmp.Or(cmp.Compare(b.of(m).Value, a.of(m).Value), cmp.Compare(a.Name, b.Name))
		})
		for _, h := range names[:min(len(names), most)] {
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

// sketch counts for the names that are counted most for, in bounded space (Metwally, Agrawal, El Abbadi: "Efficient Computation of Frequent and Top-k
// Elements in Data Streams", 2005: Space-Saving). A new name takes the place of the one with least, and its count: nothing is counted too low.
type sketch struct {
	heap []held // the least first
	at   map[string]int
}

type held struct {
	name string
	Counted
}

func (s *sketch) clear() {
	s.heap = s.heap[:0]
	clear(s.at)
}

func (s *sketch) add(name string, n int64) {
	i, ok := s.at[name]
	switch {
	case ok:
		s.heap[i].Value += n
	case len(s.heap) < heavyNames:
		if s.at == nil {
			s.at = make(map[string]int)
		}
		i = len(s.heap)
		s.heap = append(s.heap, held{name, Counted{Value: n}})
		s.at[name] = i
		s.up(i)
		return
	default:
		least := s.heap[0].Value
		delete(s.at, s.heap[0].name)
		s.heap[0] = held{name, Counted{Value: least + n, Over: least}}
		s.at[name] = 0
	}
	s.down(i)
}

func (s *sketch) swap(i, j int) {
	s.heap[i], s.heap[j] = s.heap[j], s.heap[i]
	s.at[s.heap[i].name], s.at[s.heap[j].name] = i, j
}

func (s *sketch) up(i int) {
	for parent := (i - 1) / 2; i > 0 && s.heap[i].Value < s.heap[parent].Value; i, parent = parent, (parent-1)/2 {
		s.swap(i, parent)
	}
}

func (s *sketch) down(i int) {
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(s.heap); child++ {
			if s.heap[child].Value < s.heap[least].Value {
				least = child
			}
		}
		if least == i {
			return
		}
		s.swap(i, least)
		i = least
	}
}

// minute is the number of the minute that runs, from 1.
func (b *Board) minute() int64 { return int64(b.since()/time.Minute) + 1 }

// ended counts a request for its repository and its caller.
func (b *Board) ended(repository, caller string, bytes int64) {
	minute := b.minute()
	b.repositories.add(minute, repository, heavyRequests, 1)
	b.callers.add(minute, caller, heavyRequests, 1)
	b.repositories.add(minute, repository, heavyBytes, bytes)
	b.callers.add(minute, caller, heavyBytes, bytes)
}

// used counts what git used.
func (b *Board) used(repository, caller string, cpu time.Duration) {
	minute := b.minute()
	b.repositories.add(minute, repository, heavyCPU, int64(cpu))
	b.callers.add(minute, caller, heavyCPU, int64(cpu))
}

// Heaviest lists the repositories and the callers that cost most in the minute that runs and the five before: those which are among the most of
// any measure, those that sent most bytes first.
func (b *Board) Heaviest(most int) (repositories, callers []Heavy) {
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
	return heaviest(byRepository, most), heaviest(byCaller, most)
}
