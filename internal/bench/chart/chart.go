// Package chart draws curves as SVG and formats tables for HTML reports.
package chart

import (
	"cmp"
	"fmt"
	"html"
	"math"
	"slices"
	"strings"
	"time"
)

// Chart is one drawing: curves over the seconds of a run.
type Chart struct {
	Title, Unit string
	Curves      []Curve
	Top         float64 // of the scale; 0: the maximum of the values
	Axis        string  // the unit below; "": s
	KeyBelow    bool    // place the legend below the chart, for more curves than fit beside the title
}

type Curve struct {
	Name   string
	Class  string // of its colour
	Points []Point
	top    float64 // where the curve leaves the chart; 0: it does not
}

type Point struct{ X, Y float64 } // y is NaN in a gap of the curve

func (d *Chart) Add(curve int, x, y float64) {
	d.Curves[curve].Points = append(d.Curves[curve].Points, Point{x, y})
}

// SVG draws the chart.
func (d *Chart) SVG(elapsed time.Duration) string {
	top := d.Top
	for _, c := range d.Curves {
		for _, p := range c.Points {
			if p.Y > top { // false of a gap
				top = p.Y
			}
		}
	}
	step := NiceStep(max(top, smallestScale) / gridLines)
	for top = step; d.above(top); {
		top += step
	}
	seconds := max(elapsed.Seconds(), smallestScale)
	px := func(x float64) float64 { return marginLeft + min(x/seconds, 1)*plotWidth }
	py := func(y float64) float64 { return marginTop + (1-y/top)*plotHeight }

	var b strings.Builder
	label := html.EscapeString(d.Title + ", " + d.Unit)
	key, height := d.legend()
	fmt.Fprintf(&b, `<svg viewBox="0 0 %g %g" role="img" aria-label="%s"><text class="h" x="%g" y="16">%s <tspan class="u" dx="6">%s</tspan></text>`,
		svgWidth, height, label, marginLeft, html.EscapeString(d.Title), html.EscapeString(d.Unit))
	for y := 0.0; y <= top+step/2; y += step {
		fmt.Fprintf(&b, `<line class="g" x1="%g" x2="%g" y1="%.1f" y2="%.1f"/><text class="l" text-anchor="end" x="%g" y="%.1f">%s</text>`,
			marginLeft, svgWidth-marginRight, py(y), py(y), marginLeft-6, py(y)+4, ScaleLabel(y, step))
	}
	every, axis := NiceStep(seconds/timeLabels), cmp.Or(d.Axis, "s")
	for x := 0.0; x <= seconds+every/100; x += every {
		at, anchor := px(x), "middle"
		if at > svgWidth-2*marginRight {
			at, anchor = svgWidth-2, "end"
		}
		fmt.Fprintf(&b, `<text class="l" text-anchor="%s" x="%.1f" y="%g">%s %s</text>`, anchor, at,
			svgHeight-marginBottom+18, ScaleLabel(x, every), axis)
	}
	for _, c := range slices.Backward(d.Curves) {
		c.draw(&b, px, py, axis)
	}
	b.WriteString(key)
	b.WriteString(`</svg>`)
	return b.String()
}

// legend returns the names of the curves, if there are several, beside the title or in lines below. height is that of
// the drawing with the legend.
func (d *Chart) legend() (key string, height float64) {
	var b strings.Builder
	write := func(c Curve, x, y float64) {
		fmt.Fprintf(&b, `<line class="%s" x1="%g" x2="%g" y1="%g" y2="%g"/><text class="l" x="%g" y="%g">%s</text>`,
			c.Class, x, x+14, y-4, y-4, x+18, y, html.EscapeString(c.Name))
	}
	width := func(c Curve) float64 { return legendMark + letterWidth*float64(len(c.Name)) }
	height = svgHeight
	if d.KeyBelow {
		x, y := marginLeft, svgHeight+4
		for _, c := range d.Curves {
			if x+width(c) > svgWidth {
				x, y = marginLeft, y+legendLine
			}
			write(c, x, y)
			x += width(c)
		}
		return b.String(), y + legendLine/2
	}
	x := svgWidth - marginRight
	for _, c := range slices.Backward(d.Curves) {
		if len(d.Curves) > 1 {
			x -= width(c)
			write(c, x, 16)
		}
	}
	return b.String(), height
}

// above reports whether a value lies above a scale that ends at top.
func (d *Chart) above(top float64) bool {
	if d.Top > top {
		return true
	}
	for _, c := range d.Curves {
		for _, p := range c.Points {
			if p.Y > top {
				return true
			}
		}
	}
	return false
}

// draw draws one curve. It draws a dot with the value for each point if there are few points, or if a point has no
// neighbours.
func (c *Curve) draw(b *strings.Builder, px, py func(float64) float64, axis string) {
	for rest := c.Points; len(rest) > 0; {
		n := 0
		for n < len(rest) && !math.IsNaN(rest[n].Y) {
			n++
		}
		run := rest[:n]
		rest = rest[min(n+1, len(rest)):]
		fmt.Fprintf(b, `<polyline class="%s" points="`, c.Class)
		for _, p := range run {
			fmt.Fprintf(b, "%.1f,%.1f ", px(p.X), py(p.Y))
		}
		b.WriteString(`"/>`)
		if len(c.Points) > dotsUpTo && n > 1 {
			continue
		}
		for _, p := range run {
			if c.top > 0 && p.Y >= c.top {
				continue
			}
			fmt.Fprintf(b, `<circle class="%s" cx="%.1f" cy="%.1f" r="2.2"><title>%s: %.4g at %.4g %s</title></circle>`,
				c.Class, px(p.X), py(p.Y), html.EscapeString(c.Name), p.Y, p.X, html.EscapeString(axis))
		}
	}
}

// NiceStep returns the smallest round number that is at least x: 1, 2 or 5 times a power of ten.
func NiceStep(x float64) float64 {
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

// ScaleLabel formats a label of a scale with the decimals that its step needs.
func ScaleLabel(x, step float64) string {
	decimals := 0
	for ; step < 0.999 && decimals < 4; step *= 10 {
		decimals++
	}
	return fmt.Sprintf("%.*f", decimals, x)
}

// CutAt ends a curve where it leaves the chart at the top. A later part within the chart becomes another curve.
func (c *Curve) CutAt(top float64) {
	var points []Point
	for i, p := range c.Points {
		if i > 0 {
			last := c.Points[i-1]
			if (last.Y > top) != (p.Y > top) {
				points = append(points, Point{last.X + (p.X-last.X)*(top-last.Y)/(p.Y-last.Y), top})
			}
		}
		if p.Y > top {
			points = append(points, Point{p.X, math.NaN()})
		} else {
			points = append(points, p)
		}
	}
	c.Points, c.top = points, top
}

var Classes = []string{"a", "b", "c"}

// Table is a table whose first columns hold text and whose other columns hold numbers.
type Table struct {
	Head   []string
	Rows   [][]string
	Naming int
}

// Class is the CSS class of a column.
func (t Table) Class(column int) string {
	if column < t.Naming {
		return ""
	}
	return "n"
}

func OrDash(format string, v *float64) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf(format, *v)
}

const gridLines = 4

const legendLine = 18.0

// The legend: a piece of the curve, and its name.
const legendMark, letterWidth = 32.0, 6.5

const marginLeft, marginRight = 52.0, 12.0

const marginTop, marginBottom = 34.0, 34.0

const plotWidth, plotHeight = svgWidth - marginLeft - marginRight, svgHeight - marginTop - marginBottom

const smallestScale, dotsUpTo = 0.001, 40

const svgWidth, svgHeight = 560.0, 220.0

const timeLabels = 6

// Row is a line of a report.
type Row struct{ Name, Value string }

// MaxSlices is the maximum number of slices of a run in a drawing.
const MaxSlices = 60
