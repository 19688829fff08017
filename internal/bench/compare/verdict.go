package compare

import "math"

// sample is a distribution on one side, with the number of independent requests that it is worth at each percentile.
type sample struct {
	dist  *dist
	worth []float64
}

// comparedRow is a row without its verdicts.
type comparedRow struct {
	row    Row
	a, b   sample
	reason Verdict // the reason for no verdict; empty: verdicts follow
}

// verdicts collects rows before it decides, because the required confidence of each verdict depends on their number.
type verdicts struct {
	rows []*comparedRow
	step float64 // nanoseconds
}

func (v *verdicts) add(row *comparedRow) { v.rows = append(v.rows, row) }

func (v *verdicts) addRow(p *pair) {
	row := &comparedRow{a: sampleOf(p.a), b: sampleOf(p.b), row: Row{Route: printable([]byte(p.route.name)),
		A: outcomesOf(p.route.counts[0], p.a.n), B: outcomesOf(p.route.counts[1], p.b.n)}}
	if !p.alike {
		row.reason = NotAlike
	}
	if p.a.n == 0 || p.b.n == 0 {
		row.reason = OneSided
	}
	v.add(row)
}

func sampleOf(d *dist) sample {
	s := sample{dist: d}
	for _, q := range percentiles {
		n := float64(d.n)
		if d.n > 0 {
			effect, _ := dispersion(d.from, q.p)
			n = max(n/effect, 1)
		}
		s.worth = append(s.worth, n)
	}
	return s
}

// open makes the cells, and counts those that will have an interval.
func (v *verdicts) open() (n int) {
	for _, row := range v.rows {
		for i, q := range percentiles {
			c := Cell{Of: q.name, Needs: least(q.p), Verdict: row.reason, A: Number(math.NaN()), B: Number(math.NaN()),
				WorthA: uint64(row.a.worth[i]), WorthB: uint64(row.b.worth[i])}
			if row.a.dist.n > 0 {
				c.A = Number(row.a.dist.quantile(q.p) / 1e6)
			}
			if row.b.dist.n > 0 {
				c.B = Number(row.b.dist.quantile(q.p) / 1e6)
			}
			floor := Number(v.floor() / 1e6)
			c.Ratio = max(c.B, floor) / max(c.A, floor)
			switch {
			case row.reason == OneSided:
			case min(row.a.dist.n, row.b.dist.n, c.WorthA, c.WorthB) < c.Needs:
				c.Verdict = Few
			case row.reason == "":
				n++
			}
			row.row.Cells = append(row.row.Cells, c)
		}
	}
	return n
}

// floor is the duration that replaces zero durations in ratios.
func (v *verdicts) floor() float64 { return max(v.step/2, 1) }

// decide computes the intervals, and the verdicts of those that exclude zero. alpha is the error probability of each
// interval, and alone that of an interval for readers of only one.
func (v *verdicts) decide(alpha, alone float64) {
	for _, row := range v.rows {
		for i, q := range percentiles {
			c := &row.row.Cells[i]
			if c.Verdict != "" {
				continue
			}
			a, b := spreadOf(row.a.dist, q.p, row.a.worth[i]), spreadOf(row.b.dist, q.p, row.b.worth[i])
			blur := v.blur(row.a.dist, row.b.dist, q.p)
			d := differenceOf(a, b, alpha, blur)
			c.DifferenceInterval = [2]float64{d.low / 1e6, d.high / 1e6}
			c.RatioInterval = ratioOf(a, b, alpha, blur, v.floor()).pair()
			c.RatioAlone = ratioOf(a, b, alone, blur, v.floor()).pair()
			switch c.Verdict = Even; {
			case d.low > 0:
				c.Verdict = Slower
			case d.high < 0:
				c.Verdict = Faster
			}
		}
	}
}

// blur returns the difference in nanoseconds up to which the percentiles p of two samples may be equal. It is a step of
// the coarser clock, or the width of the percentile's bucket. Durations are whole nanoseconds, so that half of one more
// includes the step itself.
func (v *verdicts) blur(a, b *dist, p float64) float64 {
	return max(v.step, a.width(p), b.width(p)) + 0.5
}

func (i interval) pair() [2]float64 { return [2]float64{i.low, i.high} }
