// Package spawn measures the cost of starting git by the heap of the process that starts it.
package spawn

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
)

// The methods of starting a process in `packhorse-bench lab spawn`.
const (
	methodSpawn = "spawn" // as the server starts git
	methodFork  = "fork"  // with a copy of the page tables, as older programs
)

// spawnOptions are the flags of `packhorse-bench lab spawn`.
type spawnOptions struct {
	heap       string
	rate       float64
	goroutines int
	duration   time.Duration
	patience   time.Duration
	runs       int
	method     string
	git        string
	html       string
	json       bool

	heaps   []int64 // bytes, ascending
	methods []string
	worker  []string // arguments of the measured processes
}

// spawnRow is the result for one method, size and number of goroutines: the medians of all runs.
type spawnRow struct {
	Method       string  `json:"method"`
	HeapBytes    int64   `json:"heap_bytes"`
	Goroutines   int     `json:"goroutines"` // that start children at once; 1: single starts at --rate
	P50          float64 `json:"p50_us"`
	P99          float64 `json:"p99_us"`
	Max          float64 `json:"max_us"`
	NeighbourP99 float64 `json:"neighbour_p99_us"`
	Starts       int     `json:"starts"`  // of all runs
	GaveUp       int     `json:"gave_up"` // of all runs; their waiting time counts as their latency
	Errors       int     `json:"errors"`
}

// spawnRatio compares the largest heap with the smallest.
type spawnRatio struct {
	Method     string  `json:"method"`
	Goroutines int     `json:"goroutines"`
	HeapBytes  int64   `json:"heap_bytes"`
	P99        float64 `json:"p99"`
}

// spawnReport is the output of `packhorse-bench lab spawn --json`.
type spawnReport struct {
	Runs   int          `json:"runs"`
	Rows   []spawnRow   `json:"rows"`
	Ratios []spawnRatio `json:"ratios"`
}

const spawnHelp = `Measures the time of starting a trivial git process ("git version") from a process with a heap of each size. The heap is
touched, and in pages of the usual size, like a heap that grew slowly. Each figure is from a separate process, which
gets

  alone        --rate starts per second regardless of their time (open loop), for --duration
  GOROUTINES   then a start from this many goroutines at the same moment, once

The latency of a start counts from the call until the child runs git. It includes the wait for other starts. A call that
waits for --patience gives up, and counts with that time. Meanwhile another request, over HTTP to the same process and
200 times per second, writes to parts of the heap. Its latency counts from the time when it was due.

The methods of starting children:

  spawn   as our server, including pipes: the child borrows the parent's memory until it runs git (CLONE_VM, CLONE_VFORK)
  fork    plain fork(2), as Go did before version 1.9: the child first gets a copy of the page tables, which takes longer
          for a larger parent. Linux only

A run measures each size and method once, in turn. Figures are the medians of all --runs. A ratio is the p99 with the
largest heap divided by that with the smallest.

The command refuses heaps that do not fit into free memory with a reserve. The processes end with this one, and the
kernel would kill them before others.`

func Command(env loadgen.Env) *cobra.Command {
	var o spawnOptions
	cmd := &cobra.Command{
		Use:   "spawn",
		Short: "Measure the cost of starting git by the size of the starting process, and its effect on other requests",
		Long:  spawnHelp,
		Example: `  packhorse-bench lab spawn --html spawn.html
  packhorse-bench lab spawn --heap 0,8G --runs 5 --json
  packhorse-bench lab spawn --heap 0,512M --goroutines 100 --method spawn`,
		Args: cobra.NoArgs,
	}
	f := cmd.Flags()
	f.StringVar(&o.heap, "heap", "0,1G,4G,8G", "sizes of the heap: bytes, or with M or G (2^20, 2^30)")
	f.Float64Var(&o.rate, "rate", 20, "single starts per second")
	f.IntVar(&o.goroutines, "goroutines", 1400, "number of starts at once; 0: only single starts")
	f.DurationVar(&o.duration, "duration", 10*time.Second, "how long children are started at --rate")
	f.DurationVar(&o.patience, "patience", time.Minute, "timeout of the wait for other starts")
	f.IntVar(&o.runs, "runs", 1, "measure everything this often, and show the medians")
	f.StringVar(&o.method, "method", "both", "spawn, fork or both")
	f.StringVar(&o.git, "git", "git", "the git program")
	f.StringVar(&o.html, "html", "", "write a page with charts to this file")
	f.BoolVar(&o.json, "json", false, "print one JSON object")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := o.check(); err != nil {
			return err
		}
		o.worker = []string{"spawn-worker"}
		return loadgen.Interrupted(cmd.Context(), o.run(cmd.Context(), env))
	}
	return cmd
}

// The limits of the flags.
const (
	maxSpawnRate       = 1000
	maxSpawnGoroutines = 10_000
	maxSpawnRuns       = 100
)

func (o *spawnOptions) check() (err error) {
	switch {
	case !(o.rate > 0 && o.rate <= maxSpawnRate):
		return fmt.Errorf("--rate %v: want a positive number up to %d", o.rate, maxSpawnRate)
	case o.goroutines < 0 || o.goroutines > maxSpawnGoroutines:
		return fmt.Errorf("--goroutines %d: from 0 to %d", o.goroutines, maxSpawnGoroutines)
	case o.duration <= 0 || o.patience <= 0:
		return errors.New("--duration and --patience must be positive")
	case o.runs < 1 || o.runs > maxSpawnRuns:
		return fmt.Errorf("--runs %d: from 1 to %d", o.runs, maxSpawnRuns)
	}
	switch o.method {
	case methodSpawn, methodFork:
		o.methods = []string{o.method}
	case "both":
		if o.methods = []string{methodSpawn}; canFork() == nil {
			o.methods = append(o.methods, methodFork)
		}
	default:
		return fmt.Errorf("--method %.40q: want spawn, fork or both", o.method)
	}
	if o.method == methodFork {
		if err := canFork(); err != nil {
			return err
		}
	}
	if o.heaps, err = parseHeaps(o.heap); err != nil {
		return err
	}
	if err := enoughFiles(o.goroutines); err != nil {
		return err
	}
	largest := o.heaps[len(o.heaps)-1]
	return enoughMemory(largest)
}

// parseHeaps parses sizes and returns them in ascending order.
func parseHeaps(list string) ([]int64, error) {
	var heaps []int64
	for s := range strings.SplitSeq(list, ",") {
		number, unit := strings.TrimSpace(s), int64(1)
		for i, suffix := range []string{"M", "G"} {
			for _, end := range []string{suffix, suffix + "iB"} {
				if cut, ok := strings.CutSuffix(number, end); ok {
					number, unit = cut, 1<<(10*(i+2))
				}
			}
		}
		n, err := strconv.ParseInt(number, 10, 64)
		if err != nil || n < 0 || n > (1<<50)/unit {
			return nil, fmt.Errorf("--heap %.100q: want sizes such as 0,512M,8G", list)
		}
		heaps = append(heaps, n*unit)
	}
	slices.Sort(heaps)
	return slices.Compact(heaps), nil
}

const (
	// memoryReserve is the free memory that remains for other processes and for the children.
	memoryReserve = 1 << 30
	// pageTables is the number of bytes of a process for each byte of its page tables.
	pageTables = 512
)

// enoughMemory refuses a heap that does not fit into free memory. It accepts any heap if free memory is unknown.
func enoughMemory(heap int64) error {
	if heap == 0 {
		return nil
	}
	free, ok := freeMemory()
	if !ok || heap+heap/pageTables+memoryReserve <= free {
		return nil
	}
	return fmt.Errorf("--heap %s: free memory is %.1f GiB, and 1 GiB must remain free: use smaller sizes",
		gib(heap), float64(free)/(1<<30))
}

func gib(n int64) string {
	if n == 0 {
		return "0"
	}
	if n%(1<<30) == 0 {
		return fmt.Sprintf("%dG", n>>30)
	}
	if n%(1<<20) == 0 {
		return fmt.Sprintf("%dM", n>>20)
	}
	return strconv.FormatInt(n, 10)
}

func (o *spawnOptions) run(ctx context.Context, env loadgen.Env) error {
	type key struct {
		method     string
		heap       int64
		goroutines int
	}
	var order []key
	all := map[key][]spawnRow{}
	phase := ""
	for run := range o.runs {
		for _, heap := range o.heaps {
			for _, method := range o.methods {
				phase = fmt.Sprintf("run %d of %d: %s with a heap of %s", run+1, o.runs, method, gib(heap))
				stop := loadgen.Progress(ctx, env.Stderr, func() string { return phase })
				rows, err := o.measure(ctx, env, method, heap)
				stop()
				if err != nil {
					return fmt.Errorf("%s: %w", phase, err)
				}
				for _, r := range rows {
					k := key{r.Method, r.HeapBytes, r.Goroutines}
					if all[k] == nil {
						order = append(order, k)
					}
					all[k] = append(all[k], r)
				}
			}
		}
	}
	r := &spawnReport{Runs: o.runs, Ratios: []spawnRatio{}}
	for _, k := range order {
		r.Rows = append(r.Rows, medianRow(all[k]))
	}
	r.compare()
	return o.report(env, r)
}

// medianRow takes the median of each figure separately.
func medianRow(runs []spawnRow) spawnRow {
	median := func(of func(spawnRow) float64) float64 {
		var all []float64
		for _, r := range runs {
			all = append(all, of(r))
		}
		return medianOf(all)
	}
	r := runs[0]
	r.P50 = median(func(r spawnRow) float64 { return r.P50 })
	r.P99 = median(func(r spawnRow) float64 { return r.P99 })
	r.Max = median(func(r spawnRow) float64 { return r.Max })
	r.NeighbourP99 = median(func(r spawnRow) float64 { return r.NeighbourP99 })
	for _, other := range runs[1:] {
		r.Starts, r.GaveUp, r.Errors = r.Starts+other.Starts, r.GaveUp+other.GaveUp, r.Errors+other.Errors
	}
	return r
}

// medianOf sorts all. For an even number of values it returns the mean of the two middle ones.
func medianOf(all []float64) float64 {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	half := len(all) / 2
	if len(all)%2 == 1 {
		return all[half]
	}
	return loadgen.Round((all[half-1]+all[half])/2, 1)
}

// compare computes the ratios.
func (r *spawnReport) compare() {
	type key struct {
		method     string
		goroutines int
	}
	least, most := map[key]spawnRow{}, map[key]spawnRow{}
	var order []key
	for _, row := range r.Rows {
		k := key{row.Method, row.Goroutines}
		if l, ok := least[k]; !ok || row.HeapBytes < l.HeapBytes {
			if !ok {
				order = append(order, k)
			}
			least[k] = row
		}
		if m, ok := most[k]; !ok || row.HeapBytes > m.HeapBytes {
			most[k] = row
		}
	}
	for _, k := range order {
		if l, m := least[k], most[k]; m.HeapBytes > l.HeapBytes && l.P99 > 0 {
			r.Ratios = append(r.Ratios, spawnRatio{k.method, k.goroutines, m.HeapBytes, loadgen.Round(m.P99/l.P99, 3)})
		}
	}
}

// measure measures one method and size in a child process, which ends when its standard input is closed.
func (o *spawnOptions) measure(ctx context.Context, env loadgen.Env, method string, heap int64) ([]spawnRow, error) {
	if err := enoughMemory(heap); err != nil {
		return nil, err // it may have changed since the start
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, o.worker...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &stdout, &stderr, 5*time.Second
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	job := spawnJob{Method: method, Heap: heap, Rate: o.rate, Goroutines: o.goroutines, Duration: o.duration,
		Patience: o.patience, Git: o.git}
	sent := json.NewEncoder(in).Encode(job)
	err = cmd.Wait() // closes in
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err := errors.Join(err, sent); err != nil {
		return nil, fmt.Errorf("the measured process failed: %w %s", err, loadgen.Clean(stderr.Bytes()))
	}
	io.Copy(env.Stderr, &stderr) //nolint:errcheck // warnings
	var rows []spawnRow
	if err := json.Unmarshal(stdout.Bytes(), &rows); err != nil {
		return nil, fmt.Errorf("read the result of the measured process: %w", err)
	}
	return rows, nil
}
