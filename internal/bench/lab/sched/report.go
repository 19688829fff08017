package sched

import (
	"bytes"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/packhorse-git/packhorse/internal/bench/chart"
	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	"github.com/packhorse-git/packhorse/internal/bench/page"
)

var schedColumns = []string{"workers", "slots", "policy", "load", "mean", "p50", "p95", "p99", "saturation",
	"requests/s", "shared while idle"}

// schedNamed is the number of columns that identify a row.
const schedNamed = 3

func (r schedRow) cells() []string {
	tenth := func(x float64) string { return strconv.FormatFloat(x, 'f', 1, 64) }
	return []string{strconv.Itoa(r.Workers), strconv.Itoa(r.Slots), r.Policy, fmt.Sprint(r.Load), tenth(r.Mean),
		tenth(r.P50), tenth(r.P95), tenth(r.P99),
		fmt.Sprintf("%.3f", r.Saturation), tenth(r.PerS), strconv.Itoa(r.Shared)}
}

// about describes the simulations.
func (r *schedReport) about() string {
	lock := "one lock for each worker"
	if !r.GVL {
		lock = "no lock"
	}
	return fmt.Sprintf("%d CPUs, %s, %s loop, %g ms %s, %g %% of it computing; %d requests, seed %d",
		r.CPUs, lock, r.Arrivals, r.ServiceMS, r.Distribution, loadgen.Round(100*r.CPU, 2), r.Requests, r.Seed)
}

// longList is the number of rows from which they are no longer printed one by one.
const longList = 30

// print writes a table with all figures of few rows, or with mean and p99 of all policies side by side.
func (o *schedOptions) print(w io.Writer, r *schedReport) error {
	fmt.Fprintf(w, "%s\n", r.about())
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	line := func(cells []string) {
		for _, c := range cells {
			fmt.Fprintf(table, "%s\t", c)
		}
		fmt.Fprintln(table)
	}
	if len(r.Rows) <= longList {
		fmt.Fprintln(w)
		line(schedColumns)
		for _, row := range r.Rows {
			line(row.cells())
		}
		return table.Flush()
	}
	fmt.Fprint(w, "mean / p99 in ms, by load; all other figures: --json\n")
	for _, shape := range r.shapes() {
		rows := r.of(shape)
		fmt.Fprintf(w, "\n%s\n", shape)
		line(append([]string{"load"}, o.policies...))
		for _, load := range o.loads {
			cells := []string{fmt.Sprint(load)}
			for _, p := range o.policies {
				//nolint:gocritic // the same number
				i := slices.IndexFunc(rows, func(r schedRow) bool { return r.Policy == p && r.Load == load })
				cells = append(cells, fmt.Sprintf("%.0f / %.0f", rows[i].Mean, rows[i].P99))
			}
			line(cells)
		}
		if err := table.Flush(); err != nil {
			return err
		}
	}
	return nil
}

// schedShape is one configuration.
type schedShape struct{ workers, slots int }

func (s schedShape) String() string {
	slots := "slots"
	if s.slots == 1 {
		slots = "slot"
	}
	return fmt.Sprintf("%d workers, %d %s each", s.workers, s.slots, slots)
}

// shapes returns the configurations in their order.
func (r *schedReport) shapes() (list []schedShape) {
	for _, row := range r.Rows {
		if s := (schedShape{row.Workers, row.Slots}); !slices.Contains(list, s) {
			list = append(list, s)
		}
	}
	return list
}

// policies returns the simulated policies in their order.
func (r *schedReport) policies() (list []string) {
	for _, row := range r.Rows {
		if !slices.Contains(list, row.Policy) {
			list = append(list, row.Policy)
		}
	}
	return list
}

func (r *schedReport) of(s schedShape) (rows []schedRow) {
	for _, row := range r.Rows {
		if row.Workers == s.workers && row.Slots == s.slots {
			rows = append(rows, row)
		}
	}
	return rows
}

// Charts end slightly above the maximum of the loads up to schedCalm. Beyond that a growing queue would leave no space
// for the other values.
const schedCalm, schedHeadroom = 0.85, 1.3

// chart draws a figure over the load, relative to single requests, with a curve for each policy.
func (r *schedReport) chart(shape schedShape, name string, figure func(schedRow) float64) chart.Chart {
	c := chart.Chart{Title: shape.String() + ": " + name, Unit: "times a lone request", Axis: "%", KeyBelow: true}
	rows := r.of(shape)
	for _, p := range r.policies() {
		v := chart.Curve{Name: p, Class: schedClass(p)}
		for _, row := range rows {
			if row.Policy == p {
				v.Points = append(v.Points, chart.Point{X: 100 * row.Load, Y: figure(row) / r.ServiceMS})
			}
		}
		c.Curves = append(c.Curves, v)
	}
	top := 0.0
	for _, v := range c.Curves {
		for _, p := range v.Points {
			if p.X <= 100*schedCalm {
				top = max(top, schedHeadroom*p.Y)
			}
		}
	}
	for i := range c.Curves {
		if top > 0 {
			c.Curves[i].CutAt(top)
		}
	}
	return c
}

// schedClass is the CSS class of a policy's colour.
func schedClass(policy string) string {
	if _, n, _ := findPolicy(policy); n > 0 {
		return []string{"j", "k"}[n%2]
	}
	return map[string]string{schedRandom: "b", schedRoundRobin: "d", schedTwoChoices: "e", schedPumaDelay: "f",
		schedLeastBusy: "c",
		schedPackhorse: "a", schedOracle: "m"}[policy]
}

// writeHTML writes one self-contained page.
func (o *schedOptions) writeHTML(to *page.File, r *schedReport) error {
	if to == nil {
		return nil
	}
	data := struct {
		About    string
		Table    chart.Table
		Policies []schedKind
		Charts   []template.HTML
	}{About: r.about(), Table: chart.Table{Head: schedColumns, Naming: schedNamed}}
	for _, name := range r.policies() {
		kind, _, _ := findPolicy(name)
		if !slices.ContainsFunc(data.Policies, func(k schedKind) bool { return k.name == kind.name }) {
			data.Policies = append(data.Policies, kind)
		}
	}
	for _, row := range r.Rows {
		data.Table.Rows = append(data.Table.Rows, row.cells())
	}
	// the horizontal axis of charts is time: a percent is a second
	width := time.Duration(100 * o.loads[len(o.loads)-1] * float64(time.Second))
	for _, shape := range r.shapes() {
		for _, c := range []chart.Chart{
			r.chart(shape, "mean", func(r schedRow) float64 { return r.Mean }),
			r.chart(shape, "p99", func(r schedRow) float64 { return r.P99 }),
		} {
			//nolint:gosec // made here of numbers and escaped text
			data.Charts = append(data.Charts, template.HTML(c.SVG(width)))
		}
	}
	var b bytes.Buffer
	if err := schedPage.Execute(&b, data); err != nil {
		return err
	}
	return to.Write(b.Bytes())
}

var schedPage = template.Must(template.New("page").Funcs(template.FuncMap{
	"style": func() template.CSS { return template.CSS(page.Style) },
	"name":  func(k schedKind) string { return k.name }, "does": func(k schedKind) string { return k.does },
}).Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>packhorse-bench lab sched</title>
<style>
{{style}}</style></head><body>
<h1>Latency by load, and by the policy that chooses the worker</h1><p>packhorse-bench lab sched &middot; {{.About}}</p>
<div class="charts">{{range .Charts}}{{.}}
{{end}}</div>
<p>Load: relative to the capacity of the workers. Curves end where they leave the chart. The table has all figures, in ms. Saturation is the
mean divided by that of single requests.</p>
<div class="wide"><table>{{range .Policies}}<tr><th scope="row">{{name .}}</th><td>{{does .}}</td></tr>
{{end}}</table></div>
<div class="wide"><table><tr>{{range $i, $c := .Table.Head}}<th scope="col" class="{{$.Table.Class $i}}">{{$c}}</th>{{end}}</tr>
{{range .Table.Rows}}<tr>{{range $i, $v := .}}<td class="{{$.Table.Class $i}}">{{$v}}</td>{{end}}</tr>
{{end}}</table></div>
</body></html>
`))
