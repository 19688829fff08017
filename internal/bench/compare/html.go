package compare

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/bench/page"
)

// WriteHTML writes the report as one self-contained page without scripts. Rows are routes, columns percentiles. Red is
// slower, blue faster, by the logarithm of the ratio, and grey means no verdict.
func (r *Report) WriteHTML(w io.Writer, now time.Time) error {
	var b bytes.Buffer
	if err := comparePage.Execute(&b, struct {
		*Report
		When string
	}{r, now.UTC().Format("2006-01-02 15:04 UTC")}); err != nil {
		return err
	}
	_, err := w.Write(b.Bytes())
	return err
}

// fullColour is the ratio, or its inverse, from which a cell has its full colour.
const fullColour = 2.0

// Class returns the CSS class of the cell.
func (c *Cell) Class() string {
	if c.Verdict == Slower || c.Verdict == Faster {
		return string(c.Verdict)
	}
	return "grey"
}

// Strength returns the strength of the cell's colour as CSS.
func (c *Cell) Strength() template.CSS {
	part := math.Abs(math.Log(float64(c.Ratio))) / math.Log(fullColour)
	if math.IsNaN(part) {
		part = 0
	}
	return template.CSS(fmt.Sprintf("--s:%.0f%%", 15+70*min(part, 1))) //nolint:gosec // a number
}

// Text returns the text of the cell.
func (c *Cell) Text() string {
	if c.Verdict == Few || c.Verdict == OneSided {
		return "–"
	}
	return percent(float64(c.Ratio))
}

// Lines returns the details that the page shows for the pointed cell.
func (c *Cell) Lines() []string {
	lines := []string{fmt.Sprintf("%s: %s, then %s", c.Of, duration(float64(c.A)), duration(float64(c.B)))}
	switch c.Verdict {
	case Few:
		return append(lines, c.tooFew())
	case OneSided:
		return append(lines, "only on one side")
	case NotAlike:
		return append(lines, "no verdict: the requests are not comparable")
	case Even:
		lines = append(lines, "no verdict")
	default:
		lines = append(lines, "B is "+string(c.Verdict))
	}
	between := func(i [2]float64) string { return percent(i[0]) + " to " + percent(i[1]) }
	return append(lines, between(c.RatioInterval)+" (all intervals together)", between(c.RatioAlone)+" (this one alone)",
		fmt.Sprintf("worth %s and %s independent requests", thousands(c.WorthA), thousands(c.WorthB)))
}

// gridStyle is the style sheet of the grid chart.
//
//go:embed grid.css
var gridStyle string

var comparePage = template.Must(template.New("page").Funcs(template.FuncMap{
	"style": func() template.CSS { return template.CSS(page.Style + gridStyle) },
	"n":     thousands[uint64], "lines": thousands[int], "ms": duration, "part": part,
	"files": func(s []string) string { return strings.Join(s, " ") },
	"side":  func(i int) string { return string(rune('A' + i)) },
	"of100": func(x float64) string { return fmt.Sprintf("%.4g %%", 100*x) },
	"bad":   func(in Input) int { return in.malformed() },
	"day":   func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") },
	"rate":  func(x float64) string { return fmt.Sprintf("%.3g", x) },
}).Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>packhorse-bench compare</title>
<style>
{{style}}</style></head><body>
<h1>Latency by {{.By}}: B against A</h1><p>packhorse-bench compare &middot; {{.When}}</p>
<div class="wide"><table><tr><th></th><th scope="col">log</th><th class="n">requests</th><th class="n">answered</th><th class="n">refused</th><th class="n">failed</th><th class="n">gone</th><th class="n">per second</th><th class="n">in flight</th></tr>
{{range $i, $s := .Sides}}<tr><th scope="row">{{side $i}}</th><td><code>{{.Name}}</code></td><td class="n">{{n .Requests}}</td><td class="n">{{n .Answered}}</td><td class="n">{{n .Refused}}</td><td class="n">{{n .Failed}}</td><td class="n">{{n .Gone}}</td><td class="n">{{rate .PerSecond}}</td><td class="n">{{rate .InFlight}}</td></tr>
{{end}}</table></div>
{{with .Notes}}<ul>{{range .}}<li>{{.}}</li>
{{end}}</ul>{{end}}
<p class="key"><span class="cell slower" style="background:color-mix(in srgb, var(--slow) 70%, var(--bg))">slower</span><span style="background:color-mix(in srgb, var(--fast) 70%, var(--bg))">faster</span><span style="background:var(--grey)">no verdict</span>
Point at a cell for its interval. All {{.Judged}} intervals together hold {{of100 .Confidence}} of the time, each {{of100 .Each}}.</p>
<div class="wide cards"><table class="grid"><tr><th scope="col">route</th><th class="n" scope="col">A</th><th class="n" scope="col">B</th><th scope="col">p50</th><th scope="col">p95</th><th scope="col">p99</th></tr>
{{with .SameMix}}{{template "row" .}}{{end}}{{range .Rows}}{{template "row" .}}{{end}}</table></div>
<div class="wide"><table><caption>All requests, including the effect of the mix</caption><tr><th></th><th class="n">A</th><th class="n">B</th><th class="n">change</th><th class="n">= routes</th><th class="n">+ mix</th></tr>
{{range .All}}<tr><th scope="row">{{.Of}}</th><td class="n">{{ms .A}}</td><td class="n">{{ms .B}}</td><td class="n">{{part .Change .A}}</td><td class="n">{{part .Within .A}}</td><td class="n">{{part .Mix .A}}</td></tr>
{{end}}</table></div>
<div class="wide"><table><caption>The logs</caption><tr><th scope="col">files</th><th scope="col">format</th><th class="n">lines</th><th class="n">malformed</th><th scope="col">from</th><th scope="col">to</th></tr>
{{range .Inputs}}<tr><td><code>{{files .Files}}</code></td><td>{{.Format}}</td><td class="n">{{lines .Lines}}</td><td class="n">{{lines (bad .)}}</td>{{if .First.IsZero}}<td></td><td></td>{{else}}<td>{{day .First}}</td><td>{{day .Last}}</td>{{end}}</tr>
{{if .Malformed}}<tr><td colspan="6">malformed: {{.Reasons}}</td></tr>
{{end}}{{range .Examples}}<tr><td colspan="6">line {{.Line}} of {{.File}}, {{.Reason}}: <code>{{.Text}}</code></td></tr>
{{end}}{{end}}</table></div>
</body></html>
{{define "row"}}<tr><th scope="row">{{.Route}}</th><td class="n">{{n .A.Compared}}</td><td class="n">{{n .B.Compared}}</td>{{range $c := .Cells}}<td class="cell {{.Class}}" tabindex="0" style="{{.Strength}}">{{.Text}}<span class="card">{{range .Lines}}<span>{{.}}</span>{{end}}</span></td>{{end}}</tr>
{{end}}`))
