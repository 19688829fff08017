package ci

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/bench/gitload"
	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	"github.com/packhorse-git/packhorse/internal/bench/world"
	"github.com/packhorse-git/packhorse/internal/git"
)

// scene is the server and the repository that a fleet works on.
type scene struct {
	target  *loadgen.Target
	caps    Capabilities
	branch  string // full name of the default branch
	history *History
	tip     git.ObjectID
	pusher  *pusher // nil: the tip does not move
	profile []part
	timeout time.Duration
}

// prepare reads the server's capabilities, and the history of its default branch.
func (o *ciOptions) prepare(ctx context.Context, t *loadgen.Target, dir string) *scene {
	s := &scene{target: t, history: NewHistory(), profile: o.fleet(), timeout: o.common.Timeout}
	lines, format, err := gitload.Discover(ctx, t)
	world.Check(err)
	s.caps.Format = format
	for _, line := range lines {
		s.caps.Read(line, loadgen.UserAgent)
	}
	request := t.Post("git-upload-pack", "", gitload.LsRefs(format, "HEAD", "refs/heads/", "refs/tags/"))
	refs := world.Must(gitload.ParseRefs(world.Must(t.AskAll(ctx, request, s.timeout))))
	if s.branch, err = gitload.DefaultRef(refs); err != nil {
		world.Check(errors.New("the server shows no branch: nothing to build"))
	}
	for _, r := range refs {
		if r.Name == s.branch {
			s.tip = r.Id
		}
	}
	s.readHistory(ctx, o.repo, dir)
	for _, r := range refs {
		if strings.HasPrefix(r.Name, "refs/tags/") {
			s.history.Tag(r.Name, r.Id, r.Peeled)
		}
	}
	if o.repo != "" {
		s.pusher = newPusher(ctx, s, o.repo, filepath.Join(dir, "push.git"), o.every)
	}
	return s
}

// readHistory reads the history from the repository's path, or from a clone without trees.
func (s *scene) readHistory(ctx context.Context, repo, dir string) {
	if repo == "" {
		repo = filepath.Join(dir, "history.git")
		world.Must(gitload.RunGitWith(ctx, gitload.GitAccess(s.target), dir, nil, "clone", "-q", "--bare", "--single-branch",
			"--no-tags", "--filter=tree:0", "--", s.target.String(), repo))
	}
	log, err := gitload.RunGit(ctx, repo, nil, "log", "--topo-order", "--reverse", "--format="+LogFormat,
		s.tip.String(), "--")
	if err != nil {
		world.Check(fmt.Errorf("--repo does not contain the tip that the server shows: %w", err))
	}
	world.Check(s.history.Read(strings.NewReader(log)))
}

// pusher makes commits and pushes them by file path.
type pusher struct {
	dir, repo string   // repo is a path or a URL
	env       []string // additional environment of the push
	branch    string
	history   *History
	every     time.Duration
	tip       git.ObjectID // of the commits made so far
	dirs      []string     // of the first tip's tree; their files change
	rng       *rand.Rand
	run       int64 // start of the run in seconds, the prefix of the names of its pipelines
	made      int   // pipelines that have commits
	ready     []Job
}

// maxDirs limits the directories in which the commits change files.
const maxDirs = 1000

// newPusher makes a small repository that borrows the objects of the served one.
func newPusher(ctx context.Context, s *scene, repo, dir string, every time.Duration) *pusher {
	repo = gitload.Absolute(repo)
	p := &pusher{dir: dir, repo: repo, branch: s.branch, history: s.history, tip: s.tip, every: every,
		rng: rand.New(rand.NewPCG(2, 0)), run: time.Now().Unix(), dirs: []string{""}}
	world.Must(gitload.RunGit(ctx, filepath.Dir(dir), nil, "init", "-q", "--bare",
		"--object-format="+s.caps.Format.String(), dir))
	objects := strings.TrimSpace(world.Must(gitload.RunGit(ctx, repo, nil, "rev-parse", "--git-path", "objects")))
	if !filepath.IsAbs(objects) {
		objects = filepath.Join(repo, objects)
	}
	world.Check(os.WriteFile(filepath.Join(dir, "objects/info/alternates"), []byte(objects+"\n"), 0o666))
	world.Must(gitload.RunGit(ctx, dir, nil, "update-ref", p.branch, p.tip.String()))
	trees := world.Must(gitload.RunGit(ctx, dir, nil, "ls-tree", "-r", "-d", "-z", "--name-only", p.branch))
	for name := range strings.SplitSeq(trees, "\x00") {
		if name != "" && !strings.ContainsAny(name, "\"\n") && len(p.dirs) < maxDirs {
			p.dirs = append(p.dirs, name+"/")
		}
	}
	p.commit(ctx)
	return p
}

// next pushes the next pipeline's commits and returns the job for all its machines.
func (p *pusher) next(ctx context.Context) Job {
	if len(p.ready) == 0 {
		p.commit(ctx)
	}
	job := p.ready[0]
	p.ready = p.ready[1:]
	id := job.Commit.String()
	world.Must(gitload.RunGitWith(ctx, p.env, p.dir, nil, "push", "-q", "--", p.repo, id+":"+p.branch,
		id+":"+job.Pipeline))
	return job
}

const (
	// madeAhead is the number of pipelines for which commits are made at once. On a busy machine a pipeline then only
	// needs the push.
	madeAhead = 100
	// maxCommits is the maximum number of commits of a pipeline.
	maxCommits = 3
)

// commit makes the commits of the next pipelines. Their dates are the times when the pipelines are due.
func (p *pusher) commit(ctx context.Context) {
	var in bytes.Buffer
	commits, parents := 0, p.tip.String()
	var ends []int // by pipeline, the number of commits including its own
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
	world.Must(gitload.RunGit(ctx, p.dir, &in, "fast-import", "--quiet"))
	log := world.Must(gitload.RunGit(ctx, p.dir, nil, "log", "--topo-order", "--reverse", "--format="+LogFormat,
		p.tip.String()+".."+p.branch))
	world.Check(p.history.Read(strings.NewReader(log)))
	lines := strings.Split(strings.TrimSpace(log), "\n")
	if len(lines) != commits {
		world.Check(fmt.Errorf("git made %d commits of %d", len(lines), commits))
	}
	for i, end := range ends {
		id, _, _ := strings.Cut(lines[end-1], " ")
		p.tip = world.Must(git.ParseObjectID(id))
		p.ready = append(p.ready, Job{Pipeline: fmt.Sprintf("refs/pipelines/%d%05d", p.run, p.made-madeAhead+i+1),
			Commit: p.tip, Branch: p.branch})
	}
}

// change changes a few files of a commit.
func (p *pusher) change(in *bytes.Buffer) {
	for range 1 + p.rng.IntN(4) {
		text := make([]byte, 200+p.rng.IntN(2000))
		for i := range text {
			text[i] = "etaoin shrdlu\n"[p.rng.IntN(14)]
		}
		fmt.Fprintf(in, "M 100644 inline %spackhorse-bench.txt\ndata %d\n%s\n", p.dirs[p.rng.IntN(len(p.dirs))], len(text),
			text)
	}
}
