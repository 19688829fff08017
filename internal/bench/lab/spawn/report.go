package spawn

import (
	"bytes"
	"errors"
	"fmt"
	"html/template"
	"os"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/packhorse-git/packhorse/internal/bench/chart"
	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	"github.com/packhorse-git/packhorse/internal/bench/page"
)

var spawnColumns = []string{"method", "heap", "goroutines", "p50 us", "p99 us", "max us", "neighbour p99 us", "starts",
	"gave up", "errors"}

// spawnNamed is the number of columns that identify a row.
const spawnNamed = 3

func (r spawnRow) cells() []string {
	goroutines := "alone"
	if r.Goroutines > 1 {
		goroutines = strconv.Itoa(r.Goroutines)
	}
	whole := func(x float64) string { return strconv.FormatFloat(x, 'f', 0, 64) }
	return []string{r.Method, gib(r.HeapBytes), goroutines, whole(r.P50), whole(r.P99), whole(r.Max),
		whole(r.NeighbourP99),
		strconv.Itoa(r.Starts), strconv.Itoa(r.GaveUp), strconv.Itoa(r.Errors)}
}

func (r spawnRatio) String() string {
	with := "alone"
	if r.Goroutines > 1 {
		with = fmt.Sprintf("%d at once", r.Goroutines)
	}
	return fmt.Sprintf("%s, %s: p99 with a heap of %s against the smallest one: %.2f", r.Method, with, gib(r.HeapBytes),
		r.P99)
}

// report writes the result. Its error has the number of children that failed.
func (o *spawnOptions) report(env loadgen.Env, r *spawnReport) (err error) {
	if o.html != "" {
		if err := o.writeHTML(r); err != nil {
			return err
		}
	}
	if o.json {
		err = loadgen.WriteJSON(env.Stdout, r)
	} else {
		fmt.Fprintf(env.Stdout, "starting \"git version\", %v at %g/s alone%s; medians of %d runs\n\n", o.duration, o.rate,
			o.asking(), r.Runs)
		w := tabwriter.NewWriter(env.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
		line := func(cells []string) {
			for _, c := range cells {
				fmt.Fprintf(w, "%s\t", c)
			}
			fmt.Fprintln(w)
		}
		line(spawnColumns)
		for _, row := range r.Rows {
			line(row.cells())
		}
		err = w.Flush()
		fmt.Fprintln(env.Stdout)
		for _, ratio := range r.Ratios {
			fmt.Fprintln(env.Stdout, ratio)
		}
	}
	failed := 0
	for _, row := range r.Rows {
		failed += row.Errors
	}
	if failed > 0 {
		err = errors.Join(err, fmt.Errorf("%d children could not be started, or failed", failed))
	}
	return err
}

func (o *spawnOptions) asking() string {
	if o.goroutines == 0 {
		return ""
	}
	return fmt.Sprintf(", then %d goroutines at once", o.goroutines)
}

// chart draws a figure over the size of the heap, with one curve for each method. The horizontal axis of charts is
// time, so that a GiB is a second.
func (r *spawnReport) chart(title string, methods []string, goroutines int, figure func(spawnRow) float64) chart.Chart {
	c := chart.Chart{Title: title, Unit: "ms by GiB"}
	for i, method := range methods {
		v := chart.Curve{Name: method, Class: chart.Classes[i]}
		for _, row := range r.Rows {
			if row.Method == method && row.Goroutines == goroutines {
				v.Points = append(v.Points, chart.Point{X: float64(row.HeapBytes) / (1 << 30), Y: figure(row) / 1000})
			}
		}
		if len(v.Points) > 0 {
			c.Curves = append(c.Curves, v)
		}
	}
	return c
}

// writeHTML writes one self-contained page.
func (o *spawnOptions) writeHTML(r *spawnReport) error {
	page := struct {
		About, When string
		Table       chart.Table
		Ratios      []spawnRatio
		Charts      []template.HTML
	}{
		About: fmt.Sprintf("%v at %g/s alone%s; medians of %d runs", o.duration, o.rate, o.asking(), r.Runs),
		When:  time.Now().UTC().Format("2006-01-02 15:04 UTC"), Table: chart.Table{Head: spawnColumns, Naming: spawnNamed},
		Ratios: r.Ratios,
	}
	for _, row := range r.Rows {
		page.Table.Rows = append(page.Table.Rows, row.cells())
	}
	asking := []int{1}
	if o.goroutines > 1 {
		asking = append(asking, o.goroutines)
	}
	for _, n := range asking {
		with := "alone"
		if n > 1 {
			with = fmt.Sprintf("%d at once", n)
		}
		for _, c := range []chart.Chart{
			r.chart("Start, "+with+": p50", o.methods, n, func(r spawnRow) float64 { return r.P50 }),
			r.chart("Start, "+with+": p99", o.methods, n, func(r spawnRow) float64 { return r.P99 }),
			r.chart("Start, "+with+": p99, "+o.methods[0]+" only", o.methods[:1], n, func(r spawnRow) float64 { return r.P99 }),
			r.chart("Other request, "+with+": p99", o.methods, n, func(r spawnRow) float64 { return r.NeighbourP99 }),
		} {
			c.Axis = "G"
			//nolint:gosec // made here of numbers and escaped text
			page.Charts = append(page.Charts, template.HTML(c.SVG(time.Duration(float64(slices.Max(o.heaps))/(1<<30)*1e9))))
		}
	}
	var b bytes.Buffer
	if err := spawnPage.Execute(&b, page); err != nil {
		return err
	}
	return os.WriteFile(o.html, b.Bytes(), 0o666)
}

var spawnPage = template.Must(template.New("page").Funcs(template.FuncMap{
	"style": func() template.CSS { return template.CSS(page.Style) },
}).Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>packhorse-bench lab spawn</title>
<style>
{{style}}</style></head><body>
<h1>The cost of starting git, by the heap of the starting process</h1><p>packhorse-bench lab spawn &middot; {{.About}} &middot; {{.When}}</p>
<div class="charts">{{range .Charts}}{{.}}
{{end}}</div>
<div class="wide"><table><tr>{{range $i, $c := .Table.Head}}<th scope="col" class="{{$.Table.Class $i}}">{{$c}}</th>{{end}}</tr>
{{range .Table.Rows}}<tr>{{range $i, $v := .}}<td class="{{$.Table.Class $i}}">{{$v}}</td>{{end}}</tr>
{{end}}</table></div>
{{range .Ratios}}<p>{{.}}</p>
{{end}}<p>spawn: as the server starts git (the child borrows the parent's memory). fork: plain fork(2), which copies the page tables. A start counts from the call until
the child runs git, or until the caller gave up. The other request, over HTTP to the same process, counts from the time when it was due.</p>
</body></html>
`))
