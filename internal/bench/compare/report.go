package compare

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// Verdict is the result of comparing B with A.
type Verdict string

// The verdicts.
const (
	Slower   Verdict = "slower"
	Faster   Verdict = "faster"
	Even     Verdict = "none"      // the interval contains zero
	Few      Verdict = "few"       // too few requests for an interval
	NotAlike Verdict = "not alike" // requests of several routes
	OneSided Verdict = "one side"
)

// The values of Report.By.
const (
	byPath      = "path"
	byOperation = "operation"
)

// Report is the comparison. Durations are milliseconds.
type Report struct {
	Sides      [2]Side  `json:"sides"`
	Inputs     []Input  `json:"inputs"` // of A and of B, or of the split log
	By         string   `json:"by"`
	Confidence float64  `json:"confidence"` // of all intervals together
	Judged     int      `json:"judged"`     // the number of intervals
	Each       float64  `json:"confidence_each"`
	StepMS     float64  `json:"step_ms"` // of the coarser clock; the minimum width of intervals
	All        []Change `json:"all"`     // of all requests, without the effect of the mix removed
	// All routes that both sides have, with the same weight on both sides. Nil: fewer than two.
	SameMix  *Row     `json:"same_mix"`
	MixShare float64  `json:"same_mix_share"`
	Rows     []Row    `json:"rows"` // routes by traffic; the last one is "other"
	Notes    []string `json:"notes"`
}

// Side is A or B.
type Side struct {
	Name string `json:"name"`
	Outcomes
	PerSecond float64 `json:"per_second"` // 0: the log has no times
	InFlight  float64 `json:"in_flight"`  // mean
}

// Outcomes are numbers of requests by outcome.
type Outcomes struct {
	Requests uint64 `json:"requests"`
	Compared uint64 `json:"compared"` // the sample
	Answered uint64 `json:"answered"` // below 400
	Refused  uint64 `json:"refused"`  // 4xx
	Failed   uint64 `json:"failed"`   // 5xx and 429
	Gone     uint64 `json:"gone"`     // the client disconnected
}

// Input is a log.
type Input struct {
	Files     []string       `json:"files"`
	Format    Format         `json:"format"`
	Lines     int            `json:"lines"`
	Other     int            `json:"other_lines"`   // not about a request
	Outside   int            `json:"outside_lines"` // outside the window of time
	Unsplit   int            `json:"unsplit_lines"` // without the field of --split, or of a third side
	Malformed map[string]int `json:"malformed"`     // by reason
	Examples  []Malformed    `json:"examples"`
	First     time.Time      `json:"first,omitzero"`
	Last      time.Time      `json:"last,omitzero"`
}

func (in *Input) malformed() (n int) {
	for _, k := range in.Malformed {
		n += k
	}
	return n
}

// Reasons lists the reasons of malformed lines, the most frequent one first.
func (in *Input) Reasons() string {
	var list []string
	for _, reason := range slices.SortedFunc(maps.Keys(in.Malformed), func(a, b string) int {
		return cmp.Or(cmp.Compare(in.Malformed[b], in.Malformed[a]), cmp.Compare(a, b))
	}) {
		list = append(list, fmt.Sprintf("%s (%s)", reason, thousands(in.Malformed[reason])))
	}
	return strings.Join(list, ", ")
}

// Change is a figure of all requests with the causes of its change: Change = Within + Mix.
type Change struct {
	Of     string  `json:"of"` // mean, p50, p95, p99
	A      float64 `json:"a_ms"`
	B      float64 `json:"b_ms"`
	Change float64 `json:"change_ms"`
	Within float64 `json:"within_ms"` // because routes became slower or faster
	Mix    float64 `json:"mix_ms"`    // because the shares of slow routes changed
}

// Row is the comparison of a route.
type Row struct {
	Route string   `json:"route"`
	A     Outcomes `json:"a"`
	B     Outcomes `json:"b"`
	Cells []Cell   `json:"cells"`
}

// Cell is the comparison of a percentile of a route.
type Cell struct {
	Of                 string     `json:"of"`
	A                  Number     `json:"a_ms"`
	B                  Number     `json:"b_ms"`
	Ratio              Number     `json:"ratio"`               // B/A
	RatioInterval      [2]float64 `json:"ratio_interval"`      // at confidence_each
	DifferenceInterval [2]float64 `json:"difference_interval"` // likewise, B-A in milliseconds
	RatioAlone         [2]float64 `json:"ratio_interval_alone"`
	WorthA             uint64     `json:"worth_a"` // number of independent requests that the sample is worth
	WorthB             uint64     `json:"worth_b"`
	Needs              uint64     `json:"needs"` // required requests on each side
	Verdict            Verdict    `json:"verdict"`
}

// Number is a figure that may be unknown, which is NaN, and null in JSON.
type Number float64

// MarshalJSON writes a number, or null.
func (n Number) MarshalJSON() ([]byte, error) {
	if x := float64(n); !math.IsNaN(x) && !math.IsInf(x, 0) {
		return json.Marshal(x)
	}
	return []byte("null"), nil
}

// percentiles are the compared percentiles.
var percentiles = []struct {
	name string
	p    float64
}{{"p50", 0.50}, {"p95", 0.95}, {"p99", 0.99}}

// leastInMix is the minimum number of requests of a route on each side in the row of the same mix.
const leastInMix = 20

// pair is a route with the data of both sides.
type pair struct {
	route *routeData
	a, b  *dist
	alike bool // not "other"
}

// report compares the sides of the table. rows limits the routes with their own row.
func (t *table) report(by string, confidence float64, rows int) *Report {
	t.order()
	t.prune(rows)
	r := &Report{By: by, Confidence: confidence, Sides: t.sideReports(), Inputs: t.inputReports()}
	var steps [2]float64
	for side := range steps {
		in := side
		if t.split != "" {
			in = 0
		}
		steps[side] = float64(t.sides[in].steps.usual())
	}
	step := max(steps[0], steps[1])
	r.StepMS = step / 1e6
	var pairs []pair
	for _, route := range t.byTraffic() {
		pairs = append(pairs, pair{route, route.times[0].dist(steps[0]), route.times[1].dist(steps[1]), true})
	}
	if t.other.total() > 0 {
		pairs = append(pairs, pair{&t.other, t.other.times[0].dist(steps[0]), t.other.times[1].dist(steps[1]), false})
	}
	v := &verdicts{step: step}
	for i := range pairs {
		v.addRow(&pairs[i])
	}
	same, share := sameMix(pairs)
	r.MixShare = share
	if same != nil {
		v.add(same)
	}
	r.Judged = v.open()
	r.Each = 1 - (1-confidence)/float64(max(r.Judged, 1))
	v.decide(1-r.Each, 1-confidence)
	for i := range pairs {
		r.Rows = append(r.Rows, v.rows[i].row)
	}
	if same != nil {
		r.SameMix = &v.rows[len(pairs)].row
	}
	r.All = shift(pairs)
	r.Notes = t.notes(r, pairs)
	return r
}

func outcomesOf(c counts, compared uint64) Outcomes {
	return Outcomes{Requests: c.total(), Compared: compared, Answered: c[answered], Refused: c[refused], Failed: c[failed],
		Gone: c[gone]}
}

func (t *table) sideReports() (sides [2]Side) {
	for i := range sides {
		all, n := t.other.counts[i], t.other.times[i].n
		for _, r := range t.routes {
			all.add(r.counts[i])
			n += r.times[i].n
		}
		s, in := &t.sides[i], &t.sides[i]
		if t.split != "" {
			in = &t.sides[0]
		}
		sides[i] = Side{Name: printable([]byte(s.name)), Outcomes: outcomesOf(all, n)}
		if seconds := in.last.Sub(in.first).Seconds(); seconds > 0 {
			sides[i].PerSecond, sides[i].InFlight = float64(all.total())/seconds, s.busy/1e9/seconds
		}
	}
	return sides
}

func (t *table) inputReports() (list []Input) {
	for i := range t.sides {
		s := &t.sides[i]
		if i == 1 && t.split != "" {
			break
		}
		in := Input{Files: []string{}, Format: s.format, Lines: s.lines, Other: s.other, Outside: s.outside,
			Unsplit:   t.foreign + t.without,
			Malformed: map[string]int{}, Examples: []Malformed{}, First: s.first, Last: s.last}
		maps.Copy(in.Malformed, s.malformed)
		in.Examples = append(in.Examples, s.examples...)
		for _, f := range s.files {
			in.Files = append(in.Files, printable([]byte(f)))
		}
		list = append(list, in)
	}
	return list
}

// notes describes conditions that make the comparison unfair.
func (t *table) notes(r *Report, pairs []pair) []string {
	notes := []string{}
	note := func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) }
	a, b := &r.Sides[0], &r.Sides[1]
	if x, y := a.InFlight, b.InFlight; x > 0 && y > 0 && max(x, y) > 1.25*min(x, y) {
		note("Unequal load: %.3g requests in flight on average against %.3g. A higher load causes longer waits.", x, y)
	}
	if t.split == "" && !r.Inputs[0].First.IsZero() && !r.Inputs[1].First.IsZero() &&
		(r.Inputs[0].Last.Before(r.Inputs[1].First) || r.Inputs[1].Last.Before(r.Inputs[0].First)) {
		note("The logs cover different times: other conditions may also have changed.")
	}
	if failuresDiffer(a, b) {
		note("A failed %.2f %% of its requests, B %.2f %%: latencies are those of answered requests, and a server that "+
			"fails "+
			"slow requests looks fast.",
			100*share(a.Failed+a.Gone, a.Requests), 100*share(b.Failed+b.Gone, b.Requests))
	}
	for i := range r.Inputs {
		if in := &r.Inputs[i]; 100*in.malformed() > in.Lines {
			note("%.1f %% of the lines of %s are malformed.", 100*float64(in.malformed())/float64(in.Lines),
				printable([]byte(in.Files[0])))
		}
	}
	if r.StepMS >= 0.1 {
		note("The durations of a log have steps of %s: no interval is narrower than that, and smaller differences get no "+
			"verdict.", duration(r.StepMS))
	}
	if n := t.other.total(); 10*n > a.Requests+b.Requests {
		instead := "--route PATTERN folds paths, --rows shows more"
		if r.By == byOperation {
			instead = "--by path separates them"
		}
		note("%.0f %% of all requests are in \"other\"; %s.", 100*share(n, a.Requests+b.Requests), instead)
	}
	if t.folded {
		note("The logs have more than %d routes: rows may lack requests that went into \"other\"; --route PATTERN folds "+
			"paths.", maxRoutes)
	}
	if t.without > 0 {
		note("%s requests have no %q, and are on neither side.", thousands(t.without), printable([]byte(t.split)))
	}
	if r.SameMix != nil && r.MixShare < 0.9 {
		note("The same mix is that of %.0f %% of all requests: of routes that both sides have.", 100*r.MixShare)
	}
	for _, p := range pairs {
		for i, d := range []*dist{p.a, p.b} {
			if d.n < blocksFrom {
				continue
			}
			if effect, ok := dispersion(d.from, 0.95); ok && effect > 3 && len(notes) < maxNotes {
				note("%c's %s has slow and fast phases: %s requests are worth %s at p95, and the interval is as wide.",
					'A'+i, printable([]byte(p.route.name)), thousands(d.n), thousands(uint64(float64(d.n)/effect)))
			}
		}
	}
	return notes
}

const maxNotes = 10

func share(n, of uint64) float64 { return float64(n) / float64(max(of, 1)) }

// failuresDiffer reports whether one side fails more often, significantly and to a relevant extent.
func failuresDiffer(a, b *Side) bool {
	x, y := share(a.Failed+a.Gone, a.Requests), share(b.Failed+b.Gone, b.Requests)
	p := share(a.Failed+a.Gone+b.Failed+b.Gone, a.Requests+b.Requests)
	scatter := math.Sqrt(p * (1 - p) * (1/float64(max(a.Requests, 1)) + 1/float64(max(b.Requests, 1))))
	return math.Abs(x-y) > 0.002 && math.Abs(x-y) > 4*scatter
}

// WriteJSON writes the report as JSON. Unknown values are null.
func (r *Report) WriteJSON(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(r)
}
