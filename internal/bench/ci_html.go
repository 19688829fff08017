package bench

import (
	"bytes"
	"cmp"
	"fmt"
	"html"
	"html/template"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/bench/page"
)

// chart is one drawing: curves over the seconds of a run.
type chart struct {
	title, unit string
	curves      []curve
	top         float64 // of the scale; 0: from the values
	axis        string  // the unit below; "": s
	keyBelow    bool    // the legend stands below: for more curves than there is room for beside the title
}

type curve struct {
	name   string
	class  string // of its colour
	points []point
	top    float64 // where it leaves the chart, if above 0: these points are no values
}

type point struct{ x, y float64 } // y is not a number where there is none: the curve has a gap

// writeHTML writes the report as one page that needs nothing else.
func writeHTML(file, title string, o *ciOptions, r *ciReport, c *ciResult) error {
	var b bytes.Buffer
	page := struct {
		Title, About, When string
		Rows               []row
		Kinds              []kindReport
		Charts             []template.HTML
	}{
		Title: title, Rows: r.rows(), Kinds: r.Kinds, When: time.Now().UTC().Format("2006-01-02 15:04 UTC"),
		About: fmt.Sprintf("profile %s, %d machines, %d jobs every %v, %v", o.profile, o.runners, o.jobs, o.every,
			c.elapsed.Round(100*time.Millisecond)),
	}
	for i := range page.Rows {
		page.Rows[i].name = strings.TrimSpace(page.Rows[i].name)
	}
	for _, d := range charts(c) {
		page.Charts = append(page.Charts, template.HTML(d.svg(c.elapsed))) //nolint:gosec // made here of numbers and escaped text
	}
	if err := ciPage.Execute(&b, page); err != nil {
		return err
	}
	return os.WriteFile(file, b.Bytes(), 0o666)
}

// charts are what changes over a run. Those of what was not measured are left out.
func charts(c *ciResult) []chart {
	jobs := chart{title: "Jobs", unit: "ended each second", curves: []curve{{name: "jobs", class: "a"}}}
	took := chart{title: "Job time", unit: "ms", curves: []curve{{name: "p95", class: "b"}, {name: "p50", class: "a"}}}
	cpus := chart{title: "Server CPU", unit: "CPUs busy", curves: []curve{{name: "CPU", class: "a"}}}
	saved := chart{title: "Packs not made anew", unit: "% hit or follow", curves: []curve{{name: "share", class: "a"}}, top: 100}
	for _, s := range curves(c) {
		x, gap := s.at.Seconds(), math.NaN()
		jobs.add(0, x, s.jobsPerS)
		p50, p95 := gap, gap
		if s.jobsPerS > 0 {
			p50, p95 = s.p50, s.p95
		}
		took.add(0, x, p95)
		took.add(1, x, p50)
		cpus.add(0, x, orElse(s.cpus, gap))
		saved.add(0, x, orElse(s.saved, gap))
	}
	var list []chart
	for _, d := range []chart{jobs, took, cpus, saved} {
		if slices.ContainsFunc(d.curves[0].points, func(p point) bool { return !math.IsNaN(p.y) }) {
			list = append(list, d)
		}
	}
	return list
}

func orElse(v *float64, other float64) float64 {
	if v == nil {
		return other
	}
	return *v
}

func (d *chart) add(curve int, x, y float64) {
	d.curves[curve].points = append(d.curves[curve].points, point{x, y})
}

// The drawing's measures, in its own units.
const (
	svgWidth, svgHeight     = 560.0, 220.0
	marginLeft, marginRight = 52.0, 12.0
	marginTop, marginBottom = 34.0, 34.0
	plotWidth, plotHeight   = svgWidth - marginLeft - marginRight, svgHeight - marginTop - marginBottom
	gridLines               = 4
	timeLabels              = 6
	smallestScale, dotsUpTo = 0.001, 40
	// The legend: a piece of the curve, its name.
	legendMark, letterWidth = 32.0, 6.5
	legendLine              = 18.0
)

// svg draws the chart.
func (d *chart) svg(elapsed time.Duration) string {
	top := d.top
	for _, c := range d.curves {
		for _, p := range c.points {
			if p.y > top { // false of a gap
				top = p.y
			}
		}
	}
	step := niceStep(max(top, smallestScale) / gridLines)
	for top = step; d.above(top); {
		top += step
	}
	seconds := max(elapsed.Seconds(), smallestScale)
	px := func(x float64) float64 { return marginLeft + min(x/seconds, 1)*plotWidth }
	py := func(y float64) float64 { return marginTop + (1-y/top)*plotHeight }

	var b strings.Builder
	label := html.EscapeString(d.title + ", " + d.unit)
	key, height := d.legend()
	fmt.Fprintf(&b, `<svg viewBox="0 0 %g %g" role="img" aria-label="%s"><text class="h" x="%g" y="16">%s <tspan class="u" dx="6">%s</tspan></text>`,
		svgWidth, height, label, marginLeft, html.EscapeString(d.title), html.EscapeString(d.unit))
	for y := 0.0; y <= top+step/2; y += step {
		fmt.Fprintf(&b, `<line class="g" x1="%g" x2="%g" y1="%.1f" y2="%.1f"/><text class="l" text-anchor="end" x="%g" y="%.1f">%s</text>`,
			marginLeft, svgWidth-marginRight, py(y), py(y), marginLeft-6, py(y)+4, scaleLabel(y, step))
	}
	every, axis := niceStep(seconds/timeLabels), cmp.Or(d.axis, "s")
	for x := 0.0; x <= seconds+every/100; x += every {
		at, anchor := px(x), "middle"
		if at > svgWidth-2*marginRight {
			at, anchor = svgWidth-2, "end"
		}
		fmt.Fprintf(&b, `<text class="l" text-anchor="%s" x="%.1f" y="%g">%s %s</text>`, anchor, at, svgHeight-marginBottom+18, scaleLabel(x, every), axis)
	}
	for _, c := range slices.Backward(d.curves) {
		c.draw(&b, px, py, axis)
	}
	b.WriteString(key)
	b.WriteString(`</svg>`)
	return b.String()
}

// legend names the curves, if there are several: beside the title, or in lines below. Height is that of the drawing with it.
func (d *chart) legend() (key string, height float64) {
	var b strings.Builder
	write := func(c curve, x, y float64) {
		fmt.Fprintf(&b, `<line class="%s" x1="%g" x2="%g" y1="%g" y2="%g"/><text class="l" x="%g" y="%g">%s</text>`,
			c.class, x, x+14, y-4, y-4, x+18, y, html.EscapeString(c.name))
	}
	width := func(c curve) float64 { return legendMark + letterWidth*float64(len(c.name)) }
	height = svgHeight
	if d.keyBelow {
		x, y := marginLeft, svgHeight+4
		for _, c := range d.curves {
			if x+width(c) > svgWidth {
				x, y = marginLeft, y+legendLine
			}
			write(c, x, y)
			x += width(c)
		}
		return b.String(), y + legendLine/2
	}
	x := svgWidth - marginRight
	for _, c := range slices.Backward(d.curves) {
		if len(d.curves) > 1 {
			x -= width(c)
			write(c, x, 16)
		}
	}
	return b.String(), height
}

// above tells whether a value lies above a scale that ends at top.
func (d *chart) above(top float64) bool {
	if d.top > top {
		return true
	}
	for _, c := range d.curves {
		for _, p := range c.points {
			if p.y > top {
				return true
			}
		}
	}
	return false
}

// draw draws one curve, and a dot for each value, which says it, where there are few or where it has no neighbours.
func (c *curve) draw(b *strings.Builder, px, py func(float64) float64, axis string) {
	for rest := c.points; len(rest) > 0; {
		n := 0
		for n < len(rest) && !math.IsNaN(rest[n].y) {
			n++
		}
		run := rest[:n]
		rest = rest[min(n+1, len(rest)):]
		fmt.Fprintf(b, `<polyline class="%s" points="`, c.class)
		for _, p := range run {
			fmt.Fprintf(b, "%.1f,%.1f ", px(p.x), py(p.y))
		}
		b.WriteString(`"/>`)
		if len(c.points) > dotsUpTo && n > 1 {
			continue
		}
		for _, p := range run {
			if c.top > 0 && p.y >= c.top {
				continue
			}
			fmt.Fprintf(b, `<circle class="%s" cx="%.1f" cy="%.1f" r="2.2"><title>%s: %.4g at %.4g %s</title></circle>`,
				c.class, px(p.x), py(p.y), html.EscapeString(c.name), p.y, p.x, html.EscapeString(axis))
		}
	}
}

// niceStep is the least of 1, 2, 5, 10, ... times a power of ten that is not below x.
func niceStep(x float64) float64 {
	power := 1.0
	for power > x {
		power /= 10
	}
	for power*10 <= x {
		power *= 10
	}
	for _, f := range []float64{1, 2, 5} {
		if power*f >= x {
			return power * f
		}
	}
	return power * 10
}

// scaleLabel writes a label of a scale with as many decimals as its step needs.
func scaleLabel(x, step float64) string {
	decimals := 0
	for ; step < 0.999 && decimals < 4; step *= 10 {
		decimals++
	}
	return fmt.Sprintf("%.*f", decimals, x)
}

// pageStyle is that of all pages.
const pageStyle = page.Style

var ciPage = template.Must(template.New("page").Funcs(template.FuncMap{
	"style": func() template.CSS { return pageStyle },
	"name":  func(r row) string { return r.name }, "value": func(r row) string { return r.value },
	"kind": func(k kindReport) string { return k.name() },
	"each": func(k kindReport) string { return fmt.Sprintf("%.3f", k.MB/float64(max(k.Jobs, 1))) },
	"ms":   func(x float64) string { return fmt.Sprintf("%.1f", x) },
}).Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>packhorse-bench ci: {{.Title}}</title>
<style>
{{style}}</style></head><body>
<h1>{{.Title}}</h1><p>packhorse-bench ci &middot; {{.About}} &middot; {{.When}}</p>
<div class="charts">{{range .Charts}}{{.}}
{{end}}</div>
<div class="wide"><table>{{range .Rows}}<tr><th scope="row">{{name .}}</th><td>{{value .}}</td></tr>
{{end}}</table></div>
<div class="wide"><table><tr><th>kind of job</th><th class="n">jobs</th><th class="n">MB each</th><th class="n">p50 ms</th><th class="n">p95 ms</th><th class="n">p99 ms</th></tr>
{{range .Kinds}}<tr><td>{{kind .}}</td><td class="n">{{.Jobs}}</td><td class="n">{{each .}}</td><td class="n">{{ms .Job.P50}}</td><td class="n">{{ms .Job.P95}}</td><td class="n">{{ms .Job.P99}}</td></tr>
{{end}}</table></div>
</body></html>
`))
