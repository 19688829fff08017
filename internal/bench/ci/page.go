package ci

import (
	"bytes"
	"fmt"
	"html/template"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/bench/chart"
	"github.com/packhorse-git/packhorse/internal/bench/page"
)

// writeHTML writes the report as one self-contained page.
func writeHTML(file, title string, o *ciOptions, r *ciReport, c *ciResult) error {
	var b bytes.Buffer
	page := struct {
		Title, About, When string
		Rows               []chart.Row
		Kinds              []kindReport
		Charts             []template.HTML
	}{
		Title: title, Rows: r.rows(), Kinds: r.Kinds, When: time.Now().UTC().Format("2006-01-02 15:04 UTC"),
		About: fmt.Sprintf("profile %s, %d machines, %d jobs every %v, %v", o.profile, o.runners, o.jobs, o.every,
			c.elapsed.Round(100*time.Millisecond)),
	}
	for i := range page.Rows {
		page.Rows[i].Name = strings.TrimSpace(page.Rows[i].Name)
	}
	for _, d := range charts(c) {
		//nolint:gosec // made here of numbers and escaped text
		page.Charts = append(page.Charts, template.HTML(d.SVG(c.elapsed)))
	}
	if err := ciPage.Execute(&b, page); err != nil {
		return err
	}
	return os.WriteFile(file, b.Bytes(), 0o666)
}

// charts are the curves over a run, without those that were not measured.
func charts(c *ciResult) []chart.Chart {
	jobs := chart.Chart{Title: "Jobs", Unit: "ended each second", Curves: []chart.Curve{{Name: "jobs", Class: "a"}}}
	took := chart.Chart{Title: "Job time", Unit: "ms", Curves: []chart.Curve{{Name: "p95", Class: "b"},
		{Name: "p50", Class: "a"}}}
	cpus := chart.Chart{Title: "Server CPU", Unit: "CPUs busy", Curves: []chart.Curve{{Name: "CPU", Class: "a"}}}
	saved := chart.Chart{Title: "Packs from the cache", Unit: "% hit or follow",
		Curves: []chart.Curve{{Name: "share", Class: "a"}}, Top: 100}
	for _, s := range curves(c) {
		x, gap := s.at.Seconds(), math.NaN()
		jobs.Add(0, x, s.jobsPerS)
		p50, p95 := gap, gap
		if s.jobsPerS > 0 {
			p50, p95 = s.p50, s.p95
		}
		took.Add(0, x, p95)
		took.Add(1, x, p50)
		cpus.Add(0, x, orElse(s.cpus, gap))
		saved.Add(0, x, orElse(s.saved, gap))
	}
	var list []chart.Chart
	for _, d := range []chart.Chart{jobs, took, cpus, saved} {
		if slices.ContainsFunc(d.Curves[0].Points, func(p chart.Point) bool { return !math.IsNaN(p.Y) }) {
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

var ciPage = template.Must(template.New("page").Funcs(template.FuncMap{
	"style": func() template.CSS { return template.CSS(page.Style) },
	"name":  func(r chart.Row) string { return r.Name }, "value": func(r chart.Row) string { return r.Value },
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
