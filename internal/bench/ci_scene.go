package bench

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/bench/fleet"
	"github.com/packhorse-git/packhorse/internal/git"
)

// scene is what a fleet works on.
type scene struct {
	target  *target
	caps    fleet.Capabilities
	branch  string // full name of the default branch
	history *fleet.History
	tip     git.ObjectID
	pusher  *pusher // nil: the tip stays
	profile []part
	timeout time.Duration
}

// prepare learns what the server offers, and the history of its default branch.
func (o *ciOptions) prepare(ctx context.Context, t *target, dir string) (*scene, error) {
	s := &scene{target: t, history: fleet.NewHistory(), profile: o.fleet(), timeout: o.common.timeout}
	if err := s.discover(ctx); err != nil {
		return nil, err
	}
	p := &pings{target: t, request: t.post("git-upload-pack", "", lsRefs(s.caps.Format, "HEAD", "refs/heads/", "refs/tags/")), timeout: s.timeout}
	answer, err := p.first(ctx)
	if err != nil {
		return nil, err
	}
	refs, err := parseRefs(answer)
	if err != nil {
		return nil, err
	}
	if s.branch, err = defaultRef(refs); err != nil {
		return nil, errors.New("the server shows no branch: there is nothing to build")
	}
	for _, r := range refs {
		if r.name == s.branch {
			s.tip = r.id
		}
	}
	if err := s.readHistory(ctx, o.repo, dir); err != nil {
		return nil, err
	}
	for _, r := range refs {
		if strings.HasPrefix(r.name, "refs/tags/") {
			s.history.Tag(r.name, r.id, r.peeled)
		}
	}
	if o.repo != "" {
		s.pusher, err = newPusher(ctx, s, o.repo, filepath.Join(dir, "push.git"), o.every)
	}
	return s, err
}

// discover reads the capability advertisement as a machine gets it.
func (s *scene) discover(ctx context.Context) error {
	format, err := discover(ctx, s.target)
	if err != nil {
		return err
	}
	s.caps.Format = format
	r := &runner{scene: s}
	return r.connected(ctx, func() error {
		return r.advertisement(func(line string) { s.caps.Read(line, userAgent) })
	})
}

// readHistory reads it from the repository's path, or from a clone without trees.
func (s *scene) readHistory(ctx context.Context, repo, dir string) error {
	if repo == "" {
		proxy, err := startRecorder(s.target)
		if err != nil {
			return err
		}
		defer proxy.close()
		repo = filepath.Join(dir, "history.git")
		if _, err := runGit(ctx, dir, nil, "clone", "-q", "--bare", "--single-branch", "--no-tags", "--filter=tree:0", "--", proxy.url, repo); err != nil {
			return fmt.Errorf("reading the history: %w", err)
		}
	}
	log, err := runGit(ctx, repo, nil, "log", "--topo-order", "--reverse", "--format="+fleet.LogFormat, s.tip.String(), "--")
	if err != nil {
		return fmt.Errorf("the tip that the server shows is not in --repo: %w", err)
	}
	return s.history.Read(strings.NewReader(log))
}

// pusher makes commits and pushes them by file path.
type pusher struct {
	dir, repo string   // repo is a path or a URL
	env       []string // beside the usual, for the push
	branch    string
	history   *fleet.History
	every     time.Duration
	tip       git.ObjectID // of the commits made so far
	dirs      []string     // of the first tip's tree, where files change
	rng       *rand.Rand
	run       int64 // when this run began, in seconds: begins the names of its pipelines
	made      int   // pipelines that have commits
	ready     []fleet.Job
}

// maxDirs bounds in how many places the commits change files.
const maxDirs = 1000

// newPusher makes a small repository that borrows the served one's objects.
func newPusher(ctx context.Context, s *scene, repo, dir string, every time.Duration) (*pusher, error) {
	repo = absolute(repo)
	p := &pusher{dir: dir, repo: repo, branch: s.branch, history: s.history, tip: s.tip, every: every,
		rng: rand.New(rand.NewPCG(2, 0)), run: time.Now().Unix()}
	args := []string{"init", "-q", "--bare", "--object-format=" + s.caps.Format.String(), dir}
	if _, err := runGit(ctx, filepath.Dir(dir), nil, args...); err != nil {
		return nil, err
	}
	objects, err := runGit(ctx, repo, nil, "rev-parse", "--git-path", "objects")
	if err != nil {
		return nil, err
	}
	objects = strings.TrimSpace(objects)
	if !filepath.IsAbs(objects) {
		objects = filepath.Join(repo, objects)
	}
	if err := os.WriteFile(filepath.Join(dir, "objects/info/alternates"), []byte(objects+"\n"), 0o666); err != nil {
		return nil, err
	}
	if _, err := runGit(ctx, dir, nil, "update-ref", p.branch, p.tip.String()); err != nil {
		return nil, err
	}
	trees, err := runGit(ctx, dir, nil, "ls-tree", "-r", "-d", "-z", "--name-only", p.branch)
	if err != nil {
		return nil, err
	}
	p.dirs = []string{""}
	for name := range strings.SplitSeq(trees, "\x00") {
		if name != "" && !strings.ContainsAny(name, "\"\n") && len(p.dirs) < maxDirs {
			p.dirs = append(p.dirs, name+"/")
		}
	}
	return p, p.commit(ctx)
}

// next pushes the next pipeline's commits and returns the job that all of its jobs are.
func (p *pusher) next(ctx context.Context) (fleet.Job, error) {
	if len(p.ready) == 0 {
		if err := p.commit(ctx); err != nil {
			return fleet.Job{}, err
		}
	}
	job := p.ready[0]
	p.ready = p.ready[1:]
	id := job.Commit.String()
	if _, err := runGitWith(ctx, p.env, p.dir, nil, "push", "-q", "--", p.repo, id+":"+p.branch, id+":"+job.Pipeline); err != nil {
		return job, fmt.Errorf("pushing to %s: %w", p.repo, err)
	}
	return job, nil
}

// overHTTP has the commits pushed to the server of our own, with a token.
func (p *pusher) overHTTP(ctx context.Context, program, url, state string) error {
	out, err := exec.CommandContext(ctx, program, "token", "create", "bench", "--scope", "write", "--state", state).Output()
	token := tokenText.FindString(string(out))
	if err != nil || token == "" {
		return fmt.Errorf("make a token to push with: %w", cmp.Or(err, errors.New("none was printed")))
	}
	p.repo = url
	p.env = []string{"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=http.extraHeader", "GIT_CONFIG_VALUE_0=Authorization: Bearer " + token}
	return nil
}

var tokenText = regexp.MustCompile(`phk_[0-9A-Za-z]+`)

const (
	// madeAhead is for how many pipelines commits are made at once: what is left to do for a pipeline on a busy machine is the push.
	madeAhead = 100
	// maxCommits is how many commits a pipeline has at most.
	maxCommits = 3
)

// commit makes the commits of the next pipelines. Their dates are those of the times they are due at.
func (p *pusher) commit(ctx context.Context) error {
	var in bytes.Buffer
	commits, parents := 0, p.tip.String()
	var ends []int // by pipeline, how many commits there are up to its last
	for range madeAhead {
		p.made++
		date := p.run + int64(float64(p.made-1)*p.every.Seconds())
		for i := range 1 + p.rng.IntN(maxCommits) {
			message := fmt.Sprintf("bench: pipeline %d, commit %d\n", p.made, i+1)
			commits++
			fmt.Fprintf(&in, "commit %s\nmark :%d\ncommitter Packhorse Bench <bench@localhost> %d +0000\ndata %d\n%sfrom %s\n",
				p.branch, commits, date, len(message), message, parents)
			parents = fmt.Sprintf(":%d", commits)
			p.change(&in)
		}
		ends = append(ends, commits)
	}
	if _, err := runGit(ctx, p.dir, &in, "fast-import", "--quiet"); err != nil {
		return err
	}
	log, err := runGit(ctx, p.dir, nil, "log", "--topo-order", "--reverse", "--format="+fleet.LogFormat, p.tip.String()+".."+p.branch)
	if err != nil {
		return err
	}
	if err := p.history.Read(strings.NewReader(log)); err != nil {
		return err
	}
	lines := strings.Split(strings.TrimSpace(log), "\n")
	for i, end := range ends {
		if end > len(lines) {
			return fmt.Errorf("git made %d commits of %d", len(lines), commits)
		}
		id, _, _ := strings.Cut(lines[end-1], " ")
		if p.tip, err = git.ParseObjectID(id); err != nil {
			return err
		}
		p.ready = append(p.ready, fleet.Job{Pipeline: fmt.Sprintf("refs/pipelines/%d%05d", p.run, p.made-madeAhead+i+1), Commit: p.tip, Branch: p.branch})
	}
	return nil
}

// change changes a few files of a commit.
func (p *pusher) change(in *bytes.Buffer) {
	for range 1 + p.rng.IntN(4) {
		text := make([]byte, 200+p.rng.IntN(2000))
		for i := range text {
			text[i] = "etaoin shrdlu\n"[p.rng.IntN(14)]
		}
		fmt.Fprintf(in, "M 100644 inline %spackhorse-bench.txt\ndata %d\n%s\n", p.dirs[p.rng.IntN(len(p.dirs))], len(text), text)
	}
}

// ownServer is a Packhorse that was started for the run.
type ownServer struct {
	*child
	url, ops string
	repo     string // the copy that it serves
}

// startServer serves a mirror of a repository, with a configuration file of that text unless it is empty.
func startServer(ctx context.Context, dir, repo, program string, args []string, settings string) (*ownServer, error) {
	root, state := filepath.Join(dir, "root"), filepath.Join(dir, "state")
	s := &ownServer{repo: filepath.Join(root, "bench.git")}
	if err := os.Mkdir(root, 0o777); err != nil {
		return nil, err
	}
	if _, err := runGit(ctx, dir, nil, "clone", "-q", "--mirror", "--", absolute(repo), s.repo); err != nil {
		return nil, err
	}
	if _, err := runGit(ctx, s.repo, nil, "config", "gc.auto", "0"); err != nil {
		return nil, err
	}
	if settings != "" {
		config := filepath.Join(dir, "packhorse.toml")
		if err := os.WriteFile(config, []byte(settings), 0o600); err != nil {
			return nil, err
		}
		args = append(args, "--config", config)
	}
	args = append([]string{"serve"}, append(args, "--public-read", "--root", root, "--state", state, "--http", "127.0.0.1:0", "--ops", "127.0.0.1:0", "--log-format", "json")...)
	var err error
	if s.child, err = startChild(ctx, "the server", program, args, filepath.Join(dir, "log")); err != nil {
		return nil, err
	}
	a, err := s.addresses(ctx, state)
	if err != nil {
		return nil, errors.Join(err, s.stop())
	}
	s.url, s.ops = a.HTTP+"/bench.git", a.Ops
	return s, nil
}

// indexPatience is how long a first index may take.
const indexPatience = 10 * time.Minute

// awaitIndex waits until the server has made its index for search, as a server that a fleet asks has: the first one costs more than all pushes that follow.
func (s *ownServer) awaitIndex(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, indexPatience, fmt.Errorf("the server made no index for search in %v: --no-search does without", indexPatience))
	defer cancel()
	metrics := &scraper{url: s.ops + "/metrics", wanted: true}
	for {
		c, err := metrics.read(ctx)
		select {
		case <-s.ended:
			return errors.New("the server has ended while it made its index" + s.lastWords())
		default:
		}
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return err
		case c.failed > 0: // it would try again, and again, while the fleet is measured
			return errors.New("the server cannot make its index for search: --no-search does without" + s.lastWords())
		case !c.searches || c.indexed > 0 && c.unindexed == 0:
			return nil
		}
		sleep(ctx, 100*time.Millisecond)
	}
}
