package compare

import "math"

// sample is a distribution on one side, and how many independent requests it is worth at each percentile.
type sample struct {
	dist  *dist
	worth []float64
}

// judged is a row on its way to verdicts.
type judged struct {
	row    Row
	a, b   sample
	reason Verdict // why there is none; empty: there are some
}

// judge gathers rows, because how sure each verdict has to be depends on how many there are.
type judge struct {
	rows []*judged
	step float64 // nanoseconds
}

func (j *judge) add(row *judged) { j.rows = append(j.rows, row) }

func (j *judge) addRow(p *pair) {
	row := &judged{a: sampleOf(p.a), b: sampleOf(p.b), row: Row{Route: printable([]byte(p.route.name)),
		A: outcomesOf(p.route.counts[0], p.a.n), B: outcomesOf(p.route.counts[1], p.b.n)}}
	if !p.alike {
		row.reason = NotAlike
	}
	if p.a.n == 0 || p.b.n == 0 {
		row.reason = OneSided
	}
	j.add(row)
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
func (j *judge) open() (n int) {
	for _, row := range j.rows {
		for i, q := range percentiles {
			c := Cell{Of: q.name, Needs: least(q.p), Verdict: row.reason, A: Number(math.NaN()), B: Number(math.NaN()),
				WorthA: uint64(row.a.worth[i]), WorthB: uint64(row.b.worth[i])}
			if row.a.dist.n > 0 {
				c.A = Number(row.a.dist.quantile(q.p) / 1e6)
			}
			if row.b.dist.n > 0 {
				c.B = Number(row.b.dist.quantile(q.p) / 1e6)
			}
			floor := Number(j.floor() / 1e6)
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

// floor is what durations that the clocks show as nothing count as in ratios.
func (j *judge) floor() float64 { return max(j.step/2, 1) }

// decide finds the intervals, and the verdicts of those that exclude zero; alpha is the chance of an error of each,
// alone that of a reader who looks at no other.
func (j *judge) decide(alpha, alone float64) {
	for _, row := range j.rows {
		for i, q := range percentiles {
			c := &row.row.Cells[i]
			if c.Verdict != "" {
				continue
			}
			a, b := spreadOf(row.a.dist, q.p, row.a.worth[i]), spreadOf(row.b.dist, q.p, row.b.worth[i])
			blur := j.blur(row.a.dist, row.b.dist, q.p)
			d := differenceOf(a, b, alpha, blur)
			c.DifferenceInterval = [2]float64{d.low / 1e6, d.high / 1e6}
			c.RatioInterval = ratioOf(a, b, alpha, blur, j.floor()).pair()
			c.RatioAlone = ratioOf(a, b, alone, blur, j.floor()).pair()
			switch c.Verdict = Even; {
			case d.low > 0:
				c.Verdict = Slower
			case d.high < 0:
				c.Verdict = Faster
			}
		}
	}
}

// blur is up to which difference the percentile p of two samples may be the same, in nanoseconds: a step of the coarser
// clock, or the width of the bucket that it is in. Durations are whole nanoseconds, so a little more than that is no
// more.
func (j *judge) blur(a, b *dist, p float64) float64 { return max(j.step, a.width(p), b.width(p)) + 0.5 }

func (i interval) pair() [2]float64 { return [2]float64{i.low, i.high} }
