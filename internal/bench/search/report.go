package search

import (
	"bytes"
	"fmt"
	"html/template"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/packhorse-git/packhorse/internal/bench/chart"
	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	"github.com/packhorse-git/packhorse/internal/bench/page"
)

// print writes the report as text or JSON, and the page with --html.
func (o *searchOptions) print(env loadgen.Env, url string, r *searchReport) error {
	if o.html != "" {
		if err := o.writeHTML(url, r); err != nil {
			return err
		}
	}
	if o.json {
		return loadgen.WriteJSON(env.Stdout, r)
	}
	fmt.Fprintf(env.Stdout, "%s\n%q, %s, %d results, %v at each rate%s\n\n", url, r.Query, r.API, r.Results, o.duration,
		o.resolved())
	if err := r.table(env.Stdout); err != nil {
		return err
	}
	if r.Share != nil {
		fmt.Fprintf(env.Stdout, "\nobject IDs took %.3f of the time of the requests\n", *r.Share)
	}
	if o.sustained {
		fmt.Fprintf(env.Stdout, "\nhighest sustained rate: %.1f/s", r.Sustained)
		if r.Peer != nil {
			fmt.Fprintf(env.Stdout, "; peer %.1f/s; ratio %.2f", r.Peer.Sustained, r.ToPeer)
		}
		fmt.Fprintln(env.Stdout)
	}
	return nil
}

func (o *searchOptions) resolved() string {
	if o.resolve == "" {
		return ""
	}
	return ", object IDs: " + o.resolve
}

func (r *searchReport) table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "QPS\tserver\trequests\tfailures\tmean ms\tp50\tp95\tp99\tmax\tMB\tlink p50\tp95\tp95 to peer\t")
	line := func(name string, m searchRate, ratio string) {
		fmt.Fprintf(t, "%g\t%s\t%d\t%d\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.1f\t%s\t%s\t%s\t\n", m.QPS, name, m.Requests,
			m.Failures, m.Mean, m.P50, m.P95, m.P99, m.Max,
			float64(m.Bytes)/1e6, chart.OrDash("%.3f", m.Link50), chart.OrDash("%.3f", m.Link95), ratio)
	}
	for i, m := range r.Rates {
		line("this", m, chart.OrDash("%.2f", m.ToPeer))
		if r.Peer != nil {
			line("peer", r.Peer.Rates[i], "")
		}
	}
	return t.Flush()
}

// writeHTML writes one self-contained page: the table, and the latency over time for each rate.
func (o *searchOptions) writeHTML(url string, r *searchReport) error {
	page := struct {
		URL, About, When string
		Report           *searchReport
		Charts           []template.HTML
	}{
		url, fmt.Sprintf("%q, %s, %d results, %v at each rate%s", r.Query, r.API, r.Results, o.duration, o.resolved()),
		time.Now().UTC().Format("2006-01-02 15:04 UTC"), r, nil,
	}
	for i, m := range r.Rates {
		c := chart.Chart{Title: fmt.Sprintf("%g requests a second", m.QPS), Unit: "ms",
			Curves: []chart.Curve{{Name: "this", Class: "a", Points: m.points}}}
		if r.Peer != nil {
			c.Curves = append(c.Curves, chart.Curve{Name: "peer", Class: "b", Points: r.Peer.Rates[i].points})
		}
		//nolint:gosec // made here of numbers and escaped text
		page.Charts = append(page.Charts, template.HTML(c.SVG(o.duration)))
	}
	var b bytes.Buffer
	if err := searchPage.Execute(&b, page); err != nil {
		return err
	}
	return os.WriteFile(o.html, b.Bytes(), 0o666)
}

var searchPage = template.Must(template.New("page").Funcs(template.FuncMap{
	"style": func() template.CSS { return template.CSS(page.Style) },
	"ms":    func(x float64) string { return fmt.Sprintf("%.2f", x) },
	"ratio": func(x *float64) string { return chart.OrDash("%.2f", x) },
	"peer":  func(r *searchReport, i int) *searchRate { return &r.Peer.Rates[i] },
}).Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>packhorse-bench search: {{.URL}}</title>
<style>
{{style}}</style></head><body>
<h1>{{.URL}}</h1><p>packhorse-bench search &middot; {{.About}} &middot; {{.When}}</p>
<div class="charts">{{range .Charts}}{{.}}
{{end}}</div>
<div class="wide"><table><tr><th class="n">QPS</th><th>server</th><th class="n">requests</th><th class="n">failures</th><th class="n">mean ms</th><th class="n">p50</th><th class="n">p95</th><th class="n">p99</th><th class="n">max</th><th class="n">p95 to peer</th></tr>
{{define "rate"}}<td class="n">{{.Requests}}</td><td class="n">{{.Failures}}</td><td class="n">{{ms .Mean}}</td><td class="n">{{ms .P50}}</td><td class="n">{{ms .P95}}</td><td class="n">{{ms .P99}}</td><td class="n">{{ms .Max}}</td>{{end}}{{range $i, $m := .Report.Rates}}<tr><td class="n">{{.QPS}}</td><td>this</td>{{template "rate" .}}<td class="n">{{ratio .ToPeer}}</td></tr>
{{if $.Report.Peer}}{{with peer $.Report $i}}<tr><td class="n">{{.QPS}}</td><td>peer</td>{{template "rate" .}}<td></td></tr>
{{end}}{{end}}{{end}}</table></div>
</body></html>
`))
