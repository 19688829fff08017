package status

import (
	"cmp"
	"fmt"
	"html"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"

	"github.com/packhorse-git/packhorse/internal/gateway/web/page"
)

const (
	maxPoints = 120 // of a line
	maxLines  = 6   // the colours that lines have; others are summed
	tableRows = 12

	// Sizes of a plot in its own units, which are about pixels.
	width, height       = 360, 150
	left, right         = 58, 8 // margins
	above, below        = 8, 20
	plotWidth, plotHigh = width - left - right, height - above - below
)

// drawing is a plot with its data.
type drawing struct {
	*plot
	number int
	times  []time.Time
	chosen []int // indexes of the samples of times
	lines  []line
}

// line is a line of a plot. Values that are not known are NaN.
type line struct {
	name   string
	values []float64 // by time
	total  float64   // of a counter, since the start of the process
}

// newDrawing returns a drawing without lines for samples. It has at most maxPoints of them, with the last.
func newDrawing(p *plot, number int, list []sample) *drawing {
	d := &drawing{plot: p, number: number}
	step := (len(list) + maxPoints - 1) / maxPoints
	for i := (len(list) - 1) % step; i < len(list); i += step {
		d.chosen, d.times = append(d.chosen, i), append(d.times, list[i].at)
	}
	return d
}

// line returns the line of the series i. A point of a rate is the mean since the point before, a point of a gauge the
// maximum.
func (d *drawing) line(name string, list []sample, i int) line {
	l := line{name: name, values: make([]float64, len(d.chosen))}
	for k, at := range d.chosen {
		now := list[at].value(i, d.isRate)
		switch {
		case d.isRate && k > 0:
			before := &list[d.chosen[k-1]]
			l.values[k] = max(0, now-before.value(i, true)) / list[at].at.Sub(before.at).Seconds()
		case k > 0 && at < len(list)-1:
			for j := d.chosen[k-1] + 1; j < at; j++ {
				if v := list[j].value(i, false); !(v <= now) {
					now = v
				}
			}
			l.values[k] = now
		default:
			l.values[k] = now
		}
		l.total = now
	}
	if d.isRate {
		l.values[0] = math.NaN()
		if len(l.values) > 1 {
			l.values[0] = l.values[1]
		}
	}
	return l
}

// sort sorts lines by size, and sums the smallest if there are too many. It leaves out those that are always 0.
func (d *drawing) sort() {
	isZero := func(l line) bool {
		return l.total == 0 && !slices.ContainsFunc(l.values, func(v float64) bool { return v > 0 })
	}
	if slices.ContainsFunc(d.lines, func(l line) bool { return !isZero(l) }) {
		d.lines = slices.DeleteFunc(d.lines, isZero)
	}
	slices.SortFunc(d.lines, func(a, b line) int {
		return cmp.Or(cmp.Compare(b.total, a.total), cmp.Compare(a.name, b.name))
	})
	if len(d.lines) <= maxLines {
		return
	}
	rest := &d.lines[maxLines-1]
	for _, l := range d.lines[maxLines:] {
		rest.total += l.total
		for k, v := range l.values {
			if math.IsNaN(rest.values[k]) {
				rest.values[k] = v
			} else if !math.IsNaN(v) {
				rest.values[k] += v
			}
		}
	}
	rest.name, d.lines = "others", d.lines[:maxLines]
}

// top returns the end of the axis of values.
func (d *drawing) top() float64 {
	most := 0.0
	for _, l := range d.lines {
		for _, v := range l.values {
			if v > most {
				most = v
			}
		}
	}
	base, scale := 10.0, 1.0
	switch d.unit {
	case bytes:
		base = 1024
	case seconds:
		base, scale = 60, 60
	}
	for most > scale*base {
		scale *= base
	}
	for d.unit == plain && most > 0 && most < scale && scale > 1e-6 {
		scale /= 10
	}
	for _, step := range []float64{1, 2, 5, 10, 20, 50, 100, 200, 500} {
		if most <= step*scale {
			return step * scale
		}
	}
	return 1024 * scale
}

// text returns a value with its unit.
func (d *drawing) text(v float64) string {
	switch {
	case math.IsNaN(v):
		return "-"
	case d.unit == bytes:
		return humanize.IBytes(uint64(max(0, v)))
	case d.unit == seconds:
		return time.Duration(v * float64(time.Second)).Round(time.Second).String()
	case v >= 1000:
		return strings.TrimSpace(humanize.SIWithDigits(v, 1, ""))
	}
	return fmt.Sprintf("%.3g", v)
}

// x and y return the place of a point.
func (d *drawing) x(t time.Time) float64 {
	first, last := d.times[0], d.times[len(d.times)-1]
	return left + plotWidth*t.Sub(first).Seconds()/max(1e-3, last.Sub(first).Seconds())
}

func (d *drawing) y(v, top float64) float64 { return above + plotHigh*(1-v/top) }

// now returns the last value of a line.
func (l *line) now() float64 { return l.values[len(l.values)-1] }

// label returns the name of a line.
func (d *drawing) label(l *line) string { return cmp.Or(l.name, d.what) }

// summary describes the drawing for those who do not see it.
func (d *drawing) summary() string {
	var parts []string
	for i := range d.lines {
		parts = append(parts, d.label(&d.lines[i])+" "+d.text(d.lines[i].now()))
	}
	return fmt.Sprintf("%s from %s to %s UTC. Last values: %s.", d.what, clock(d.times[0]),
		clock(d.times[len(d.times)-1]), strings.Join(parts, ", "))
}

func clock(t time.Time) string { return t.UTC().Format(time.TimeOnly) }

// svg returns the drawing without its numbers.
func (d *drawing) svg() g.Node {
	var b strings.Builder
	fmt.Fprintf(&b, `<svg class="plot" role="img" viewBox="0 0 %d %d" aria-labelledby="t%d d%[3]d">`+
		`<title id="t%[3]d">%s</title><desc id="d%[3]d">%s</desc>`, width, height, d.number, html.EscapeString(d.title),
		html.EscapeString(page.Visible(d.summary())))
	top := d.top()
	for _, v := range []float64{0, top / 2, top} {
		fmt.Fprintf(&b, `<path class="axis" d="M%d %.1fH%d"/><text x="%d" y="%.1f" text-anchor="end">%s</text>`, left,
			d.y(v, top), width-right, left-5, d.y(v, top)+3.5, d.text(v))
	}
	first, last := d.times[0], d.times[len(d.times)-1]
	layout := "15:04"
	if last.Sub(first) < 10*time.Minute {
		layout = time.TimeOnly
	}
	for i, anchor := range []string{"start", "middle", "end"} {
		t := first.Add(last.Sub(first) * time.Duration(i) / 2)
		text := t.UTC().Format(layout)
		if i == 2 {
			text += " UTC"
		}
		fmt.Fprintf(&b, `<text x="%.1f" y="%d" text-anchor="%s">%s</text>`, d.x(t), height-5, anchor, text)
	}
	for i, l := range slices.Backward(d.lines) { // the largest is in front
		fmt.Fprintf(&b, `<path class="l%d" d="%s"/>`, i, d.path(&l, top))
	}
	b.WriteString("</svg>")
	return g.Raw(b.String())
}

// path returns the commands that draw a line, with gaps where it is not known.
func (d *drawing) path(l *line, top float64) string {
	var b strings.Builder
	command := "M"
	for i, v := range l.values {
		if math.IsNaN(v) {
			command = "M"
			continue
		}
		fmt.Fprintf(&b, "%s%.1f %.1f", command, d.x(d.times[i]), d.y(v, top))
		command = "L"
	}
	return b.String()
}

// figure returns the drawing with its numbers.
func (d *drawing) figure() g.Node {
	if len(d.times) < 2 {
		return h.Figure(h.FigCaption(g.Text(d.title)),
			h.P(h.Class("about"), g.Text("The first values come in ten seconds.")))
	}
	return h.Figure(h.FigCaption(g.Text(d.title), g.Text(" "), h.Small(g.Text(d.what))), d.svg(),
		h.Table(h.Class("key"), h.THead(h.Class("hide"), h.Tr(h.Th(g.Text("Line")), h.Th(g.Text("Now")),
			g.If(d.isRate, h.Th(g.Text("Since the start"))))),
			h.TBody(g.Map(d.lines, func(l line) g.Node { return d.keyRow(&l) }))),
		h.Details(h.Summary(g.Text("Numbers")), wide(d.title+": numbers", h.Table(h.THead(h.Tr(h.Th(g.Text("UTC")),
			g.Map(d.lines, func(l line) g.Node { return h.Th(h.Scope("col"), page.Text(d.label(&l))) }))),
			h.TBody(d.rows())))))
}

// keyRow returns the row of a line in the key of the plot. Colours are given by the order.
func (d *drawing) keyRow(l *line) g.Node {
	i := slices.IndexFunc(d.lines, func(one line) bool { return one.name == l.name })
	total := g.Node(nil)
	if d.isRate {
		total = h.Td(g.Text(d.text(l.total) + d.of + " in all"))
	}
	return h.Tr(h.Th(h.Scope("row"), g.Rawf(`<svg class="plot" width="24" height="8" aria-hidden="true">`+
		`<path class="l%d" d="M0 4H24"/></svg> `, i), page.Text(d.label(l))), h.Td(g.Text(d.text(l.now()))), total)
}

// rows returns rows with the values at some times, the newest first.
func (d *drawing) rows() (rows g.Group) {
	step := (len(d.times) + tableRows - 1) / tableRows
	for i := len(d.times) - 1; i >= 0; i -= step {
		row := g.Group{h.Th(h.Scope("row"), g.Text(clock(d.times[i])))}
		for _, l := range d.lines {
			row = append(row, h.Td(g.Text(d.text(l.values[i]))))
		}
		rows = append(rows, h.Tr(row))
	}
	return rows
}
