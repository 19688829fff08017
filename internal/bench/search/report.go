package search

import (
	"fmt"
	"io"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
)

// print writes the report as text or JSON.
func (o *searchOptions) print(env loadgen.Env, url string, r *searchReport) error {
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
	var rows [][]string
	line := func(name string, m searchRate, ratio string) {
		row := []string{fmt.Sprint(m.QPS), name, fmt.Sprint(m.Requests), fmt.Sprint(m.Failures)}
		for _, ms := range []float64{m.Mean, m.P50, m.P95, m.P99, m.Max} {
			row = append(row, fmt.Sprintf("%.2f", ms))
		}
		rows = append(rows, append(row, fmt.Sprintf("%.1f", float64(m.Bytes)/1e6), loadgen.OrDash("%.3f", m.Link50),
			loadgen.OrDash("%.3f", m.Link95), ratio))
	}
	for i, m := range r.Rates {
		line("this", m, loadgen.OrDash("%.2f", m.ToPeer))
		if r.Peer != nil {
			line("peer", r.Peer.Rates[i], "")
		}
	}
	return loadgen.WriteTable(w, []string{"QPS", "server", "requests", "failures", "mean ms", "p50", "p95", "p99", "max",
		"MB", "link p50", "p95", "p95 to peer"}, rows)
}
