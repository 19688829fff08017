package bench

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"strconv"
	"strings"
	"testing"
	"text/template"
)

var update = flag.Bool("update", false, "write the generated plots")

// plots is a file with plots of bars, as bench/plots.json has it.
type plots struct {
	Name, Title string
	Plots       []*plot
}

type plot struct {
	Title, Unit string
	Bars        [][2]string // name and number
}

// Y returns the place of plot i.
func (p plots) Y(i int) int {
	y := 0
	for _, plot := range p.Plots[:i] {
		y += 44 + 24*len(plot.Bars)
	}
	return y
}

func (p plots) Height() int { return p.Y(len(p.Plots)) + 12 }

// Width returns the width of bar i.
func (p *plot) Width(i int) (float64, error) {
	most, own := 0.0, 0.0
	for k, bar := range p.Bars {
		v, err := strconv.ParseFloat(strings.ReplaceAll(bar[1], ",", ""), 64)
		if err != nil {
			return 0, err
		}
		if most = max(most, v); k == i {
			own = v
		}
	}
	return max(1.5, 190*own/most), nil
}

// The colours are those of the server's pages. An image follows the scheme of the system, not that of the page around
// it, and therefore has a background.
var drawing = template.Must(template.New("").Funcs(template.FuncMap{
	"own": func(name string) bool { return strings.HasPrefix(name, "Packhorse") },
	"row": func(i int) int { return 38 + 24*i },
}).Parse(`<svg xmlns="http://www.w3.org/2000/svg" width="440" height="{{.Height}}" viewBox="0 0 440 {{.Height}}">
<title>{{.Title}}</title>
<style>
text { font: 12px system-ui, "Segoe UI", Roboto, "Liberation Sans", Arial, sans-serif; fill: #24211d; }
.title { font-weight: 600; }
.name { fill: #6d675e; text-anchor: end; }
.back { fill: #fff; }
.bar { fill: #b9b1a5; }
.own { fill: #8a4b14; }
@media (prefers-color-scheme: dark) {
text { fill: #ebe6dd; }
.name { fill: #aaa294; }
.back { fill: #1e1c19; }
.bar { fill: #6b645a; }
.own { fill: #eba662; }
}
</style>
<rect class="back" width="440" height="{{.Height}}" rx="10"/>
{{range $i, $plot := .Plots}}<g transform="translate(0 {{$.Y $i}})"><text class="title" x="18" y="28">{{.Title}}</text>
{{range $k, $bar := .Bars}}<text class="name" x="136" y="{{row $k | printf "%d"}}" dy="14">{{index . 0}}</text>` +
	`<rect class="bar{{if own (index . 0)}} own{{end}}" x="144" y="{{row $k}}" width="{{$plot.Width $k | printf "%.1f"}}" height="18" rx="2"/>` +
	`<text x="{{$plot.Width $k | printf "%.1f"}}" dx="150" y="{{row $k}}" dy="14">{{index . 1}}{{$plot.Unit}}</text>
{{end}}</g>
{{end}}</svg>
`))

// TestDocsPlots holds the plots in docs/images to the figures in bench/plots.json, and these to the page.
func TestDocsPlots(t *testing.T) {
	text, err := os.ReadFile("../../bench/plots.json")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/reference/benchmarks.md")
	if err != nil {
		t.Fatal(err)
	}
	var files []plots
	if err := json.Unmarshal(text, &files); err != nil {
		t.Fatal(err)
	}
	for _, p := range files {
		for _, plot := range p.Plots {
			for _, bar := range plot.Bars {
				if !bytes.Contains(page, []byte(" "+bar[1])) {
					t.Errorf("docs/reference/benchmarks.md does not have the figure %s of %s in bench/plots.json", bar[1], bar[0])
				}
			}
		}
		var want bytes.Buffer
		if err := drawing.Execute(&want, p); err != nil {
			t.Fatal(err)
		}
		name := "../../docs/images/benchmarks-" + p.Name + ".svg"
		if *update {
			if err := os.WriteFile(name, want.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		} else if got, err := os.ReadFile(name); err != nil || !bytes.Equal(got, want.Bytes()) {
			t.Errorf("%s is not drawn from bench/plots.json (%v); run \"make docs\"", name, err)
		}
	}
}
