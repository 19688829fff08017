package cold

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/bench/gitload"
	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	"github.com/packhorse-git/packhorse/internal/bench/world"
)

// series has the measurements of one row of the report, one for each round.
type series struct {
	shape  shape
	pushed int   // commits of the push before the request; 0: the cache was empty
	warmup *bool // of the case first-job; the CPU time is then unknown
	ours   []*sample
	git    []*sample

	hits, follows int // of the case first-job: packs that were in the cache, and that were being made
}

// run measures one repository.
type run struct {
	*options
	dir    string
	path   string // empty: the synthetic repository
	origin *origin
	server *server
	warm   *server                    // with warm-up; nil without the case first-job
	seen   map[[sha256.Size]byte]bool // packs that git has checked
	series []*series

	mu    sync.Mutex // guards stage
	stage string     // for the progress
}

// name is the name of the repository in the report.
func (r *run) name() string {
	if r.path == "" {
		return fmt.Sprintf("%d objects", r.objects)
	}
	name := filepath.Base(gitload.Absolute(r.path))
	return strings.TrimSuffix(strings.TrimSuffix(name, ".git"), ".bundle")
}

func (r *run) progress() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.name() + ": " + r.stage
}

// enter names the stage of the run.
func (r *run) enter(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stage = fmt.Sprintf(format, args...)
}

// wanted reports whether a case is measured.
func (r *run) wanted(name string) bool {
	if len(r.cases) == 0 && r.path == "" {
		return name == full
	}
	return len(r.cases) == 0 || slices.Contains(r.cases, name)
}

// repository prepares the repository and the servers, measures all cases, and returns the rows of the report.
func (r *run) repository(ctx context.Context) (result *repository, err error) {
	w, err := world.New(r.dir, r.program)
	defer func() { err = errors.Join(err, w.Close()) }()
	if err != nil {
		return nil, err
	}
	r.enter("cloning and repacking")
	if r.origin, err = r.prepare(ctx, w.Root()); err != nil {
		return nil, err
	}
	if r.server, err = r.start(ctx, w, "server", false); err != nil {
		return nil, err
	}
	if r.wanted(firstJob) {
		if r.warm, err = r.start(ctx, w, "warm", true); err != nil {
			return nil, err
		}
	}
	r.seen = map[[sha256.Size]byte]bool{}
	for round := range r.rounds {
		if err := r.round(ctx, round); err != nil {
			return nil, err
		}
	}
	result = &repository{Name: r.name(), Rows: []row{}}
	for _, s := range r.series {
		result.Rows = append(result.Rows, newRow(s))
	}
	return result, nil
}

// round measures each case once, or as often as a median of it needs.
func (r *run) round(ctx context.Context, round int) error {
	for _, shape := range emptyCache {
		if !r.wanted(shape.name) || shape.name == incremental && len(r.origin.behind) == 0 {
			continue
		}
		r.enter("%s, round %d", shape.name, round+1)
		repeat := 1
		if shape.name == incremental {
			repeat = incrementals
		}
		for i := range repeat {
			if err := r.empty(ctx, shape, round+i); err != nil {
				return fmt.Errorf("%s: %w", shape.name, err)
			}
		}
	}
	for _, n := range pushCommits {
		for _, shape := range pushShapes {
			if !r.wanted(afterPush) || n > r.origin.deepest() {
				continue
			}
			r.enter("%s after a push of %d, round %d", shape.name, n, round+1)
			if err := r.afterPush(ctx, shape, n, round); err != nil {
				return fmt.Errorf("%s after a push of %d: %w", shape.name, n, err)
			}
		}
	}
	for _, warmup := range []bool{false, true} {
		if !r.wanted(firstJob) || r.origin.deepest() == 0 {
			continue
		}
		r.enter("%s, round %d", firstJob, round+1)
		if err := r.firstJobs(ctx, warmup); err != nil {
			return fmt.Errorf("%s: %w", firstJob, err)
		}
	}
	return nil
}

const (
	// incrementals is the number of incremental fetches in a round. Their latency is a few milliseconds.
	incrementals = 10
	// jobs is the maximum number of pushes with a first job in a round.
	jobs = 10
)

// row returns the series of a row, which it makes if it is new.
func (r *run) row(shape shape, pushed int, warmup *bool) *series {
	for _, s := range r.series {
		if s.shape == shape && s.pushed == pushed && (s.warmup == nil) == (warmup == nil) &&
			(warmup == nil || *warmup == *s.warmup) {
			return s
		}
	}
	s := &series{shape: shape, pushed: pushed, warmup: warmup}
	r.series = append(r.series, s)
	return s
}

// empty measures a fetch from the original repository with an empty cache.
func (r *run) empty(ctx context.Context, shape shape, turn int) error {
	var haves []string
	if shape.name == incremental {
		haves = r.origin.behind
	}
	c := &clientState{shape: shape, repo: r.origin.path, refs: r.origin.refs, haves: haves, base: r.origin.base}
	if err := r.server.drop(ctx); err != nil {
		return err
	}
	return r.compare(ctx, c, r.row(shape, 0, nil), turn)
}

// compare measures one fetch by the server and by git, in turn.
func (r *run) compare(ctx context.Context, c *clientState, to *series, turn int) error {
	t, err := r.server.target(filepath.Base(c.repo))
	if err != nil {
		return err
	}
	request := c.shape.request(c.refs, c.haves).Body()
	ours := func() error {
		if err := r.server.listRefs(ctx, t, c.refs); err != nil {
			return err
		}
		s, err := r.server.measure(ctx, t, request)
		if err != nil {
			return err
		}
		if !s.missed {
			return errors.New("the pack came from the cache, want a miss")
		}
		to.ours = append(to.ours, s)
		return nil
	}
	peer := func() error {
		s, err := measureGit(ctx, c.repo, request)
		to.git = append(to.git, s)
		return err
	}
	order := []func() error{ours, peer}
	if turn%2 == 1 {
		slices.Reverse(order)
	}
	for _, measure := range order {
		if err := measure(); err != nil {
			return err
		}
	}
	return r.verifyOnce(ctx, t, c)
}

// afterPush measures the first fetch after a push of n commits to a new copy of the repository. The cache has the pack
// of the previous tip.
func (r *run) afterPush(ctx context.Context, shape shape, n, turn int) error {
	if err := r.server.drop(ctx); err != nil {
		return err
	}
	path, err := r.origin.copyAt(ctx, r.server, fmt.Sprintf("%s-%d.git", shape.name, n), n)
	if err != nil {
		return err
	}
	defer os.RemoveAll(path)
	if err := r.fetch(ctx, r.server, path, shape); err != nil {
		return err
	}
	if err := r.origin.push(ctx, r.server, path, 0); err != nil {
		return err
	}
	c := &clientState{shape: shape, repo: path}
	if c.refs, err = readRefs(ctx, path); err != nil {
		return err
	}
	return r.compare(ctx, c, r.row(shape, n, nil), turn)
}

// fetch requests the pack of the current tip.
func (r *run) fetch(ctx context.Context, s *server, path string, shape shape) error {
	refs, err := readRefs(ctx, path)
	if err != nil {
		return err
	}
	t, err := s.target(filepath.Base(path))
	if err != nil {
		return err
	}
	_, err = gitload.FetchOnce(ctx, t, shape.request(refs, nil).Body(), r.timeout)
	return err
}

// firstJobs pushes commits one by one. Each push is followed at once by a job of depth 1.
func (r *run) firstJobs(ctx context.Context, warmup bool) error {
	s := r.server
	if warmup {
		s = r.warm
	}
	behind := min(jobs, r.origin.deepest())
	path, err := r.origin.copyAt(ctx, s, fmt.Sprintf("%s-%t.git", firstJob, warmup), behind)
	if err != nil {
		return err
	}
	defer os.RemoveAll(path)
	for range 2 { // then the shape is popular
		if err := r.fetch(ctx, s, path, shallow); err != nil {
			return err
		}
	}
	t, err := s.target(filepath.Base(path))
	if err != nil {
		return err
	}
	to := r.row(shallow, 1, &warmup)
	before, err := s.Metrics(ctx)
	if err != nil {
		return err
	}
	for n := behind - 1; n >= 0; n-- {
		request := shallow.request(&refs{format: r.origin.refs.format, tip: r.origin.history[n]}, nil).Body()
		if err := r.origin.push(ctx, s, path, n); err != nil {
			return err
		}
		began := time.Now()
		if _, _, err := gitload.Discover(ctx, t); err != nil {
			return err
		}
		connected := time.Since(began)
		answer, err := gitload.FetchOnce(ctx, t, request, r.timeout)
		if err != nil {
			return err
		}
		answer.First += connected
		answer.Took += connected
		to.ours = append(to.ours, &sample{answer: *answer})
		peer, err := measureGit(ctx, path, request)
		if err != nil {
			return err
		}
		to.git = append(to.git, peer)
		if _, err := s.settle(ctx); err != nil {
			return err
		}
	}
	after, err := s.Metrics(ctx)
	if err != nil {
		return err
	}
	d := after.Since(before)
	to.hits += int(d.Sum(loadgen.Requests, loadgen.Hit))
	to.follows += int(d.Sum(loadgen.Requests, loadgen.Follow))
	return nil
}
