package status

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	sampleEvery = 10 * time.Second
	coarseEvery = 12  // one sample of so many is kept for a day
	kept        = 720 // samples of each kind: two hours, and a day
	maxSeries   = 128 // of all plots, so that samples take less than 2 MiB
)

// sample has the values of all series at one time. Later series are missing.
type sample struct {
	at     time.Time
	values []float64
}

// series is one line of a plot.
type series struct {
	plot int
	name string // value of the plot's label
}

// history has samples of metrics. The zero value is empty. Safe for concurrent use.
type history struct {
	mu           sync.Mutex
	index        map[series]int
	fine, coarse []sample
	taken        int
}

// follow takes samples until ctx ends.
func (h *history) follow(ctx context.Context, from prometheus.Gatherer) {
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for {
		h.keep(h.take(from))
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// take returns the present values. A metric that fails is missing.
func (h *history) take(from prometheus.Gatherer) sample {
	s := sample{at: time.Now()}
	families, _ := from.Gather()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.index == nil {
		h.index = map[series]int{}
	}
	for _, family := range families {
		for i := range plots {
			p := &plots[i]
			if p.metric != family.GetName() {
				continue
			}
			for _, m := range family.GetMetric() {
				labels := map[string]string{}
				for _, pair := range m.GetLabel() {
					labels[pair.GetName()] = pair.GetValue()
				}
				if p.label != "" && labels[p.label] != p.value || p.without != "" && labels[p.by] == p.without {
					continue
				}
				s.add(h.index, series{i, labels[p.by]}, m.GetCounter().GetValue()+m.GetGauge().GetValue()+
					m.GetHistogram().GetSampleSum())
			}
		}
	}
	return s
}

func (s *sample) add(index map[series]int, of series, value float64) {
	i, ok := index[of]
	if !ok {
		if len(index) >= maxSeries {
			return
		}
		i = len(index)
		index[of] = i
	}
	for len(s.values) <= i {
		s.values = append(s.values, math.NaN())
	}
	if math.IsNaN(s.values[i]) {
		s.values[i] = 0
	}
	s.values[i] += value
}

func (h *history) keep(s sample) {
	h.mu.Lock()
	defer h.mu.Unlock()
	add := func(to []sample) []sample { return append(to[max(0, len(to)-kept+1):], s) }
	h.fine = add(h.fine)
	if h.taken%coarseEvery == 0 {
		h.coarse = add(h.coarse)
	}
	h.taken++
}

// until returns the samples of two hours or of a day, and last as the last one.
func (h *history) until(last sample, day bool) []sample {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := h.fine
	if day {
		list = h.coarse
	}
	list = append([]sample(nil), list...)
	for len(list) > 1 && last.at.Sub(list[len(list)-1].at) < time.Second { // too short for a rate
		list = list[:len(list)-1]
	}
	return append(list, last)
}

// value returns a value of a series. Counters that are missing are 0.
func (s *sample) value(i int, isRate bool) float64 {
	switch {
	case i < len(s.values) && !math.IsNaN(s.values[i]):
		return s.values[i]
	case isRate:
		return 0
	}
	return math.NaN()
}

// drawings returns the plots that have data, by their index in plots.
func (h *history) drawings(list []sample) map[int]*drawing {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := map[int]*drawing{}
	last := &list[len(list)-1]
	for of, i := range h.index {
		p := &plots[of.plot]
		if math.IsNaN(last.value(i, false)) {
			continue
		}
		d := all[of.plot]
		if d == nil {
			d = newDrawing(p, of.plot, list)
			all[of.plot] = d
		}
		d.lines = append(d.lines, d.line(of.name, list, i))
	}
	for _, d := range all {
		d.sort()
	}
	return all
}
