// Package search measures code search at fixed rates, and the highest rate that a server sustains.
package search

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
)

// options are the flags of `packhorse-bench search`.
type options struct {
	query     string
	rates     []string
	duration  time.Duration
	timeout   time.Duration
	rounds    int
	results   int
	peer      string
	sustained bool
	json      bool
}

// report is the output of `packhorse-bench search --json`.
type report struct {
	Query string `json:"query"`
	serverReport
	Peer *serverReport `json:"peer,omitempty"` // a zoekt-webserver
	// ToPeer is Sustained divided by the peer's.
	ToPeer float64 `json:"sustained_to_peer,omitempty"`
}

// serverReport is the result of one server.
type serverReport struct {
	Results int          `json:"results"` // of one response
	Rates   []rateReport `json:"rates"`
	// Sustained is the highest rate without failures and without a growing delay. 0: not measured.
	Sustained float64 `json:"sustained_qps,omitempty"`
}

// rateReport is the result at one rate.
type rateReport struct {
	QPS      float64              `json:"qps"`
	Requests int                  `json:"requests"`
	Failures int                  `json:"failures"`
	Latency  loadgen.LatencyStats `json:"latency_ms"`
	Bytes    int64                `json:"bytes"` // of all responses
	// Link is the time between a server and its search worker process, from the header Server-Timing.
	Link *loadgen.Percentiles `json:"link_ms,omitempty"`
	// ToPeer is p95 divided by the peer's at this rate. Like the other values it is that of the median round.
	ToPeer *float64 `json:"p95_to_peer,omitempty"`
}

func Command(env loadgen.Env) *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "search URL --query QUERY",
		Short: "Measure code search at fixed rates",
		Long: `Sends a query at each of the rates, regardless of the server (open loop). A slow server shows as latency, and not as
fewer requests. Every response must be complete and have as many results as the first one. Latency is the time from
when a request was due to the end of its response.

With --peer a zoekt-webserver gets the same requests, in turn with the server, and the p95 values are compared for each
rate. In a checkout, ".ci/searches BUNDLE" builds a zoekt-webserver and compares both with one index.

--sustained finds the highest rate without failures and without a growing delay.

link is the time in which the server sends the request to its search worker and receives the results. The server reports
it for responses up to 64 KiB.`,
		Example: `  packhorse-bench search http://127.0.0.1:8080 --query 'func main' --rates 1,5,50 --duration 60s
  packhorse-bench search http://127.0.0.1:8080 --query 'func main' --results 1000 --sustained --peer http://127.0.0.1:6070`,
		Args: cobra.ExactArgs(1),
	}
	f := cmd.Flags()
	f.StringVar(&o.query, "query", "", "what to search for (required)")
	f.StringSliceVar(&o.rates, "rates", []string{"1", "5", "50"}, "requests per second, one run for each")
	f.DurationVar(&o.duration, "duration", time.Minute, "duration of the run at each rate")
	f.DurationVar(&o.timeout, "timeout", time.Minute, "timeout of a response")
	f.IntVar(&o.rounds, "rounds", 1, "measure each rate this often, and show the round with the median p95")
	f.IntVar(&o.results, "results", 10, "number of results to request")
	f.StringVar(&o.peer, "peer", "", "URL of a zoekt-webserver to compare with")
	f.BoolVar(&o.sustained, "sustained", false, "also find the highest sustained rate")
	f.BoolVar(&o.json, "json", false, "print one JSON object")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		rates, err := o.check()
		if err != nil {
			return err
		}
		ctx := cmd.Context()
		return loadgen.Interrupted(ctx, o.run(ctx, env, args[0], rates))
	}
	return cmd
}

func (o *options) check() ([]float64, error) {
	switch {
	case o.query == "":
		return nil, errors.New("--query: missing")
	case o.duration <= 0 || o.timeout <= 0:
		return nil, errors.New("--duration and --timeout must be positive")
	case o.rounds < 1 || o.results < 1:
		return nil, errors.New("--rounds and --results must be at least 1")
	}
	var rates []float64
	for _, s := range o.rates {
		r, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
		if err != nil || !(r > 0) || r > loadgen.MaxRate {
			return nil, fmt.Errorf("--rates %q: want positive numbers, such as 1,5,50", s)
		}
		rates = append(rates, r)
	}
	return rates, nil
}

func (o *options) run(ctx context.Context, env loadgen.Env, url string, rates []float64) error {
	server, err := newSearched(ctx, url, ours, o)
	if err != nil {
		return err
	}
	all := []*searched{server}
	r := &report{Query: o.query, serverReport: serverReport{Results: server.results}}
	reports := []*serverReport{&r.serverReport}
	if o.peer != "" {
		peer, err := newSearched(ctx, o.peer, zoekt, o)
		if err != nil {
			return fmt.Errorf("the peer: %w", err)
		}
		r.Peer = &serverReport{Results: peer.results}
		all, reports = append(all, peer), append(reports, r.Peer)
	}
	fails := &loadgen.Failures{}
	stage := "measuring"
	defer loadgen.Progress(ctx, env.Stderr, func() string { return stage })()
	for _, rate := range rates {
		if err := o.atRate(ctx, all, reports, rate, fails); err != nil {
			return err
		}
	}
	for i, s := range all {
		if o.sustained {
			if reports[i].Sustained, err = s.sustained(ctx); err != nil {
				return err
			}
		}
	}
	if r.Peer != nil && o.sustained {
		r.ToPeer = loadgen.Round(r.Sustained/max(r.Peer.Sustained, 0.001), 3)
	}
	fails.Print(env.Stderr)
	if o.json {
		err = loadgen.WriteJSON(env.Stdout, r)
	} else {
		err = r.print(env.Stdout, server.target.String())
	}
	return errors.Join(err, fails.Err())
}

// atRate measures all servers in turn, round by round, and reports each server's round with the median p95.
func (o *options) atRate(ctx context.Context, all []*searched, reports []*serverReport, rate float64,
	fails *loadgen.Failures) error {
	rounds := make([][]rateReport, len(all))
	var ratios []float64
	for range o.rounds {
		for i, s := range all {
			m, _, err := s.drive(ctx, rate, o.duration, maxSearchConns, fails)
			if err != nil {
				return err
			}
			rounds[i] = append(rounds[i], m)
		}
		if n := len(rounds[0]) - 1; len(all) == 2 {
			ratios = append(ratios, rounds[0][n].Latency.P95/max(rounds[1][n].Latency.P95, 0.001))
		}
	}
	for i, m := range rounds {
		slices.SortFunc(m, func(a, b rateReport) int { return cmp.Compare(a.Latency.P95, b.Latency.P95) })
		median := m[(len(m)-1)/2]
		for _, other := range m {
			median.Failures = max(median.Failures, other.Failures)
		}
		if i == 0 && len(ratios) > 0 {
			median.ToPeer = new(loadgen.Round(loadgen.Median(ratios), 3))
		}
		reports[i].Rates = append(reports[i].Rates, median)
	}
	return nil
}

const (
	// probeTime is the duration of one try of --sustained. closedTime is that of the closed loop that gives the first
	// guess.
	probeTime  = 5 * time.Second
	closedTime = 2 * time.Second
	// closedClients is the number of clients of that closed loop.
	closedClients = 8
	// behind is the maximum growth of latencies at a sustained rate: the mean of the last quarter divided by that of the
	// second quarter. Latencies below noGrowth do not count as growth.
	behind, noGrowth = 2.0, 100 * time.Millisecond
	// step is the factor by which the rate is lowered until it is sustained.
	step = 0.95
)

// sustained starts slightly above the rate of a closed loop, and lowers the rate until it is sustained.
func (s *searched) sustained(ctx context.Context) (float64, error) {
	_, n, err := s.drive(ctx, 0, closedTime, closedClients, &loadgen.Failures{})
	if err != nil {
		return 0, err
	}
	for rate := 1.1 * float64(len(n.latencies)) / n.elapsed.Seconds(); rate > 0.1; rate *= step {
		fails := &loadgen.Failures{}
		_, m, err := s.drive(ctx, rate, probeTime, maxSearchConns, fails)
		if err != nil {
			return 0, err
		}
		if fails.Count() == 0 && !m.fellBehind() {
			return loadgen.Round(rate, 1), nil
		}
	}
	return 0, nil
}

// searched is a server that gets searches.
type searched struct {
	target  *loadgen.Target
	api     searchAPI
	request []byte
	timeout time.Duration
	results int // of the first response
}

// newSearched sends one request to a server.
func newSearched(ctx context.Context, base string, api searchAPI, o *options) (*searched, error) {
	t, err := loadgen.ParseTarget(base, false)
	if err != nil {
		return nil, err
	}
	s := &searched{target: t, api: api, timeout: o.timeout, request: api.request(t, o.query, o.results)}
	body, err := t.AskAll(ctx, s.request, s.timeout)
	if err == nil {
		s.results, err = api.parse(body)
	}
	switch n, bad := api.count(body); {
	case err != nil || bad != nil:
		return nil, fmt.Errorf("%v: %w", t, cmp.Or(err, bad))
	case s.results == 0:
		return nil, fmt.Errorf("%v finds nothing for %q", t, o.query)
	case n != s.results:
		return nil, fmt.Errorf("%v: a response with %d results has %s %d times", t, s.results, api.mark, n)
	}
	return s, nil
}

// measured is a run in the order of its requests.
type measured struct {
	latencies []time.Duration
	elapsed   time.Duration
}

// fellBehind reports whether latencies grew during the run.
func (m *measured) fellBehind() bool {
	if len(m.latencies) < 8 {
		return false
	}
	mean := func(list []time.Duration) (sum float64) {
		for _, d := range list {
			sum += float64(d)
		}
		return sum / float64(len(list))
	}
	quarter := len(m.latencies) / 4
	early, late := mean(m.latencies[quarter:2*quarter]), mean(m.latencies[3*quarter:])
	return late > behind*early && late-early > float64(noGrowth)
}

// drive sends requests at a rate and adds up the results. Rate 0 is a closed loop.
func (s *searched) drive(ctx context.Context, rate float64, duration time.Duration, conns int,
	fails *loadgen.Failures) (rateReport, *measured, error) {
	var mu sync.Mutex // guards link
	var link loadgen.Samples
	load := loadgen.Repeat(s.target, s.request, nil, s.timeout)
	load.Duration, load.Conns, load.Arrivals = duration, conns, loadgen.FixedRate(rate)
	load.Check = func(b *loadgen.Body) error {
		d, isTimed := linkTime(b.Header("Server-Timing"))
		body, err := b.All()
		if err != nil {
			return err
		}
		n, err := s.api.count(body)
		if err == nil && n != s.results {
			err = fmt.Errorf("a response with %d results, want %d as in the first", n, s.results)
		}
		if isTimed && err == nil {
			mu.Lock()
			defer mu.Unlock()
			link = append(link, d)
		}
		return err
	}
	out, err := load.Run(ctx)
	if err != nil {
		return rateReport{}, nil, err
	}
	fails.Join(out.Failures)
	m := &measured{elapsed: out.Elapsed}
	slices.SortFunc(out.Answers, func(a, b loadgen.Answer) int { return cmp.Compare(a.Due, b.Due) })
	for _, a := range out.Answers {
		m.latencies = append(m.latencies, a.Took)
	}
	r := rateReport{QPS: rate, Requests: len(out.Answers) + out.Failures.Count(), Failures: out.Failures.Count(),
		Bytes: out.Bytes, Latency: out.Latency().Stats()}
	if len(link) > 0 {
		r.Link = new(link.Summarize())
	}
	return r, m, nil
}

// linkTime parses the time between the server and its search worker from the header Server-Timing.
func linkTime(timing string) (time.Duration, bool) {
	for part := range strings.SplitSeq(timing, ",") {
		if text, ok := strings.CutPrefix(strings.TrimSpace(part), "link;dur="); ok {
			d, err := time.ParseDuration(text + "ms")
			return d, err == nil
		}
	}
	return 0, false
}

// maxSearchConns limits the connections of an open loop, so that a stalled server does not use up the ports of this
// machine.
const maxSearchConns = 5000

func (r *report) print(w io.Writer, url string) error {
	fmt.Fprintf(w, "%s\n%q, %d results\n\n", url, r.Query, r.Results)
	var rows [][]string
	line := func(name string, m rateReport) {
		row := []string{fmt.Sprint(m.QPS), name, fmt.Sprint(m.Requests), fmt.Sprint(m.Failures)}
		for _, ms := range []float64{m.Latency.Mean, m.Latency.P50, m.Latency.P95, m.Latency.P99, m.Latency.Max} {
			row = append(row, fmt.Sprintf("%.2f", ms))
		}
		link := []string{"-", "-"}
		if m.Link != nil {
			link = []string{fmt.Sprintf("%.3f", m.Link.P50), fmt.Sprintf("%.3f", m.Link.P95)}
		}
		rows = append(rows, append(row, fmt.Sprintf("%.1f", float64(m.Bytes)/1e6), link[0], link[1],
			loadgen.OrDash("%.2f", m.ToPeer)))
	}
	for i, m := range r.Rates {
		line("this", m)
		if r.Peer != nil {
			line("peer", r.Peer.Rates[i])
		}
	}
	err := loadgen.WriteTable(w, []string{"QPS", "server", "requests", "failures", "mean ms", "p50", "p95", "p99", "max",
		"MB", "link p50", "p95", "p95 to peer"}, rows)
	if r.Sustained > 0 {
		fmt.Fprintf(w, "\nhighest sustained rate: %.1f/s", r.Sustained)
		if r.Peer != nil {
			fmt.Fprintf(w, "; peer %.1f/s; ratio %.2f", r.Peer.Sustained, r.ToPeer)
		}
		fmt.Fprintln(w)
	}
	return err
}
