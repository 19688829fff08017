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
	"github.com/packhorse-git/packhorse/internal/git"
)

// The values of --case.
const (
	full        = "full"
	incremental = "incremental"
	afterPush   = "push"
	firstJob    = "first-job"
)

// shape is the kind of a fetch.
type shape struct {
	name   string
	depth  int    // 0: the whole history
	filter string // "": none
	tags   bool   // include-tag
	all    bool   // wants all branches and tags instead of the default branch
}

var (
	shallow     = shape{name: "depth-1", depth: 1}
	deeper      = shape{name: "depth-20", depth: 20, tags: true}
	whole       = shape{name: full, tags: true, all: true}
	blobless    = shape{name: "blob-none", filter: "blob:none", tags: true, all: true}
	update      = shape{name: incremental, tags: true}
	emptyCache  = []shape{shallow, deeper, whole, blobless, update}
	pushShapes  = []shape{shallow, deeper, whole}
	pushCommits = []int{1, 10, 50}
	caseNames   = []string{shallow.name, deeper.name, full, blobless.name, incremental, afterPush, firstJob}
)

// refs are the objects that clients want.
type refs struct {
	format git.ObjectFormat
	tip    git.ObjectID   // of the default branch
	all    []git.ObjectID // of all branches and tags, sorted
}

// request is a fetch of this shape.
func (s shape) request(r *refs, haves []string) *gitload.FetchRequest {
	f := &gitload.FetchRequest{Format: r.format, Depth: s.depth, Filter: s.filter, Tags: s.tags, Haves: haves}
	wants := []git.ObjectID{r.tip}
	if s.all {
		wants = r.all
	}
	for _, id := range wants {
		f.Wants = append(f.Wants, id.String())
	}
	return f
}

// series has the measurements of one row of the report.
type series struct {
	name    string
	measure func(round int)
	ours    []*sample
	git     []*sample
}

// run measures one repository.
type run struct {
	*options
	dir    string
	path   string // empty: the synthetic repository
	origin *origin
	server *server
	seen   map[[sha256.Size]byte]bool // packs that git has checked

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

// measure prepares the repository and the servers, measures all cases, and returns the rows of the report.
func (r *run) measure(ctx context.Context) (rows []row, err error) {
	w, err := world.New(r.dir, r.program)
	defer func() { err = errors.Join(err, w.Close()) }()
	if err != nil {
		return nil, err
	}
	defer world.Rescue(&err)
	r.enter("cloning and repacking")
	r.origin = r.prepare(ctx, w.Root())
	r.server = r.start(ctx, w, "server", false)
	if r.maintain {
		world.Check(r.server.Maintain(ctx, filepath.Base(r.origin.path)))
	}
	r.seen = map[[sha256.Size]byte]bool{}
	list := r.plan(ctx, w)
	for round := range r.rounds {
		for _, s := range list {
			r.enter("%s, round %d", s.name, round+1)
			s.measure(round)
		}
	}
	for _, s := range list {
		rows = append(rows, newRow(s))
	}
	return rows, nil
}

const (
	// incrementals is the number of incremental fetches in a round. Their latency is a few milliseconds.
	incrementals = 10
	// jobs is the maximum number of pushes with a first job in a round.
	jobs = 10
)

// plan returns the rows of the report in their order.
func (r *run) plan(ctx context.Context, w *world.World) (list []*series) {
	add := func(name string, measure func(s *series, round int)) {
		s := &series{name: name}
		s.measure = func(round int) { measure(s, round) }
		list = append(list, s)
	}
	for _, shape := range emptyCache {
		if !r.wanted(shape.name) || shape.name == incremental && r.origin.base == "" {
			continue
		}
		add(shape.name, func(s *series, round int) {
			c := &fetch{shape: shape, repo: r.origin.path, refs: r.origin.refs}
			repeat := 1
			if shape.name == incremental {
				repeat, c.haves, c.base = incrementals, r.origin.behind, r.origin.base
			}
			for i := range repeat {
				r.server.drop(ctx)
				r.compare(ctx, c, s, round+i)
			}
		})
	}
	for _, n := range pushCommits {
		for _, shape := range pushShapes {
			if r.wanted(afterPush) && n <= r.origin.deepest() {
				add(fmt.Sprintf("%s after %d", shape.name, n),
					func(s *series, round int) { r.afterPush(ctx, shape, n, s, round) })
			}
		}
	}
	if r.wanted(firstJob) && r.origin.deepest() > 0 {
		add(firstJob+", no warm-up", func(s *series, _ int) { r.firstJobs(ctx, r.server, s) })
		warm := r.start(ctx, w, "warm", true)
		add(firstJob+", warm-up", func(s *series, _ int) { r.firstJobs(ctx, warm, s) })
	}
	return list
}

// fetch is a fetch by a client.
type fetch struct {
	shape shape
	repo  string // path of the served repository
	refs  *refs
	haves []string
	base  string // the commit whose history the client has, if it has haves
}

// compare measures one fetch by the server and by git, in turn. Git then checks the pack, which is in the cache, unless
// it has checked the same pack before.
func (r *run) compare(ctx context.Context, c *fetch, to *series, turn int) {
	t := r.server.target(c.repo)
	request := c.shape.request(c.refs, c.haves)
	body := request.Body()
	order := []func(){func() {
		// the request that a client sends before its fetch; the server then knows the repository
		world.Must(t.AskAll(ctx, t.Post("git-upload-pack", "", gitload.LsRefs(c.refs.format, "HEAD")), timeout))
		s := r.server.measure(ctx, t, body)
		if !s.missed {
			world.Check(errors.New("the pack came from the cache, want a miss"))
		}
		to.ours = append(to.ours, s)
	}, func() { to.git = append(to.git, measureGit(ctx, c.repo, body)) }}
	if turn%2 == 1 {
		slices.Reverse(order)
	}
	for _, measure := range order {
		measure()
	}
	if !r.check {
		return
	}
	check := gitload.Check{Request: request, Seen: r.seen}
	if len(c.haves) > 0 {
		check.Prepare = func(ctx context.Context, repo string) error {
			_, err := gitload.RunGit(ctx, repo, nil, "fetch", "-q", "--no-tags", "file://"+c.repo, c.base+":refs/heads/have")
			return err
		}
	}
	world.Must(check.Fetch(ctx, t, timeout))
}

// afterPush measures the first fetch after a push of n commits to a new copy of the repository. The cache has the pack
// of the previous tip.
func (r *run) afterPush(ctx context.Context, shape shape, n int, to *series, turn int) {
	r.server.drop(ctx)
	path := r.origin.copyAt(ctx, r.server, fmt.Sprintf("%s-%d.git", shape.name, n), n)
	defer os.RemoveAll(path)
	t := r.server.target(path)
	world.Must(gitload.FetchOnce(ctx, t, shape.request(readRefs(ctx, path), nil).Body(), timeout))
	r.origin.push(ctx, r.server, path, 0)
	r.compare(ctx, &fetch{shape: shape, repo: path, refs: readRefs(ctx, path)}, to, turn)
}

// firstJobs pushes commits one by one. Each push is followed at once by a job of depth 1.
func (r *run) firstJobs(ctx context.Context, s *server, to *series) {
	behind := min(jobs, r.origin.deepest())
	path := r.origin.copyAt(ctx, s, "first-job.git", behind)
	defer os.RemoveAll(path)
	t := s.target(path)
	request := func(n int) []byte {
		return shallow.request(&refs{format: r.origin.refs.format, tip: r.origin.history[n]}, nil).Body()
	}
	for range 2 { // then the shape is popular
		world.Must(gitload.FetchOnce(ctx, t, request(behind), timeout))
	}
	before := world.Must(s.Metrics(ctx))
	for n := behind - 1; n >= 0; n-- {
		r.origin.push(ctx, s, path, n)
		began := time.Now()
		_, _, err := gitload.Discover(ctx, t)
		world.Check(err)
		connected := time.Since(began)
		answer := *world.Must(gitload.FetchOnce(ctx, t, request(n), timeout))
		answer.First += connected
		answer.Took += connected
		peer := measureGit(ctx, path, request(n))
		to.ours, to.git = append(to.ours, &sample{answer: answer}), append(to.git, peer)
		s.settle(ctx)
	}
	d := world.Must(s.Metrics(ctx)).Since(before)
	to.ours[len(to.ours)-1].by = fmt.Sprintf("%.0f hit, %.0f follow of %d", d.Sum(loadgen.Requests, loadgen.Hit),
		d.Sum(loadgen.Requests, loadgen.Follow), behind)
}
