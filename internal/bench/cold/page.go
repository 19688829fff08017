package cold

import (
	"bytes"
	"html/template"
	"slices"
	"time"

	"github.com/packhorse-git/packhorse/internal/bench/chart"
	"github.com/packhorse-git/packhorse/internal/bench/page"
)

// charts draw the CPU time of each shape by the number of pushed commits.
func (r *repository) charts() []template.HTML {
	var drawn []template.HTML
	for _, shape := range pushShapes {
		c := chart.Chart{Title: shape.name + " after a push", Unit: "CPU ms, by pushed commits", Axis: " ",
			Curves: []chart.Curve{{Name: "git", Class: "b"}, {Name: "server", Class: "a"}}}
		for _, row := range r.Rows {
			if row.Case == shape.name && row.Pushed > 0 {
				c.Add(0, float64(row.Pushed), *row.GitCPU)
				c.Add(1, float64(row.Pushed), *row.CPU)
			}
		}
		if len(c.Curves[0].Points) > 1 {
			most := time.Duration(slices.Max(pushCommits)) * time.Second
			//nolint:gosec // made here of numbers and escaped text
			drawn = append(drawn, template.HTML(c.SVG(most)))
		}
	}
	return drawn
}

// page is the report as one self-contained page.
func (r *report) page() ([]byte, error) {
	type part struct {
		Name   string
		Table  chart.Table
		Charts []template.HTML
	}
	content := struct {
		About, When string
		Parts       []part
	}{About: r.about(), When: time.Now().UTC().Format("2006-01-02 15:04 UTC")}
	for _, repo := range r.Repositories {
		p := part{Name: repo.Name, Table: chart.Table{Head: columns, Naming: 1}, Charts: repo.charts()}
		for _, row := range repo.Rows {
			p.Table.Rows = append(p.Table.Rows, row.values())
		}
		content.Parts = append(content.Parts, p)
	}
	var b bytes.Buffer
	err := coldPage.Execute(&b, content)
	return b.Bytes(), err
}

var coldPage = template.Must(template.New("page").Funcs(template.FuncMap{
	"style": func() template.CSS { return template.CSS(page.Style) },
}).Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>packhorse-bench cold</title>
<style>
{{style}}</style></head><body>
<h1>Packs that are in no cache</h1><p>packhorse-bench cold &middot; {{.About}} &middot; {{.When}}</p>
{{range .Parts}}<div class="wide"><table>{{$t := .Table}}<caption>{{.Name}}</caption><tr>{{range $i, $c := .Table.Head}}<th scope="col" class="{{$t.Class $i}}">{{$c}}</th>{{end}}</tr>
{{range .Table.Rows}}<tr>{{range $i, $v := .}}<td class="{{$t.Class $i}}">{{$v}}</td>{{end}}</tr>
{{end}}</table></div>
<div class="charts">{{range .Charts}}{{.}}
{{end}}</div>
{{end}}</body></html>
`))
