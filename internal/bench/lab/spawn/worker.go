package spawn

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	"github.com/packhorse-git/packhorse/internal/git/process"
)

// spawnJob is the job of a measured process.
type spawnJob struct {
	Method     string
	Heap       int64 // bytes to touch
	Rate       float64
	Goroutines int
	Duration   time.Duration
	Patience   time.Duration
	Git        string
}

// WorkerCommand is the measured process. It reads a job from standard input, and ends when standard input is closed,
// which also happens when its parent dies.
func WorkerCommand(env loadgen.Env) *cobra.Command {
	return &cobra.Command{
		Use: "spawn-worker", Short: "The measured process of \"packhorse-bench lab spawn\"", Hidden: true,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			killFirst()
			in := bufio.NewReader(cmd.InOrStdin())
			line, err := in.ReadBytes('\n')
			if err != nil {
				return fmt.Errorf("reading the job: %w", err)
			}
			var job spawnJob
			if err := json.Unmarshal(line, &job); err != nil {
				return fmt.Errorf("reading the job: %w", err)
			}
			go func() {
				io.Copy(io.Discard, in) //nolint:errcheck // any end is the end
				os.Exit(1)              // no process reads the result
			}()
			rows, err := job.run(cmd.Context())
			if err != nil {
				return err
			}
			return json.NewEncoder(env.Stdout).Encode(rows)
		},
	}
}

// starter starts a child and returns when it runs git. The end of ctx ends the wait for other starts, and may end the
// child. wait waits for the end of the child.
type starter interface {
	start(ctx context.Context) (wait func() error, err error)
	close() error
}

func (j *spawnJob) run(ctx context.Context) ([]spawnRow, error) {
	debug.SetMemoryLimit(math.MaxInt64) // a limit in the environment could keep the collector running
	heap, err := touch(j.Heap)
	if err != nil {
		return nil, err
	}
	s, err := j.starter()
	if err != nil {
		return nil, err
	}
	defer s.close()
	n, err := newSpawnNeighbour(heap)
	if err != nil {
		return nil, err
	}
	defer n.close()
	if wait, err := s.start(ctx); err != nil { // the first start finds cold caches
		return nil, fmt.Errorf("starting git: %w", err)
	} else if err := wait(); err != nil {
		return nil, fmt.Errorf("git version: %w", err)
	}
	runtime.GC()
	rows := []spawnRow{j.row(ctx, 1, j.Duration, s, n, func(ctx context.Context,
		t *starts) {
		t.open(ctx, j.Rate, j.Duration)
	})}
	if j.Goroutines > 0 && ctx.Err() == nil {
		rows = append(rows, j.row(ctx, j.Goroutines, 0, s, n,
			func(ctx context.Context, t *starts) { t.atOnce(ctx, j.Goroutines) }))
	}
	for _, r := range rows {
		if r.Starts == 0 && ctx.Err() == nil {
			return nil, fmt.Errorf("none of %d children could be started", r.Errors+r.GaveUp)
		}
	}
	return rows, errors.Join(ctx.Err(), n.err())
}

func (j *spawnJob) starter() (starter, error) {
	if j.Method == methodFork {
		return newForks(j.Git, j.Heap)
	}
	runner, err := process.New(process.Options{Git: j.Git, Classes: map[process.Class]process.Limits{
		spawnClass: {Slots: max(j.Goroutines, maxSpawnRate), Queue: maxSpawnGoroutines},
	}})
	if err != nil {
		return nil, err
	}
	return spawns{runner}, nil
}

// row runs a number of starts beside the neighbour.
func (j *spawnJob) row(ctx context.Context, goroutines int, lasts time.Duration, s starter, n *spawnNeighbour,
	run func(context.Context, *starts)) spawnRow {
	t := &starts{starter: s}
	done := make(chan struct{})
	latency := make(chan loadgen.Samples, 1)
	go func() { latency <- n.run(ctx, done) }()
	limited, cancel := context.WithTimeout(ctx, lasts+j.Patience)
	defer cancel()
	run(limited, t)
	close(done)
	t.running.Wait()
	r := spawnRow{Method: j.Method, HeapBytes: j.Heap, Goroutines: goroutines, Starts: len(t.latency) - t.gaveUp,
		GaveUp: t.gaveUp, Errors: t.failures.Count()}
	t.failures.Print(os.Stderr)
	sum, beside := t.latency.Summarize(), (<-latency).Summarize()
	r.P50, r.P99, r.Max, r.NeighbourP99 = us(sum.P50), us(sum.P99), us(sum.Max), us(beside.P99)
	return r
}

// us converts the milliseconds of a summary to microseconds.
func us(ms float64) float64 { return math.Round(ms * 1000) }

// starts collects latencies.
type starts struct {
	starter
	running  sync.WaitGroup // children that run
	failures loadgen.Failures

	mu      sync.Mutex
	latency loadgen.Samples // guarded by mu, like the fields below
	gaveUp  int             // number of starts in latency that gave up
}

// one starts a child and returns when it runs. asked is the time of the request.
func (t *starts) one(ctx context.Context, asked time.Time) {
	wait, err := t.start(ctx)
	took := time.Since(asked)
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		t.failures.Add(err)
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.latency = append(t.latency, took)
	if err != nil {
		t.gaveUp++
		return
	}
	t.running.Go(func() {
		if err := wait(); err != nil {
			t.failures.Add(err)
		}
	})
}

// open starts children at fixed times, and returns when the last one runs.
func (t *starts) open(ctx context.Context, rate float64, duration time.Duration) {
	begin := time.Now()
	var asking sync.WaitGroup
	defer asking.Wait()
	for n := 0; ; n++ {
		after := time.Duration(float64(n) / rate * 1e9)
		if after >= duration && n > 0 || !loadgen.PreciseSleep(ctx, time.Until(begin.Add(after))) {
			return
		}
		asked := time.Now() // not the time when it was due, because delays of this loop do not count
		asking.Go(func() { t.one(ctx, asked) })
	}
}

// atOnce starts children from many goroutines at the same moment, and returns when the last child runs.
func (t *starts) atOnce(ctx context.Context, goroutines int) {
	var ready, asking sync.WaitGroup
	ready.Add(goroutines)
	begin := make(chan struct{})
	var asked time.Time
	for range goroutines {
		asking.Go(func() {
			ready.Done()
			<-begin
			t.one(ctx, asked)
		})
	}
	ready.Wait()
	asked = time.Now()
	close(begin)
	asking.Wait()
}

// spawnClass is the class of the children.
const spawnClass process.Class = "bench"

// spawns starts children as servers do.
type spawns struct{ runner *process.Runner }

func (s spawns) start(ctx context.Context) (func() error, error) {
	p, err := s.runner.Start(ctx, process.Command{Class: spawnClass, Subcommand: "version", Args: []string{"version"}})
	if err != nil {
		return nil, err
	}
	return func() error {
		_, copied := io.Copy(io.Discard, p.Stdout())
		_, err := p.Wait()
		return errors.Join(copied, err)
	}, nil
}

func (s spawns) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return s.runner.Close(ctx)
}

// heapPiece is the size of the pieces of the heap. Free memory is checked after each.
const heapPiece = 64 << 20

// touch makes a heap, and writes to each of its pages.
func touch(size int64) (heap [][]byte, err error) {
	page := os.Getpagesize()
	for size > 0 {
		piece := make([]byte, min(size, heapPiece))
		size -= int64(len(piece))
		smallPages(piece)
		if free, ok := freeMemory(); ok && free < memoryReserve+int64(len(piece)) {
			return nil, fmt.Errorf("memory became scarce: %d MiB are free, with %d pieces of %d MiB touched", free>>20,
				len(heap), heapPiece>>20)
		}
		for i := 0; i < len(piece); i += page {
			piece[i] = 1
		}
		heap = append(heap, piece)
	}
	return heap, nil
}

const (
	// spawnNeighbourRate is the rate of the neighbour in requests per second.
	spawnNeighbourRate = 200
	// neighbourTouches is the number of places in the heap that each request changes.
	neighbourTouches = 4
)

// spawnNeighbour is a server in the measured process, and its client. Their requests show the effect of starting
// children on other work of the process.
type spawnNeighbour struct {
	server   *http.Server
	target   *loadgen.Target
	failures loadgen.Failures
}

func newSpawnNeighbour(heap [][]byte) (*spawnNeighbour, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex // guards the heap
	answer := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		for range neighbourTouches {
			if len(heap) > 0 {
				piece := heap[rand.IntN(len(heap))]
				piece[rand.IntN(len(piece))]++
			}
		}
		mu.Unlock()
		io.WriteString(w, "refs/heads/main\n") //nolint:errcheck // the client notices
	})
	n := &spawnNeighbour{server: &http.Server{Handler: answer, ReadHeaderTimeout: time.Minute}}
	if n.target, err = loadgen.ParseTarget("http://"+l.Addr().String(), false); err != nil {
		l.Close()
		return nil, err
	}
	go n.server.Serve(l) //nolint:errcheck // until close
	return n, nil
}

// run sends requests at a fixed rate until stop is closed, at least one, and returns the latencies of correct
// responses.
func (n *spawnNeighbour) run(ctx context.Context, stop <-chan struct{}) loadgen.Samples {
	s := &loadgen.Sender{Target: n.target, Requests: [][]byte{n.target.Plain("/", true)}, Open: true,
		Arrivals: loadgen.FixedRate(spawnNeighbourRate), Conns: loadgen.ProbeConns, Connect: true, Keep: true, Stop: stop,
		Timeout: 10 * time.Minute, Check: loadgen.CheckStatus}
	sent, err := s.Run(ctx)
	if err != nil && ctx.Err() == nil {
		n.failures.Add(err)
	}
	n.failures.Join(sent.Failures)
	var latency loadgen.Samples
	for _, a := range sent.Answers {
		latency = append(latency, a.Took)
	}
	return latency
}

func (n *spawnNeighbour) err() error {
	if err := n.failures.Err(); err != nil {
		return fmt.Errorf("the neighbour: %w: %s", err, n.failures.First[0])
	}
	return nil
}

func (n *spawnNeighbour) close() { n.server.Close() }
