package ci

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/bench/gitload"
	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	"github.com/packhorse-git/packhorse/internal/bench/world"
)

const (
	// ciProbeRate is the rate of small requests during a run. It is low because each of them is a process with git
	// http-backend, and all of them count as the server's CPU time.
	ciProbeRate = 10
	// herd is the time within which the jobs of a pipeline start. A machine builds for the same time after its fetch, so
	// that another machine takes the next job of the pipeline.
	herd = time.Second
)

// doneJob is the record of a successful job.
type doneJob struct {
	took  time.Duration
	bytes int64
	tool  Tool
	fresh bool          // on a new machine
	first time.Duration // time to the first byte of the pack, for the first job of a pipeline; otherwise 0
}

// ciResult is the result of a fleet.
type ciResult struct {
	jobs      []doneJob
	pipelines int
	waiting   int // jobs that had not started at the end of the run, because no machine was free or the push was late
	elapsed   time.Duration
	packs     int // responses with a pack
	failures  *loadgen.Failures
	usage     *loadgen.TreeUsage
	clientCPU time.Duration
	before    loadgen.Metrics
	settled   loadgen.Metrics // at the start of the second pipeline; nil without one
	after     loadgen.Metrics
	small     *loadgen.Outcome
}

// crew is a working fleet.
type crew struct {
	scene *scene
	start time.Time
	build time.Duration // time that a machine builds after its fetch
	ended chan struct{} // closed by finish
	work  sync.WaitGroup

	mu     sync.Mutex // guards the fields below
	idle   []*runner
	queue  []Job
	over   bool // no further job starts
	begun  int  // jobs
	rng    *rand.Rand
	result *ciResult
}

// newCrew makes the machines. Their kinds follow the shares of the profile. Machines that keep their repositories are
// up to maxBehind commits behind.
func newCrew(s *scene, runners int, every time.Duration) (*crew, error) {
	c := &crew{scene: s, build: min(herd, every/2), ended: make(chan struct{}), rng: rand.New(rand.NewPCG(1, 0)),
		result: &ciResult{failures: &loadgen.Failures{}}}
	total := 0
	for _, p := range s.profile {
		total += p.weight
	}
	for i := range runners {
		slot := (2*i + 1) * total / (2 * runners) // evenly spread
		part := s.profile[0]
		for _, part = range s.profile {
			if slot -= part.weight; slot < 0 {
				break
			}
		}
		r := &runner{scene: s, machine: NewMachine(s.history, part.tool), fresh: part.fresh}
		r.packed = func(*Fetch) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.result.packs++
		}
		if err := c.age(r); err != nil {
			return nil, err
		}
		c.idle = append(c.idle, r)
	}
	return c, nil
}

// age puts a machine into the state after an earlier job.
func (c *crew) age(r *runner) error {
	if !r.machine.Tool.Keeps() {
		return nil
	}
	at, err := c.scene.history.Behind(c.scene.tip, c.rng.IntN(maxBehind+1))
	if err != nil {
		return err
	}
	return r.machine.Leave(Job{Pipeline: "refs/pipelines/1", Commit: at, Branch: c.scene.branch})
}

// submit gives a job to a free machine, or to the first one that becomes free.
func (c *crew) submit(ctx context.Context, job Job) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.idle) == 0 {
		c.queue = append(c.queue, job)
		return
	}
	i := c.rng.IntN(len(c.idle))
	r := c.idle[i]
	c.idle = slices.Delete(c.idle, i, i+1)
	c.ready(r)
	c.work.Go(func() { c.serve(ctx, r, job) })
}

// ready decides whether the machine is a new one. If the tip does not move, other machines become stale again. The
// caller holds mu.
func (c *crew) ready(r *runner) {
	switch {
	case c.rng.Float64() < r.fresh:
		r.machine.Reset()
	case c.scene.pusher == nil:
		c.age(r) //nolint:errcheck // the same commits as before
	}
}

// serve runs jobs until the queue is empty.
func (c *crew) serve(ctx context.Context, r *runner, job Job) {
	for {
		c.mu.Lock()
		c.begun++
		c.mu.Unlock()
		begun, received, fresh := time.Now(), r.received.Load(), r.machine.Fresh()
		err := r.job(ctx, job)
		done := doneJob{took: time.Since(begun), bytes: r.received.Load() - received,
			tool: r.machine.Tool, fresh: fresh}
		if job.First && !r.began.IsZero() {
			done.first = r.began.Sub(begun)
		}
		if err != nil && ctx.Err() == nil {
			c.result.failures.Add(fmt.Errorf("%v: %w", r.machine.Tool, err))
		}
		c.mu.Lock()
		if err == nil {
			c.result.jobs = append(c.result.jobs, done)
		}
		c.mu.Unlock()
		building := time.NewTimer(c.build)
		select {
		case <-building.C:
		case <-c.ended:
		case <-ctx.Done():
		}
		building.Stop()
		c.mu.Lock()
		if c.over || len(c.queue) == 0 || ctx.Err() != nil {
			c.idle = append(c.idle, r)
			c.mu.Unlock()
			return
		}
		job, c.queue = c.queue[0], c.queue[1:]
		c.ready(r)
		c.mu.Unlock()
	}
}

// finish accepts no further jobs and waits for the running ones.
func (c *crew) finish() {
	c.mu.Lock()
	c.over, c.queue = true, nil
	c.result.waiting -= c.begun
	c.mu.Unlock()
	close(c.ended)
	c.work.Wait()
}

// progress returns the numbers of finished jobs, busy machines and waiting jobs.
func (c *crew) progress(runners int) (done, busy, waiting int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.result.jobs), runners - len(c.idle), len(c.queue)
}

// pipelines starts one pipeline after the other until the end of the duration. On a busy machine pushes may be late.
// Jobs that have not started by the end count as waiting.
func (c *crew) pipelines(ctx context.Context, o *ciOptions) (err error) {
	defer world.Rescue(&err)
	var herds sync.WaitGroup
	defer herds.Wait()
	rng := rand.New(rand.NewPCG(3, 0))
	job := Job{Pipeline: "refs/pipelines/2", Commit: c.scene.tip, Branch: c.scene.branch}
	for n := 0; ; n++ {
		due := time.Duration(n) * o.every
		if due >= o.common.Duration {
			return nil
		}
		c.result.waiting += o.jobs // until they start
		if !loadgen.Sleep(ctx, time.Until(c.start.Add(due))) {
			return nil
		}
		if time.Since(c.start) >= o.common.Duration {
			continue
		}
		if n == 1 {
			c.result.settled = world.Must(loadgen.Scrape(ctx, o.ops))
		}
		if c.scene.pusher != nil {
			job = c.scene.pusher.next(ctx)
		}
		c.result.pipelines++
		offsets := make([]time.Duration, o.jobs)
		for i := range offsets {
			offsets[i] = time.Duration(rng.Int64N(int64(min(herd, o.every))))
		}
		slices.Sort(offsets)
		begun, job := time.Now(), job
		herds.Go(func() {
			for i, offset := range offsets {
				job.First = i == 0 && n > 0
				if !loadgen.Sleep(ctx, time.Until(begun.Add(offset))) || time.Since(c.start) >= o.common.Duration {
					return
				}
				c.submit(ctx, job)
			}
		})
	}
}

// measure runs the fleet and samples the server.
func (o *ciOptions) measure(ctx context.Context, env loadgen.Env, s *scene) (*ciResult, error) {
	c, err := newCrew(s, o.runners, o.every)
	if err != nil {
		return nil, err
	}
	result := c.result
	if result.before, err = loadgen.Scrape(ctx, o.ops); err != nil {
		return nil, err
	}
	tree, err := loadgen.WatchTree(o.serverPID)
	if err != nil {
		return nil, err
	}
	defer tree.Stop()
	own := loadgen.OwnCPU()
	c.start = time.Now()
	stop := loadgen.Progress(ctx, env.Stderr, func() string {
		done, busy, waiting := c.progress(o.runners)
		return fmt.Sprintf("measuring: %v of %v, %d jobs done, %d machines busy, %d jobs waiting",
			time.Since(c.start).Round(time.Second),
			o.common.Duration, done, busy, waiting)
	})
	defer stop()

	var watchers sync.WaitGroup
	var probed error
	probe := loadgen.Repeat(s.target, s.target.Post("git-upload-pack", "", gitload.LsRefs(s.caps.Format, s.branch)), nil,
		s.timeout)
	probe.Conns, probe.Arrivals, probe.Duration = 4, loadgen.FixedRate(ciProbeRate), o.common.Duration
	probe.Connect, probe.Urgent = true, true
	watchers.Go(func() { result.small, probed = probe.Run(ctx) })
	err = c.pipelines(ctx, o)
	if err == nil {
		loadgen.Sleep(ctx, time.Until(c.start.Add(o.common.Duration)))
	}
	c.finish()
	result.elapsed = time.Since(c.start)
	watchers.Wait()
	result.usage, result.clientCPU = tree.Stop(), loadgen.OwnCPU()-own
	if err == nil {
		err = probed
	}
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	if err != nil {
		return nil, err
	}
	result.after, err = loadgen.Scrape(ctx, o.ops)
	return result, err
}
