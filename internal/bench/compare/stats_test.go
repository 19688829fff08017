package compare

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestBuckets(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 1))
	values := []int64{0, 1, 127, 128, 255, 256, 257, maxNanos}
	for range 100000 {
		values = append(values, r.Int64N(int64(1)<<(1+r.IntN(51))))
	}
	for _, ns := range values {
		at, sub := bucketOf(ns)
		low, high := bucketRange(at, sub)
		if x := float64(ns); x < low || x >= high || high-low > max(low/subBuckets, 1) {
			t.Fatalf("%d is in the bucket from %g to %g", ns, low, high)
		}
	}
	slices.Sort(values)
	for i, ns := range values {
		if c := coarseOf(ns); c < 0 || c >= coarseBuckets || i > 0 && c < coarseOf(values[i-1]) {
			t.Fatalf("%d is in the coarse bucket %d, %d in %d", ns, c, values[i-1], coarseOf(values[i-1]))
		}
	}
}

// exact sorts durations and returns a quantile.
func exact(values []int64, p float64) float64 {
	slices.Sort(values)
	return float64(values[min(int(p*float64(len(values))), len(values)-1)])
}

func sketchOf(values []int64) *sketch {
	s, p, in := new(sketch), new(pool), stream{blockLines: firstBlock}
	for _, v := range values {
		block, halve := in.next()
		if halve {
			s.halve()
		}
		s.add(v, block, p)
	}
	return s
}

func lognormal(r *rand.Rand, n int, median, sigma float64) []int64 {
	list := make([]int64, n)
	for i := range list {
		list[i] = int64(median * math.Exp(sigma*r.NormFloat64()))
	}
	return list
}

func TestQuantilesAreThoseOfTheRequests(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(2, 2))
	for _, n := range []int{1, 2, 100, 50000} {
		values := lognormal(r, n, 5e6, 1.5)
		d := sketchOf(values).dist(1)
		for _, p := range []float64{0.01, 0.5, 0.95, 0.99, 1} {
			got := d.quantile(p)
			low, high := exact(values, max(p-1.01/float64(n), 0)), exact(values, min(p+1.01/float64(n), 1))
			if got < low*(1-1.0/subBuckets) || got > high*(1+1.0/subBuckets) {
				t.Errorf("the quantile %g of %d is %g, not from %g to %g", p, n, got, low, high)
			}
			if back := d.below(got); n > 100 && math.Abs(back-p) > 0.005 {
				t.Errorf("below the quantile %g are %g", p, back)
			}
		}
	}
}

func TestMergedAndHalved(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(3, 3))
	values := lognormal(r, 20000, 5e6, 1)
	all := sketchOf(values).dist(1)
	parts := []*dist{sketchOf(values[:5000]).dist(1), sketchOf(values[5000:]).dist(1)}
	mixed := mixture(parts, []float64{0.25, 0.75})
	merged, p := sketchOf(values[:5000]), new(pool)
	merged.merge(sketchOf(values[5000:]), p)
	for _, q := range []float64{0.001, 0.5, 0.95, 0.99, 1} {
		for name, d := range map[string]*dist{"a mixture": mixed, "merged": merged.dist(1)} {
			if a, b := all.quantile(q), d.quantile(q); math.Abs(a/b-1) > 1.0/subBuckets {
				t.Errorf("%s: the quantile %g is %g instead of %g", name, q, b, a)
			}
		}
	}
}

// The computed distribution equals that of many random resamples.
func TestSpreadIsTheBootstrap(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	t.Parallel()
	r := rand.New(rand.NewPCG(4, 4))
	const n, resamples = 400, 4000
	values := lognormal(r, n, 5e6, 0.8)
	d := sketchOf(values).dist(1)
	for _, p := range []float64{0.5, 0.95} {
		drawn := make([]int64, resamples)
		sample := make([]int64, n)
		for i := range drawn {
			for k := range sample {
				sample[k] = values[r.IntN(n)]
			}
			drawn[i] = int64(exact(sample, p))
		}
		s, none := spreadOf(d, p, n), spread{[]float64{0}, []float64{1}}
		got := differenceOf(none, s, 0.05, 0)
		low, high := exact(drawn, 0.025), exact(drawn, 0.975)
		if width := high - low; math.Abs(got.low-low) > 0.15*width || math.Abs(got.high-high) > 0.15*width {
			t.Errorf("p%g: from %.0f to %.0f, drawn from %.0f to %.0f", 100*p, got.low, got.high, low, high)
		}
	}
}

// tableOf has one route for each entry, with durations from draw for each side.
func tableOf(r *rand.Rand, routes, n int, draw func(r *rand.Rand, side, route, i int) int64) *table {
	t := newTable([classes]bool{answered: true}, "", nil)
	for side := range 2 {
		for i := range n {
			route := i % routes
			b := &batch{names: []byte{'a' + byte(route)},
				records: []record{{ns: draw(r, side, route, i), routeEnd: 1, poolEnd: 1}}, lines: 1}
			b.steps.add(b.records[0].ns, 1)
			if err := t.add(b, side); err != nil {
				panic(err)
			}
		}
	}
	return t
}

// Two samples of the same distribution: at most one table in twenty has a verdict, regardless of the number of its
// cells. The interval of a single cell contains the truth in at least 95 of 100 cases. The widths show that it is not
// too wide, because for so few tables chance gives any share from 95 to 99 %. It is the interval of the bootstrap,
// wider by the design effect, which is at least 1, and by the width of a bucket. Together that is at most a fifth
// (dispersion).
func TestNothingIsFoundWhereNothingIs(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	t.Parallel()
	for _, shape := range []struct{ routes, each, runs int }{{1, 1500, 200}, {4, 1200, 60}} {
		runs := shape.runs
		if raceEnabled {
			runs /= 4
		}
		wrong, covered, cells := 0, 0, 0
		var width, plainWidth float64
		for run := range runs {
			r := rand.New(rand.NewPCG(uint64(run), uint64(shape.routes)))
			table := tableOf(r, shape.routes, shape.routes*shape.each, func(r *rand.Rand, _, _, _ int) int64 {
				return int64(5e6 * math.Exp(r.NormFloat64()))
			})
			report := table.report(byPath, 0.95, 30)
			if slices.ContainsFunc(report.everyRow(), func(row *Row) bool {
				return slices.ContainsFunc(row.Cells, func(c Cell) bool { return c.Verdict == Slower || c.Verdict == Faster })
			}) {
				wrong++
			}
			for _, row := range report.Rows {
				times := table.routes[row.Route].times
				for i, c := range row.Cells {
					if c.Verdict == Few {
						continue
					}
					n, p := float64(shape.each), percentiles[i].p
					alone, plain := c.RatioAlone, ratioOf(spreadOf(times[0].dist(1), p, n), spreadOf(times[1].dist(1), p, n), 0.05, 0,
						1).pair()
					cells++
					if alone[0] <= 1 && alone[1] >= 1 {
						covered++
					}
					width += math.Log(alone[1] / alone[0])
					plainWidth += math.Log(plain[1] / plain[0])
				}
			}
		}
		if share := float64(wrong) / float64(runs); share > 0.08 {
			t.Errorf("%d routes: %.1f %% of the tables say something of nothing", shape.routes, 100*share)
		}
		share, wider := float64(covered)/float64(cells), width/plainWidth
		if share < 0.93 || wider < 1 || wider > 1.2 {
			t.Errorf("%d routes: %.1f %% of the single intervals have the truth in them, and are %.2f times as wide as the "+
				"bootstrap's", shape.routes, 100*share, wider)
		}
		t.Logf("%d routes: verdicts in %d of %d tables, single intervals right in %.1f %%, %.2f times as wide as the "+
			"bootstrap's", shape.routes, wrong, runs, 100*share, wider)
	}
}

// Requests that are slow together do not count as independent, even if they differ little.
func TestBurstsAreNoWitnesses(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	t.Parallel()
	for name, shape := range map[string]struct{ median, stretches, requests float64 }{
		"wide":   {5e6, 0.4, 0.5},
		"narrow": {4.7e6, 0.02, 0.005}, // within one coarse bucket
	} {
		const n = 12800
		runs, wrong, naive := 60, 0, 0
		if raceEnabled {
			runs = 20
		}
		for run := range runs {
			r := rand.New(rand.NewPCG(uint64(run), 9))
			level, until := 1.0, 0
			table := tableOf(r, 1, n, func(r *rand.Rand, _, _, i int) int64 {
				if i >= until || i == 0 {
					level, until = math.Exp(shape.stretches*r.NormFloat64()), i+100
				}
				return int64(shape.median * level * math.Exp(shape.requests*r.NormFloat64()))
			})
			c := &table.report(byPath, 0.95, 30).Rows[0].Cells[0]
			if c.WorthA > n/4 {
				t.Fatalf("%s: %d requests in stretches of 100 are worth %d", name, n, c.WorthA)
			}
			for _, route := range table.routes {
				a, b := route.times[0].dist(1), route.times[1].dist(1)
				excludes := func(x, y float64) int {
					if d := differenceOf(spreadOf(a, 0.5, x), spreadOf(b, 0.5, y), 0.05, 0); d.low > 0 || d.high < 0 {
						return 1
					}
					return 0
				}
				wrong += excludes(float64(c.WorthA), float64(c.WorthB))
				naive += excludes(n, n)
			}
		}
		if share := float64(wrong) / float64(runs); share > 0.12 {
			t.Errorf("%s: %.0f %% of the intervals exclude the truth", name, 100*share)
		}
		if naive < 2*wrong || naive < runs/4 {
			t.Errorf("%s: without blocks %d of %d would have been wrong, with them %d: this shows nothing", name, naive, runs,
				wrong)
		}
		t.Logf("%s: wrong %d of %d, without blocks %d", name, wrong, runs, naive)
	}
}

// Phases of about a fifteenth of the log are longer than several blocks. Another log with such phases rarely gets a
// verdict.
func TestLongPhases(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	t.Parallel()
	const n, runs = 12000, 60
	wrong := 0
	for run := range runs {
		r := rand.New(rand.NewPCG(uint64(run), 10))
		load := 0.0
		report := tableOf(r, 2, n, func(r *rand.Rand, _, _, i int) int64 {
			if i == 0 {
				load = .6 * r.NormFloat64()
			}
			load = .9975*load + .6*math.Sqrt(1-.9975*.9975)*r.NormFloat64()
			return int64(20e6 * math.Exp(load+.5*r.NormFloat64()))
		}).report(byPath, 0.95, 30)
		if slices.ContainsFunc(report.everyRow(), func(row *Row) bool {
			return slices.ContainsFunc(row.Cells, func(c Cell) bool { return c.Verdict == Slower || c.Verdict == Faster })
		}) {
			wrong++
		}
	}
	t.Logf("verdicts in %d of %d", wrong, runs)
	if wrong > runs/5 { // 22 without neighbouring blocks
		t.Errorf("%d of %d pairs of logs of the same differ", wrong, runs)
	}
}

func TestDifferencesAreFound(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(5, 5))
	report := tableOf(r, 2, 20000, func(r *rand.Rand, side, route, _ int) int64 {
		x := 5e6 * math.Exp(0.8*r.NormFloat64())
		if side == 1 && route == 0 {
			x *= 1.3
		}
		return int64(x)
	}).report(byPath, 0.95, 30)
	for _, row := range report.Rows {
		for _, c := range row.Cells {
			want := Even
			if row.Route == "a" {
				want = Slower
			}
			if c.Verdict != want || want == Slower && (c.RatioInterval[0] > 1.3 || c.RatioInterval[1] < 1.3) {
				t.Errorf("%s %s: %s, %.3f (%.3f)", row.Route, c.Of, c.Verdict, c.Ratio, c.RatioInterval)
			}
		}
	}
}

// A clock with milliseconds does not show microseconds.
func TestClockStepsAreNoDifference(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(6, 6))
	table := tableOf(r, 1, 20000, func(r *rand.Rand, side, _, _ int) int64 {
		x := 3e6 + int64(r.Float64()*1e6)
		if side == 0 { // nginx truncates
			x = x / 1e6 * 1e6
		}
		return x
	})
	report := table.report(byPath, 0.95, 30) // also detects the steps of the durations
	table.sides[0].steps = steps{}
	table.sides[0].steps.add(1, 1)
	if v := table.report(byPath, 0.95, 30).Rows[0].Cells[0].Verdict; v != Slower {
		t.Fatalf("with clocks that are believed: %s, want %s", v, Slower)
	}
	for _, c := range report.Rows[0].Cells {
		if c.Verdict != Even {
			t.Errorf("%s: %s by %.3f", c.Of, c.Verdict, c.DifferenceInterval)
		}
	}
}

// If nearly all requests take the same time, the interval of chance has no width. Its remaining width is the resolution
// of the clocks and buckets.
func TestNarrow(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	t.Parallel()
	const n = 20000
	part := func(i int, share float64) bool { return float64(i*7919%n) < share*n }
	for name, c := range map[string]struct {
		step float64 // milliseconds
		draw func(r *rand.Rand, side, i int) float64
		want Verdict // of p50
	}{
		"one step apart, with outliers below and above": {1, func(_ *rand.Rand, side, i int) float64 {
			if part(i, 0.45) {
				return []float64{1, 9}[side]
			}
			return []float64{3, 4}[side]
		}, Even},
		"two steps apart":   {1, func(_ *rand.Rand, side, _ int) float64 { return []float64{3, 5}[side] }, Slower},
		"one step of 200":   {1, func(_ *rand.Rand, side, _ int) float64 { return []float64{200, 201}[side] }, Even},
		"one step of 1,000": {1, func(_ *rand.Rand, side, _ int) float64 { return []float64{1000, 1001}[side] }, Even},
		"a microsecond": {0.001, func(_ *rand.Rand, side, _ int) float64 { return []float64{0.042, 0.041}[side] },
			Even},
		"two microseconds": {0.001, func(_ *rand.Rand, side, _ int) float64 { return []float64{0.043, 0.041}[side] },
			Faster},
		"nothing, and one step": {1, func(_ *rand.Rand, side, _ int) float64 { return []float64{0, 1}[side] }, Even},
		"within a bucket, with outliers below and above": {0.001, func(r *rand.Rand, side, i int) float64 {
			if part(i, 0.1) {
				return []float64{50, 200}[side]
			}
			return 100.1 + 0.02*r.NormFloat64()
		}, Even},
		"more than a bucket": {0.001, func(r *rand.Rand, side, _ int) float64 {
			return []float64{100, 103}[side] +
				0.02*r.NormFloat64()
		}, Slower},
	} {
		r := rand.New(rand.NewPCG(10, 10))
		table := newTable([classes]bool{answered: true}, "", nil)
		for side := range 2 {
			for i := range n {
				step := int64(c.step * 1e6)
				ns := int64(math.Round(c.draw(r, side, i)/c.step)) * step
				b := &batch{names: []byte("a"), records: []record{{ns: ns, routeEnd: 1, poolEnd: 1}}, lines: 1}
				b.steps.add(ns, step)
				if err := table.add(b, side); err != nil {
					t.Fatal(err)
				}
			}
		}
		report := table.report(byPath, 0.95, 30)
		got := &report.Rows[0].Cells[0]
		d, ratio := got.DifferenceInterval, got.RatioInterval
		if got.Verdict != c.want || report.StepMS != c.step || d[1]-d[0] < 2*c.step {
			t.Errorf("%s: %s by %.4f in steps of %g, %g against %g; want %s", name, got.Verdict, d, report.StepMS, got.A,
				got.B, c.want)
		}
		if outside := ratio[0] > 1 || ratio[1] < 1; outside != (c.want != Even) {
			t.Errorf("%s: %s with a ratio of %.4f", name, got.Verdict, ratio)
		}
	}
}

// The resolution of a clock comes from the durations and not from their digits. A few odd lines do not change it.
func TestSteps(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		format string
		step   float64 // milliseconds
		odd    string
		want   float64
	}{
		"nginx's":                     {"%.3f", 1, "0.0031234", 1},
		"converted to more digits":    {"%.6f", 1, "0.003123", 1},
		"microseconds":                {"%.6f", 0.001, "0.003", 0.001},
		"numbers without their zeros": {"%g", 0.001, "1.5e-3", 0.001},
		"tenths of milliseconds":      {"%.4f", 0.1, "1", 0.1},
		"of a tenth of the lines":     {"%.3f", 1, "", 1},
	} {
		var b bytes.Buffer
		r := rand.New(rand.NewPCG(11, 11))
		for i := range 1000 {
			took := fmt.Sprintf(c.format, math.Round((2+5*r.Float64())/c.step)*c.step/1e3)
			if i == 500 && c.odd != "" {
				took = c.odd
			} else if i%10 == 0 && c.odd == "" {
				took += "123456"
			}
			fmt.Fprintf(&b, `{"request":"GET /a HTTP/1.1","status":200,"request_time":"%s"}`+"\n", took)
		}
		log := write(t, "a.log", b.Bytes())
		if r := run(t, options(log, log)); r.StepMS != c.want {
			t.Errorf("%s: steps of %g ms, want %g", name, r.StepMS, c.want)
		}
	}
}

func TestTooFew(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(7, 7))
	report := tableOf(r, 1, 150, func(_ *rand.Rand, side, _, _ int) int64 { return int64(1+side) * 1e9 }).report(byPath,
		0.95, 30)
	for i, want := range []Verdict{Slower, Few, Few} {
		if c := report.Rows[0].Cells[i]; c.Verdict != want {
			t.Errorf("%s of 150: %s, want %s", c.Of, c.Verdict, want)
		}
	}
	if report.Judged != 1 || least(0.5) != 20 || least(0.95) != 200 || least(0.99) != 1000 {
		t.Errorf("judged %d; needed are %d, %d and %d, want 1, 20, 200, 1000", report.Judged, least(0.5), least(0.95),
			least(0.99))
	}
}

// More requests are worth more in the same mix, even if blocks contain only the last few of them.
func TestMoreAreWorthMore(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	t.Parallel()
	const routes, runs = 4, 20
	var before [2]float64
	for _, each := range []int{127, 130, 135, 150, 200, 300} {
		var worth [2]float64
		for run := range runs {
			r := rand.New(rand.NewPCG(uint64(run), 12))
			row := tableOf(r, routes, routes*each, func(r *rand.Rand, _, _,
				_ int) int64 {
				return int64(5e6 * math.Exp(0.5*r.NormFloat64()))
			}).report(byPath, 0.95, 30).SameMix
			for i := range worth {
				worth[i] += float64(row.Cells[i].WorthA) / runs
			}
		}
		for i := range worth {
			if worth[i] < before[i] {
				t.Errorf("%s: %d routes of %d requests are worth %.0f, and fewer were worth %.0f", percentiles[i].name, routes,
					each, worth[i], before[i])
			}
		}
		t.Logf("%d: %.0f", each, worth)
		before = worth
	}
}

// Simpson's paradox: each route is faster, and all together are slower, because the slow route has a larger share.
func TestMixIsShownApart(t *testing.T) {
	t.Parallel()
	table := newTable([classes]bool{answered: true}, "", nil)
	r := rand.New(rand.NewPCG(8, 8))
	for side, slow := range []float64{0.2, 0.6} {
		for range 40000 {
			name, ns := "fast", 10e6
			if r.Float64() < slow {
				name, ns = "slow", 100e6
			}
			if side == 1 {
				ns *= 0.8
			}
			ns *= math.Exp(0.2 * r.NormFloat64())
			b := &batch{names: []byte(name), records: []record{{ns: int64(ns), routeEnd: 4, poolEnd: 4}}, lines: 1}
			b.steps.add(int64(ns), 1)
			if err := table.add(b, side); err != nil {
				t.Fatal(err)
			}
		}
	}
	report := table.report(byPath, 0.95, 30)
	for _, row := range report.everyRow() {
		if c := row.Cells[0]; c.Verdict != Faster && row.Route != "all routes, in the same mix" {
			t.Errorf("%s: %s", row.Route, c.Verdict)
		}
	}
	if c := report.SameMix.Cells[1]; c.Verdict != Faster || math.Abs(float64(c.Ratio)-0.8) > 0.02 {
		t.Errorf("in the same mix p95 is %s, %.3f", c.Verdict, c.Ratio)
	}
	mean := report.All[0]
	// Computed by hand: A 28 ms, B 51.2 ms; A's durations in B's mix 64 ms, B's in A's 22.4 ms (times the lognormal's
	// mean, 1.02).
	const factor = 1.0202
	if math.Abs(mean.Within-(-9.2*factor)) > 0.5 || math.Abs(mean.Mix-32.4*factor) > 0.8 {
		t.Errorf("of the mean: within %.2f, mix %.2f", mean.Within, mean.Mix)
	}
	for _, c := range report.All {
		if math.Abs(c.Within+c.Mix-c.Change) > 1e-9 || c.Within >= 0 || c.Mix <= 0 && c.Of == "mean" {
			t.Errorf("%+v does not add up", c)
		}
	}
}
