// Package sched simulates the latency of requests to application workers, by load and by the policy that chooses the
// worker.
package sched

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	"github.com/packhorse-git/packhorse/internal/bench/page"
)

// schedOptions are the flags of `packhorse-bench lab sched`.
type schedOptions struct {
	workers, slots int
	cpus           int
	gvl            bool
	arrivals       string
	load           string
	policies       []string
	service        time.Duration
	distribution   string
	cpu            float64
	delay          time.Duration
	requests       int
	seed           uint64
	html           string
	json           bool

	closed bool
	loads  []float64
	size   func(*rand.Rand) float64 // with mean 1
}

// schedRow is the result for one policy.
type schedRow struct {
	Workers    int     `json:"workers"`
	Slots      int     `json:"slots"`
	Policy     string  `json:"policy"`
	Load       float64 `json:"load"` // relative to the capacity of the workers
	Mean       float64 `json:"mean"` // in ms, like the following
	P50        float64 `json:"p50"`
	P95        float64 `json:"p95"`
	P99        float64 `json:"p99"`
	Saturation float64 `json:"saturation"` // the mean divided by that of single requests

	PerS    float64 `json:"requests_per_s"` // answered during the simulation
	Clients int     `json:"clients,omitempty"`
	Shared  int     `json:"shared_while_idle"` // requests that a busy worker got while another was idle
}

// schedReport is the output of `packhorse-bench lab sched --json`.
type schedReport struct {
	CPUs         int        `json:"cpus"`
	GVL          bool       `json:"gvl"`
	Arrivals     string     `json:"arrivals"`
	ServiceMS    float64    `json:"service_ms"`
	Distribution string     `json:"distribution"`
	CPU          float64    `json:"cpu"`
	DelayMS      float64    `json:"delay_ms"`
	Requests     int        `json:"requests"`
	Seed         uint64     `json:"seed"`
	Rows         []schedRow `json:"rows"`
}

// studied are the default numbers of workers and slots. They are those of a study that compared Puma with Unicorn.
var studied = [][2]int{{14, 4}, {18, 2}, {25, 2}, {30, 1}, {16, 2}, {8, 4}, {16, 4}}

var schedHelp = `Simulates the latency of requests to application workers with several slots each, by the policy
that chooses the worker. Nothing is measured: the same flags print the same figures anywhere.

A request computes (--cpu is the share of its time; it waits for other services in the
middle) and needs a slot from its start to its end. With --gvl the requests in one worker
share one lock, and so one CPU, in turns. Without it each may have a CPU. Locks in use
share the CPUs of the machine in turns.

--load is relative to the capacity of the workers: the CPUs that they can keep busy,
min(workers, cpus) with --gvl, or the slots if these are fewer. From 1.0 on the figures
are those of a queue that has grown for --requests.

  open     requests arrive at random (Poisson), regardless of earlier ones
  closed   as many clients as would keep that part busy, each of which sends the next
           request after a response: ab -n 20*i -c i, repeatedly

Policies:

` + schedPolicyHelp() + `
Figures are milliseconds from the arrival of a request to its end, including queueing. The
saturation factor is their mean divided by that of single requests. Its optimum is 1.`

func schedPolicyHelp() string {
	var b strings.Builder
	for _, p := range schedPolicies() {
		fmt.Fprintf(&b, "  %-12s %s\n", p.name, strings.ReplaceAll(p.does, "; ", ";\n               "))
	}
	return b.String()
}

func Command(env loadgen.Env) *cobra.Command {
	var o schedOptions
	cmd := &cobra.Command{
		Use:   "sched",
		Short: "Simulate the choice of a worker for each request: latency by load and policy",
		Long:  schedHelp,
		Example: `  packhorse-bench lab sched --html sched.html
  packhorse-bench lab sched --workers 16 --slots 2 --load 0.4
  packhorse-bench lab sched --workers 16 --slots 4 --cpu 0.3 --distribution lognormal --policies least-busy,packhorse,oracle --json`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	var usual, all []string
	for _, p := range schedPolicies() {
		if p.name != schedSomeSlots {
			all = append(all, p.name)
		}
		if p.usual {
			usual = append(usual, p.name)
		}
	}
	f := cmd.Flags()
	f.IntVar(&o.workers, "workers", 0,
		"worker processes; 0: those of the study, with --slots: 14/4, 18/2, 25/2, 30/1, 16/2, 8/4, 16/4")
	f.IntVar(&o.slots, "slots", 0, "parallel requests of a worker (its threads)")
	f.IntVar(&o.cpus, "cpus", 16, "CPUs of the machine")
	f.BoolVar(&o.gvl, "gvl", true, "the requests of a worker share one lock; --gvl=false: they do not")
	f.StringVar(&o.arrivals, "arrivals", "open", "open or closed")
	f.StringVar(&o.load, "load", "0.1..1.0",
		"loads: a list such as 0.3,0.4, or FROM..TO in steps of 0.1, or FROM..TO:STEP")
	f.StringSliceVar(&o.policies, "policies", usual, "list of policies")
	f.DurationVar(&o.service, "service", 100*time.Millisecond, "mean time of a single request")
	f.StringVar(&o.distribution, "distribution", "fixed",
		"distribution of that time: fixed, exponential, lognormal, or lognormal:SIGMA (1.5)")
	f.Float64Var(&o.cpu, "cpu", 1, "share of computing in that time, from 0 to 1; the rest is waiting")
	f.DurationVar(&o.delay, "delay", 5*time.Millisecond, "wait of a busy worker with puma-delay")
	f.IntVar(&o.requests, "requests", 20_000, "number of requests for each figure")
	f.Uint64Var(&o.seed, "seed", 1, "seed of all random values")
	f.StringVar(&o.html, "html", "", "write a page with charts to this file")
	f.BoolVar(&o.json, "json", false, "print one JSON object")
	for flag, values := range map[string][]string{"policies": all, "arrivals": {"open", "closed"},
		"distribution": {"fixed", "exponential", "lognormal"}} {
		err := cmd.RegisterFlagCompletionFunc(flag, completeList(values, flag == "policies"))
		if err != nil {
			panic(err) // the flag is missing
		}
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := o.check(); err != nil {
			return err
		}
		return loadgen.Interrupted(cmd.Context(), o.run(cmd.Context(), env))
	}
	return cmd
}

// completeList completes one of values, or the last element of a list of them.
func completeList(values []string, list bool) cobra.CompletionFunc {
	return func(_ *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
		before := ""
		if i := strings.LastIndexByte(begun, ','); list && i >= 0 {
			before = begun[:i+1]
		}
		var found []string
		for _, v := range values {
			if strings.HasPrefix(before+v, begun) && !slices.Contains(strings.Split(before, ","), v) {
				found = append(found, before+v)
			}
		}
		return found, cobra.ShellCompDirectiveNoFileComp
	}
}

// The limits of the flags.
const (
	maxSchedWorkers  = 1000
	maxSchedSlots    = 100
	maxSchedCPUs     = 1024
	maxSchedLoad     = 2
	maxSchedLoads    = 200
	minSchedRequests = 100
	maxSchedRequests = 2_000_000
	maxSchedService  = time.Hour
	maxSchedSigma    = 3
	usualSchedSigma  = 1.5
)

func (o *schedOptions) check() error {
	switch {
	case (o.workers == 0) != (o.slots == 0):
		return fmt.Errorf("--workers %d --slots %d: set both, or neither for those of the study", o.workers, o.slots)
	case o.workers < 0 || o.workers > maxSchedWorkers:
		return fmt.Errorf("--workers %d: from 1 to %d", o.workers, maxSchedWorkers)
	case o.slots < 0 || o.slots > maxSchedSlots:
		return fmt.Errorf("--slots %d: from 1 to %d", o.slots, maxSchedSlots)
	case o.cpus < 1 || o.cpus > maxSchedCPUs:
		return fmt.Errorf("--cpus %d: from 1 to %d", o.cpus, maxSchedCPUs)
	case o.arrivals != "open" && o.arrivals != "closed":
		return fmt.Errorf("--arrivals %.40q: want open or closed", o.arrivals)
	case o.service < time.Microsecond || o.service > maxSchedService:
		return fmt.Errorf("--service %v: from 1us to %v", o.service, maxSchedService)
	case !(o.cpu >= 0 && o.cpu <= 1):
		return fmt.Errorf("--cpu %v: want a share from 0 to 1", o.cpu)
	case o.delay < 0 || o.delay > time.Minute:
		return fmt.Errorf("--delay %v: from 0s to 1m", o.delay)
	case o.requests < minSchedRequests || o.requests > maxSchedRequests:
		return fmt.Errorf("--requests %d: from %d to %d", o.requests, minSchedRequests, maxSchedRequests)
	}
	o.cpu = math.Abs(o.cpu) // -0 is 0
	o.closed = o.arrivals == "closed"
	seen := map[string]bool{}
	for _, name := range o.policies {
		kind, slots, ok := findPolicy(name)
		if !ok {
			return fmt.Errorf("--policies: unknown policy %.40q: choose from %s", name, schedNames())
		}
		same := fmt.Sprint(kind.name, slots) // packhorse:01 equals packhorse:1
		if seen[same] {
			return fmt.Errorf("--policies: duplicate %s", name)
		}
		seen[same] = true
	}
	if len(o.policies) == 0 {
		return fmt.Errorf("--policies: choose from %s", schedNames())
	}
	var err error
	if o.size, err = parseDistribution(o.distribution); err == nil {
		o.loads, err = parseLoads(o.load)
	}
	return err
}

func schedNames() string {
	names := make([]string, 0, len(schedPolicies()))
	for _, p := range schedPolicies() {
		names = append(names, p.name)
	}
	return strings.Join(names, ", ")
}

// parseDistribution returns the distribution of durations with mean 1.
func parseDistribution(name string) (func(*rand.Rand) float64, error) {
	kind, parameter, given := strings.Cut(name, ":")
	sigma := usualSchedSigma
	if given {
		var err error
		if sigma, err = strconv.ParseFloat(parameter, 64); err != nil || kind != "lognormal" ||
			!(sigma > 0 && sigma <= maxSchedSigma) {
			return nil, fmt.Errorf("--distribution %.40q: only lognormal has a parameter, sigma: above 0, and %d at most", name,
				maxSchedSigma)
		}
	}
	switch kind {
	case "fixed":
		return func(*rand.Rand) float64 { return 1 }, nil
	case "exponential":
		return (*rand.Rand).ExpFloat64, nil
	case "lognormal":
		return func(r *rand.Rand) float64 { return math.Exp(float64(sigma*r.NormFloat64()) - float64(sigma*sigma)/2) }, nil
	}
	return nil, fmt.Errorf("--distribution %.40q: want fixed, exponential, lognormal or lognormal:SIGMA", name)
}

// parseLoads parses a list or a range of loads in ascending order. They are whole hundredths of a percent.
func parseLoads(list string) ([]float64, error) {
	bad := fmt.Errorf("--load %.60q: want loads above 0 and up to %d, such as 0.3,0.4 or 0.1..1.0 or 0.3..0.5:0.05, "+
		"and %d at most", list, maxSchedLoad, maxSchedLoads)
	read := func(s string) (int, bool) {
		x, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
		n := int(math.Round(min(x, 10) * schedLoadUnit)) // a NaN becomes a value outside the limits
		return n, err == nil && x > 0 && n > 0 && n <= maxSchedLoad*schedLoadUnit
	}
	var units []int
	for part := range strings.SplitSeq(list, ",") {
		from, to, ranged := strings.Cut(part, "..")
		to, step, stepped := strings.Cut(to, ":")
		if !stepped {
			step = "0.1"
		}
		if !ranged {
			to = from
		}
		a, ok1 := read(from)
		b, ok2 := read(to)
		by, ok3 := read(step)
		if !ok1 || !ok2 || !ok3 || b < a || (b-a)/by >= maxSchedLoads {
			return nil, bad
		}
		for ; a <= b; a += by {
			units = append(units, a)
		}
	}
	slices.Sort(units)
	units = slices.Compact(units)
	if len(units) > maxSchedLoads {
		return nil, bad
	}
	loads := make([]float64, len(units))
	for i, n := range units {
		loads[i] = float64(n) / schedLoadUnit
	}
	return loads, nil
}

const schedLoadUnit = 10_000

// cores is the number of CPUs that the workers can keep busy.
func (o *schedOptions) cores(c schedCell) int {
	if o.gvl {
		return min(c.workers, o.cpus)
	}
	return min(c.workers*c.slots, o.cpus)
}

// places is the maximum number of requests that progress at full speed.
func (o *schedOptions) places(c schedCell) float64 {
	places := float64(c.workers * c.slots)
	if o.cpu > 0 {
		places = min(places, float64(o.cores(c))/o.cpu)
	}
	return places
}

// rate is the arrival rate in requests per second.
func (o *schedOptions) rate(c schedCell) float64 { return c.load * o.places(c) / o.service.Seconds() }

// clients is the number of clients of the closed loop.
func (o *schedOptions) clients(c schedCell) int { return max(int(math.Round(c.load*o.places(c))), 1) }

// cells returns all simulations in the order of the report.
func (o *schedOptions) cells() (cells []schedCell) {
	shapes := studied
	if o.workers > 0 {
		shapes = [][2]int{{o.workers, o.slots}}
	}
	for _, shape := range shapes {
		for _, policy := range o.policies {
			for _, load := range o.loads {
				cells = append(cells, schedCell{workers: shape[0], slots: shape[1], load: load, policy: policy})
			}
		}
	}
	return cells
}

func (o *schedOptions) run(ctx context.Context, env loadgen.Env) error {
	to, err := page.Open(o.html)
	if err != nil {
		return err
	}
	defer to.Close()
	r, err := o.all(ctx, env)
	if err != nil {
		return err
	}
	if o.json {
		err = loadgen.WriteJSON(env.Stdout, r)
	} else {
		err = o.print(env.Stdout, r)
	}
	return cmp.Or(err, o.writeHTML(to, r))
}

// all runs all simulations, several at a time, because they are independent.
func (o *schedOptions) all(ctx context.Context, env loadgen.Env) (*schedReport, error) {
	r := &schedReport{CPUs: o.cpus, GVL: o.gvl, Arrivals: o.arrivals, ServiceMS: loadgen.Milliseconds(o.service),
		Distribution: o.distribution, CPU: o.cpu, DelayMS: loadgen.Milliseconds(o.delay),
		Requests: o.requests, Seed: o.seed}
	cells := o.cells()
	r.Rows = make([]schedRow, len(cells))
	var done atomic.Int64
	stop := loadgen.Progress(ctx, env.Stderr,
		func() string { return fmt.Sprintf("simulated %d of %d", done.Load(), len(cells)) })
	defer stop()
	load := newSchedLoad(o)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	for i, cell := range cells {
		group.Go(func() error {
			s, err := o.simulate(ctx, cell, load)
			if err != nil {
				return err
			}
			r.Rows[i] = s.row()
			done.Add(1)
			return nil
		})
	}
	return r, group.Wait()
}

// row returns the result of a simulation.
func (s *schedSim) row() schedRow {
	mean := s.mean()
	slices.Sort(s.took)
	n := len(s.took)
	rank := func(percent int) float64 { return loadgen.Round(1000*s.took[max((n*percent+99)/100, 1)-1], 3) }
	return schedRow{
		Workers: s.cell.workers, Slots: s.cell.slots, Policy: s.cell.policy, Load: s.cell.load,
		Mean: loadgen.Round(1000*mean, 3),
		P50:  rank(50), P95: rank(95), P99: rank(99), Saturation: loadgen.Round(mean/s.lone(), 4),
		PerS: loadgen.Round(float64(s.done)/s.now, 3), Clients: s.clients, Shared: s.shared,
	}
}

// lone returns the mean time of the measured requests if each had run alone, in seconds.
func (s *schedSim) lone() float64 {
	sum := 0.0
	for _, size := range s.load.sizes[s.load.warm : s.load.warm+s.load.measured] {
		sum += size
	}
	return sum / float64(s.load.measured) * s.o.service.Seconds()
}
