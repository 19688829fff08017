package compare

import "math"

// weightsOf returns the routes' shares of a side's requests.
func weightsOf(pairs []pair, side int) []float64 {
	w, sum := make([]float64, len(pairs)), 0.0
	for i := range pairs {
		w[i] = float64(pairs[i].side(side).n)
		sum += w[i]
	}
	for i := range w {
		w[i] /= max(sum, 1)
	}
	return w
}

func (p *pair) side(i int) *dist {
	if i == 0 {
		return p.a
	}
	return p.b
}

// shift splits a change of all requests into the effect of changed routes and that of a changed mix. It uses four
// mixtures: each side's durations, weighted as on each side. The effect of the durations is the mean of their effects
// in A's mix and in B's, and likewise for the mix. The two add up, and no side is preferred (Shapley's values of a game
// of two). If a side does not have a route, the other side's durations replace it, and the whole effect is that of the
// mix.
func shift(pairs []pair) []Change {
	var times [2][]*dist
	for i := range pairs {
		a, b := pairs[i].a, pairs[i].b
		if a.n == 0 {
			a = b
		} else if b.n == 0 {
			b = a
		}
		times[0], times[1] = append(times[0], a), append(times[1], b)
	}
	var m [2][2]*dist // the first index is for durations, the second for weights
	for i := range m {
		for k := range m[i] {
			m[i][k] = mixture(times[i], weightsOf(pairs, k))
		}
	}
	change := func(of string, figure func(*dist) float64) Change {
		aa, ab, ba, bb := figure(m[0][0])/1e6, figure(m[0][1])/1e6, figure(m[1][0])/1e6, figure(m[1][1])/1e6
		return Change{of, aa, bb, bb - aa, (ba - aa + bb - ab) / 2, (ab - aa + bb - ba) / 2}
	}
	list := []Change{change("mean", func(d *dist) float64 { return d.mean })}
	for _, q := range percentiles {
		list = append(list, change(q.name, func(d *dist) float64 { return d.quantile(q.p) }))
	}
	return list
}

// sameMix compares both sides' requests with the same weight of each route, which is the mean of both sides. It uses
// only routes that both sides have, and share is their part of all requests. row is nil for fewer than two such routes.
func sameMix(pairs []pair) (row *comparedRow, share float64) {
	var both []pair
	var total, in uint64
	for _, p := range pairs {
		total += p.a.n + p.b.n
		if p.alike && min(p.a.n, p.b.n) >= leastInMix {
			both = append(both, p)
			in += p.a.n + p.b.n
		}
	}
	share = float64(in) / float64(max(total, 1))
	if len(both) < 2 {
		return nil, share
	}
	weights, other := weightsOf(both, 0), weightsOf(both, 1)
	for i := range weights {
		weights[i] = (weights[i] + other[i]) / 2
	}
	row = &comparedRow{row: Row{Route: "all routes, in the same mix"}}
	for side, s := range []*sample{&row.a, &row.b} {
		var parts []*dist
		for i := range both {
			parts = append(parts, both[i].side(side))
			o := &row.row.A
			if side == 1 {
				o = &row.row.B
			}
			o.add(outcomesOf(both[i].route.counts[side], both[i].side(side).n))
		}
		s.dist = mixture(parts, weights)
		for _, q := range percentiles {
			s.worth = append(s.worth, worthOfMixture(parts, weights, s.dist.quantile(q.p), q.p))
		}
	}
	return row, share
}

func (o *Outcomes) add(more Outcomes) {
	o.Requests += more.Requests
	o.Compared += more.Compared
	o.Answered += more.Answered
	o.Refused += more.Refused
	o.Failed += more.Failed
	o.Gone += more.Gone
}

// worthOfMixture returns the number of independent requests with as much information about a mixture's percentile p,
// which is at ns, as the weighted samples have. Routes are slow together, so their scatter is added up for each block
// of the log.
func worthOfMixture(parts []*dist, weights []float64, ns, p float64) float64 {
	independent, few := 0.0, 0.0
	var off [maxBlocks]float64
	used := map[int]bool{}
	for i, d := range parts {
		n := float64(d.n)
		below := (d.below(ns)*n + 1) / (n + 2) // a route without slower requests in the sample may have some
		alone := weights[i] * weights[i] * below * (1 - below) / n
		independent += alone
		e, ok := edge{}, false
		if d.from != nil && d.from.spans() >= leastBlocks {
			e, ok = d.from.edgeFor(below)
		}
		if !ok {
			few += alone
			continue
		}
		var fast, all [maxBlocks]float64
		allFast, total := 0.0, 0.0
		for at, b := range d.from.blocks {
			if b != nil {
				used[at] = true
				fast[at], all[at] = b.count(e)
				allFast, total = allFast+fast[at], total+all[at]
			}
		}
		for at := range off { // blocks lack the first blocksFrom requests, and represent all n
			off[at] += weights[i] * (fast[at] - allFast/total*all[at]) / math.Sqrt(total*n)
		}
	}
	variance := few
	if b := float64(len(used)); b > 1 {
		variance += b / (b - 1) * scatter(off[:])
	}
	variance = max(variance, independent)
	if variance <= 0 || math.IsNaN(variance) {
		return 1
	}
	return max(p*(1-p)/variance, 1)
}
