package matrix

import (
	"bytes"
	"html/template"
	"math"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/packhorse-git/packhorse/internal/bench/chart"
	"github.com/packhorse-git/packhorse/internal/bench/page"
)

// chartStretch is the minimum time over which a point of a chart averages CPU time, because /proc counts hundredths of
// a second.
const chartStretch = 500 * time.Millisecond

// chart draws the CPU time of the cell's processes and of their children over time. All charts have the same scale.
func (c *cellResult) chart() chart.Chart {
	d := chart.Chart{Title: c.cell.String(), Unit: "CPU %", Top: 100}
	for i, s := range c.stations {
		d.Curves = append(d.Curves, chart.Curve{Name: s.label, Class: chart.Classes[i]})
	}
	kids := len(d.Curves) // one curve for all children, because only one process has any
	d.Curves = append(d.Curves, chart.Curve{Name: c.stations[kids-1].kids, Class: chart.Classes[kids]})
	last := sample{cpu: make([]cpuTimes, len(c.stations))}
	width := max(chartStretch, c.out.Elapsed/chart.MaxSlices)
	for i, k := range c.watch.samples {
		over := k.at - last.at
		if short := last.at == 0 && i == len(c.watch.samples)-1; over < width && !short || over <= 0 {
			continue // a short cell has at least one point
		}
		x, children := (last.at + over/2).Seconds(), time.Duration(0)
		for i := range c.stations {
			d.Add(i, x, percent(k.cpu[i].own-last.cpu[i].own, over))
			children += k.cpu[i].children - last.cpu[i].children
		}
		d.Add(kids, x, percent(children, over))
		last = k
	}
	if busy := func(p chart.Point) bool { return p.Y > 0 }; !slices.ContainsFunc(d.Curves[kids].Points, busy) {
		d.Curves = d.Curves[:kids] // no children
	}
	return d
}

// percent returns CPU time as a share of all CPUs. Times of one process are rounded, so that a small value may seem to
// be negative.
func percent(cpu, over time.Duration) float64 {
	return math.Max(100*cpu.Seconds()/over.Seconds()/float64(runtime.NumCPU()), 0)
}

// writeMatrixHTML writes the report as one self-contained page.
func writeMatrixHTML(file string, r *matrixReport, results []*cellResult) error {
	page := struct {
		About, When string
		Tables      []chart.Table
		Ratios      []matrixRatios
		Charts      []template.HTML
	}{About: r.about(), When: time.Now().UTC().Format("2006-01-02 15:04 UTC"), Ratios: r.Ratios}
	cells, processes := r.tables()
	page.Tables = []chart.Table{
		{Head: matrixColumns, Rows: cells, Naming: matrixNamed}, {Head: processColumns, Rows: processes,
			Naming: processNamed}}
	for _, c := range results {
		d := c.chart()
		//nolint:gosec // made here of numbers and escaped text
		page.Charts = append(page.Charts, template.HTML(d.SVG(c.watch.samples[len(c.watch.samples)-1].at)))
	}
	var b bytes.Buffer
	if err := matrixPage.Execute(&b, page); err != nil {
		return err
	}
	return os.WriteFile(file, b.Bytes(), 0o666)
}

var matrixPage = template.Must(template.New("page").Funcs(template.FuncMap{
	"style": func() template.CSS { return template.CSS(page.Style) },
	"lines": func(r matrixRatios) []chart.Row { return r.lines() },
	"name":  func(r chart.Row) string { return r.Name }, "value": func(r chart.Row) string { return r.Value },
}).Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>packhorse-bench matrix</title>
<style>
{{style}}</style></head><body>
<h1>Gateway and node: transport and cache, two by two</h1><p>packhorse-bench matrix &middot; {{.About}} &middot; {{.When}}</p>
{{range $t := .Tables}}<div class="wide"><table><tr>{{range $i, $c := .Head}}<th scope="col" class="{{$t.Class $i}}">{{$c}}</th>{{end}}</tr>
{{range .Rows}}<tr>{{range $i, $v := .}}<td class="{{$t.Class $i}}">{{$v}}</td>{{end}}</tr>
{{end}}</table></div>
{{end}}{{range .Ratios}}<div class="wide"><table><caption>{{.Repo}}, with the cache on</caption>
{{range lines .}}<tr><th scope="row">{{name .}}</th><td class="n">{{value .}}</td></tr>
{{end}}</table></div>
{{end}}<p>CPU time of each process and of its children, 100 being all CPUs. Load: running and runnable threads for each CPU. s/GB, MB/GB:
CPU seconds and megabytes of allocated heap for each GB that the clients received. GC: the garbage collector's share of the CPU time.</p>
<div class="charts">{{range .Charts}}{{.}}
{{end}}</div>
</body></html>
`))
