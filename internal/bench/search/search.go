// Package search measures code search at fixed rates, and the highest rate that a server sustains.
package search

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
)

// searchOptions are the flags of `packhorse-bench search`.
type searchOptions struct {
	query     string
	rates     string
	duration  time.Duration
	timeout   time.Duration
	rounds    int
	api       string
	results   int
	peer      string
	sustained bool
	resolveOptions
	json bool
}

// searchReport is the output of `packhorse-bench search --json`.
type searchReport struct {
	Query   string       `json:"query"`
	API     string       `json:"api"`
	Results int          `json:"results"` // of one response
	Resolve string       `json:"resolve"`
	Rates   []searchRate `json:"rates"`
	Peer    *searchPeer  `json:"peer,omitempty"`
	// Sustained is the highest rate without failures and without a growing delay. 0: not measured.
	Sustained float64 `json:"sustained_qps,omitempty"`
	// ToPeer is Sustained divided by the peer's.
	ToPeer float64 `json:"sustained_to_peer,omitempty"`
	// Share is the share of finding object IDs in a request's time, at the lowest rate. Only with --resolve.
	Share *float64 `json:"resolve_share,omitempty"`
}

// searchPeer has the results of the zoekt-webserver that was measured beside a server.
type searchPeer struct {
	Results   int          `json:"results"`
	Rates     []searchRate `json:"rates"`
	Sustained float64      `json:"sustained_qps,omitempty"`
}

// searchRate is the result at one rate.
type searchRate struct {
	QPS      float64 `json:"qps"`
	Requests int     `json:"requests"`
	Failures int     `json:"failures"`
	Mean     float64 `json:"mean_ms"`
	P50      float64 `json:"p50_ms"`
	P95      float64 `json:"p95_ms"`
	P99      float64 `json:"p99_ms"`
	Max      float64 `json:"max_ms"`
	Bytes    int64   `json:"bytes"` // of all responses
	// Link50 and Link95 are percentiles of the time between a server and its search worker process, from the header
	// Server-Timing.
	Link50 *float64 `json:"link_p50_ms,omitempty"`
	Link95 *float64 `json:"link_p95_ms,omitempty"`
	// ToPeer is p95 divided by the peer's at this rate. Like the other values it is that of the median round.
	ToPeer *float64 `json:"p95_to_peer,omitempty"`
}

func Command(env loadgen.Env) *cobra.Command {
	var o searchOptions
	cmd := &cobra.Command{
		Use:   "search URL --query QUERY",
		Short: "Measure code search at fixed rates",
		Long: `Sends a query at each of the rates, regardless of the server (open loop). A slow server shows as latency, and not as
fewer requests. Every response must be complete and have as many results as the first one. Latency is the time from
when a request was due to the end of its response.

  --api json      GET /-/api/v1/search
  --api stream    GET /.api/search/stream, chunk matches
  --api graphql   POST /.api/graphql, the query of src search
  --api zoekt     POST /api/search of zoekt-webserver

With --peer a zoekt-webserver gets the same requests, in turn with the server, and the p95 values are compared for each
rate. In a checkout, ".ci/searches BUNDLE" builds a zoekt-webserver and compares both with one index.

--sustained finds the highest rate without failures and without a growing delay.

--resolve shows the cost of finding the object ID of each result. A proxy in this process does for each result:

  process    the work of a search front end with a Git server: git symbolic-ref HEAD, the index's list of repositories
             over HTTP, git rev-parse
  redis      one GET from --redis
  memory     one look-up in a map
  none       nothing, because the server's results have the indexed commit

resolve_share is the share of this in a request's time.

link is the time in which the server sends the request to its search worker and receives the results. The server reports
it for json and responses up to 64 KiB.`,
		Example: `  packhorse-bench search http://127.0.0.1:8080 --query 'func main' --rates 1,5,50 --duration 60s
  packhorse-bench search http://127.0.0.1:8080 --query 'func main' --results 1000 --sustained --peer http://127.0.0.1:6070
  packhorse-bench search http://127.0.0.1:8080 --query 'func main' --rates 1,5 --resolve process --root /srv/git`,
		Args: cobra.ExactArgs(1),
	}
	f := cmd.Flags()
	f.StringVar(&o.query, "query", "", "what to search for (required)")
	f.StringVar(&o.rates, "rates", "1,5,50", "requests per second, one run for each")
	f.DurationVar(&o.duration, "duration", time.Minute, "duration of the run at each rate")
	f.DurationVar(&o.timeout, "timeout", time.Minute, "timeout of a response")
	f.IntVar(&o.rounds, "rounds", 1, "measure each rate this often, and show the round with the median p95")
	f.StringVar(&o.api, "api", "json", "json, stream, graphql or zoekt")
	f.IntVar(&o.results, "results", 10, "number of results to request")
	f.StringVar(&o.peer, "peer", "", "URL of a zoekt-webserver to compare with")
	f.BoolVar(&o.sustained, "sustained", false, "also find the highest sustained rate")
	f.BoolVar(&o.json, "json", false, "print one JSON object")
	o.resolveOptions.flags(f)
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

func (o *searchOptions) check() ([]float64, error) {
	switch {
	case o.query == "":
		return nil, errors.New("--query: missing")
	case o.duration <= 0 || o.timeout <= 0:
		return nil, errors.New("--duration and --timeout must be positive")
	case o.rounds < 1 || o.results < 1:
		return nil, errors.New("--rounds and --results must be at least 1")
	}
	if _, ok := searchAPIs[o.api]; !ok {
		return nil, fmt.Errorf("--api %q: want json, stream, graphql or zoekt", o.api)
	}
	var rates []float64
	for s := range strings.SplitSeq(o.rates, ",") {
		r, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
		if err != nil || !(r > 0) || r > loadgen.MaxRate {
			return nil, fmt.Errorf("--rates %q: want positive numbers, such as 1,5,50", o.rates)
		}
		rates = append(rates, r)
	}
	return rates, o.resolveOptions.check()
}

func (o *searchOptions) run(ctx context.Context, env loadgen.Env, url string, rates []float64) (err error) {
	server, err := newSearched(ctx, url, searchAPIs[o.api], o)
	if err != nil {
		return err
	}
	r := &searchReport{Query: o.query, API: o.api, Results: server.results, Resolve: o.resolve}
	var world *front
	if o.resolve != "" {
		old, err := o.begin(ctx, server)
		if err != nil {
			return err
		}
		defer old.close()
		server = old.searched
		world = old
	}
	all := []*searched{server}
	if o.peer != "" {
		peer, err := newSearched(ctx, o.peer, searchAPIs["zoekt"], o)
		if err != nil {
			return fmt.Errorf("the peer: %w", err)
		}
		all = append(all, peer)
		r.Peer = &searchPeer{Results: peer.results}
	}
	fails := &loadgen.Failures{}
	for _, rate := range rates {
		stop := loadgen.Progress(ctx, env.Stderr,
			func() string { return fmt.Sprintf("measuring at %g requests a second", rate) })
		got, err := o.atRate(ctx, all, rate, fails)
		stop()
		if err != nil {
			return err
		}
		r.Rates = append(r.Rates, got[0])
		if r.Peer != nil {
			r.Peer.Rates = append(r.Peer.Rates, got[1])
		}
	}
	if world != nil {
		r.Share = world.share()
	}
	if o.sustained {
		if err := o.sustain(ctx, env, all, r); err != nil {
			return err
		}
	}
	fails.Print(env.Stderr)
	if err := o.print(env, server.String(), r); err != nil {
		return err
	}
	return fails.Err()
}

// atRate measures all servers in turn, round by round, and returns each server's round with the median p95.
func (o *searchOptions) atRate(ctx context.Context, all []*searched, rate float64,
	fails *loadgen.Failures) ([]searchRate, error) {
	rounds := make([][]searchRate, len(all))
	var ratios []float64
	for range o.rounds {
		for i, s := range all {
			m, err := s.attack(ctx, rate, o.duration, fails)
			if err != nil {
				return nil, err
			}
			rounds[i] = append(rounds[i], m)
		}
		if len(all) == 2 {
			ours, peers := rounds[0], rounds[1]
			ratios = append(ratios, ours[len(ours)-1].P95/max(peers[len(peers)-1].P95, 0.001))
		}
	}
	medians := make([]searchRate, len(all))
	for i, m := range rounds {
		slices.SortStableFunc(m, func(a, b searchRate) int { return int(1e6 * (a.P95 - b.P95)) })
		medians[i] = m[(len(m)-1)/2]
		for _, other := range m {
			medians[i].Failures = max(medians[i].Failures, other.Failures)
		}
	}
	if len(ratios) > 0 {
		slices.Sort(ratios)
		ratio := loadgen.Round(ratios[(len(ratios)-1)/2], 3)
		medians[0].ToPeer = &ratio
	}
	return medians, nil
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

// sustain finds the highest rates of all servers in turn.
func (o *searchOptions) sustain(ctx context.Context, env loadgen.Env, all []*searched, r *searchReport) error {
	for i, s := range all {
		stop := loadgen.Progress(ctx, env.Stderr, func() string { return "searching for the highest rate of " + s.String() })
		best, err := s.sustained(ctx)
		stop()
		if err != nil {
			return err
		}
		if i == 0 {
			r.Sustained = best
			continue
		}
		r.Peer.Sustained = best
		r.ToPeer = loadgen.Round(r.Sustained/max(best, 0.001), 3)
	}
	return nil
}

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
	request request
	timeout time.Duration
	results int // of the first response
	matches []searchMatch
}

func (s *searched) String() string { return s.target.String() }

// newSearched sends one request to a server.
func newSearched(ctx context.Context, base string, api searchAPI, o *searchOptions) (*searched, error) {
	t, err := loadgen.ParseTarget(base, false)
	if err != nil {
		return nil, err
	}
	s := &searched{target: t, api: api, timeout: o.timeout}
	if s.request, err = api.request(o.query, o.results); err != nil {
		return nil, err
	}
	var first []byte
	sender := s.sender(func(x *loadgen.Exchange) error {
		first = slices.Clone(x.Body)
		return s.verify(x)
	})
	sender.Conns, sender.Count = 1, 1
	sent, err := sender.Run(ctx)
	if err != nil {
		return nil, err
	}
	if err := sent.Failures.Err(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, strings.Join(sent.Failures.First, "; "))
	}
	if s.matches, err = api.parse(first); err != nil {
		return nil, fmt.Errorf("%v: the response does not match the API: %w", s, err)
	}
	if s.results = len(s.matches); s.results == 0 {
		return nil, fmt.Errorf("%v finds nothing for %q", s, o.query)
	}
	return s, nil
}

// attack measures one rate.
func (s *searched) attack(ctx context.Context, rate float64, duration time.Duration,
	fails *loadgen.Failures) (searchRate, error) {
	r, _, err := s.drive(ctx, rate, duration, maxSearchConns, fails)
	r.QPS = rate
	return r, err
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
	fails *loadgen.Failures) (searchRate, *measured, error) {
	var link loadgen.Samples
	sender := s.sender(func(x *loadgen.Exchange) error {
		err := s.verify(x)
		if d, ok := linkTime(x.Header("Server-Timing")); ok && err == nil {
			link = append(link, d)
		}
		return err
	})
	sender.Duration, sender.Conns = duration, conns
	if rate > 0 {
		sender.Open, sender.Arrivals = true, loadgen.FixedRate(rate)
	}
	sent, err := sender.Run(ctx)
	if err != nil {
		return searchRate{}, nil, err
	}
	fails.Join(sent.Failures)
	m := &measured{elapsed: sent.Elapsed}
	slices.SortFunc(sent.Answers, func(a, b loadgen.Answer) int { return cmp.Compare(a.Due, b.Due) })
	for _, a := range sent.Answers {
		m.latencies = append(m.latencies, a.Took)
	}
	all := loadgen.Samples(slices.Clone(m.latencies))
	sum := all.Stats()
	r := searchRate{Requests: len(all) + sent.Failures.Count(), Failures: sent.Failures.Count(), Bytes: sent.Bytes,
		Mean: sum.Mean, P50: sum.P50, P95: sum.P95, P99: sum.P99, Max: sum.Max}
	if len(link) > 0 {
		sum := link.Summarize()
		r.Link50, r.Link95 = &sum.P50, &sum.P95
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

// sender returns a closed loop of searches. Calls of check do not overlap.
func (s *searched) sender(check func(x *loadgen.Exchange) error) *loadgen.Sender {
	return &loadgen.Sender{Target: s.target, Requests: [][]byte{s.request.bytes(s.target)}, Arrivals: loadgen.FixedRate(1),
		Keep: true, Timeout: s.timeout,
		Pause: loadgen.RetryAfter, Check: check}
}

// verify checks a response.
func (s *searched) verify(x *loadgen.Exchange) error {
	if err := loadgen.CheckStatus(x); err != nil {
		return err
	}
	n, err := s.api.count(x.Body)
	if err == nil && s.results > 0 && n != s.results {
		err = fmt.Errorf("a response with %d results, want %d as in the first", n, s.results)
	}
	return err
}
