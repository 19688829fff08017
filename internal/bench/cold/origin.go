package cold

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"

	"github.com/packhorse-git/packhorse/internal/bench/gitload"
	"github.com/packhorse-git/packhorse/internal/bench/world"
	"github.com/packhorse-git/packhorse/internal/git"
)

// origin is a measured repository, repacked, with the copies of it that the cases need.
type origin struct {
	path    string
	branch  string // full name of the default branch
	refs    *refs
	history []git.ObjectID // of the branch by first parents, the newest first
	base    string         // commit of the client of an incremental fetch; "" if the history is too short
	behind  []string       // the first haves of that client
	rewound string         // copy whose branch is rewound by deepest() commits; "" if no case needs it
}

const (
	// incrementalBehind is the number of commits of an incremental fetch.
	incrementalBehind = 20
	// firstHaves is the number of haves in git's first round.
	firstHaves = 16
)

// deepest is the number of commits by which the branch can be rewound.
func (o *origin) deepest() int { return len(o.history) - 1 }

// gitIn runs git in a repository, and returns its output without space at the ends.
func gitIn(ctx context.Context, repo string, args ...string) string {
	return strings.TrimSpace(world.Must(gitload.RunGit(ctx, repo, nil, args...)))
}

// idsOf parses IDs that are separated by space.
func idsOf(text string) (ids []git.ObjectID) {
	for id := range strings.FieldsSeq(text) {
		ids = append(ids, world.Must(git.ParseObjectID(id)))
	}
	return ids
}

// prepare clones or makes the repository below root, and repacks it.
func (r *run) prepare(ctx context.Context, root string) *origin {
	o := &origin{path: filepath.Join(root, "bench.git")}
	if r.path == "" {
		world.Check(synthesize(ctx, o.path, r.objects))
	} else {
		world.Check(gitload.Mirror(ctx, r.path, o.path))
	}
	r.repack(ctx, o.path)
	gitIn(ctx, o.path, "config", "uploadpack.allowFilter", "true")
	o.branch, o.refs = gitIn(ctx, o.path, "symbolic-ref", "HEAD"), readRefs(ctx, o.path)
	o.history = idsOf(gitIn(ctx, o.path, "rev-list", "--first-parent", fmt.Sprintf("-%d", slices.Max(pushCommits)+1),
		o.refs.tip.String()))
	if o.deepest() >= incrementalBehind {
		o.base = o.history[incrementalBehind].String()
		o.behind = strings.Fields(gitIn(ctx, o.path, "rev-list", fmt.Sprintf("-%d", firstHaves), o.base))
	}
	if (r.wanted(afterPush) || r.wanted(firstJob)) && o.deepest() > 0 {
		r.rewind(ctx, o)
	}
	return o
}

// repack does what git gc does in a bare repository. A synthetic repository has no deltas, and no search for them.
func (r *run) repack(ctx context.Context, repo string) {
	args := []string{"-c", fmt.Sprintf("repack.writeBitmaps=%t", r.bitmaps), "gc", "-q", "--prune=now"}
	if r.path == "" {
		args = append([]string{"-c", "pack.window=0"}, args...)
	}
	gitIn(ctx, repo, args...)
}

// rewind makes the copy with the rewound branch. It has no refs that contain a later commit, and none of the objects
// that only these refs reach.
func (r *run) rewind(ctx context.Context, o *origin) {
	o.rewound = filepath.Join(r.dir, "rewound.git")
	world.Check(gitload.Mirror(ctx, o.path, o.rewound))
	updates := fmt.Sprintf("update %s %s\n", o.branch, o.history[o.deepest()])
	for name := range strings.FieldsSeq(gitIn(ctx, o.rewound, "for-each-ref", "--format=%(refname)", "--contains",
		o.history[o.deepest()-1].String())) {
		if name != o.branch {
			updates += "delete " + name + "\n"
		}
	}
	world.Must(gitload.RunGit(ctx, o.rewound, strings.NewReader(updates), "update-ref", "--stdin"))
	r.repack(ctx, o.rewound)
}

// copyAt makes a copy of the repository below the server's root and pushes the branch to where it was n commits ago.
func (o *origin) copyAt(ctx context.Context, s *server, name string, n int) (path string) {
	path = filepath.Join(s.root, name)
	world.Check(gitload.Mirror(ctx, o.rewound, path))
	gitIn(ctx, path, "config", "uploadpack.allowFilter", "true")
	if n != o.deepest() {
		o.push(ctx, s, path, n)
	}
	return path
}

// push pushes the branch over HTTP to where it was n commits ago.
func (o *origin) push(ctx context.Context, s *server, path string, n int) {
	world.Must(gitload.RunGitWith(ctx, s.push, o.path, nil, "push", "-q", "--", s.URL+"/"+filepath.Base(path),
		o.history[n].String()+":"+o.branch))
}

// readRefs reads the refs of a bare repository.
func readRefs(ctx context.Context, repo string) *refs {
	r := &refs{all: idsOf(gitIn(ctx, repo, "for-each-ref", "--format=%(objectname)", "refs/heads", "refs/tags"))}
	slices.SortFunc(r.all, git.ObjectID.Compare)
	r.all = slices.Compact(r.all)
	tip, err := gitload.RunGit(ctx, repo, nil, "rev-parse", "--verify", "-q", "HEAD^{commit}")
	if err != nil {
		world.Check(errors.New("the default branch has no commit"))
	}
	r.tip = idsOf(tip)[0]
	r.format = r.tip.Format()
	return r
}

const (
	minObjects, maxObjects = 1000, 100_000_000
	// treesOfCommit is the number of objects of a synthetic commit that are not files: itself and three trees.
	treesOfCommit = 4
	// fanOut is the number of directories in a directory.
	fanOut = 100
)

// synthesize makes a bare repository of about n small objects. Each commit of its branch adds a directory of small
// files with random text, two levels below the root.
func synthesize(ctx context.Context, path string, n int) error {
	return gitload.Import(ctx, path, []string{"-c", "pack.compression=1", "fast-import", "--quiet", "--depth=0"},
		func(out *bufio.Writer) { writeHistory(out, n) })
}

// writeHistory writes the input of git fast-import (git-fast-import(1)).
func writeHistory(out io.Writer, n int) {
	commits := min(max(n/1000, 10), fanOut*fanOut)
	rng := rand.New(rand.NewPCG(uint64(n), 0))
	made := 0
	for i := range commits {
		message := fmt.Sprintf("commit %d\n", i)
		fmt.Fprintf(out, "commit refs/heads/main\ncommitter Packhorse Bench <bench@localhost> %d +0000\ndata %d\n%s",
			1_700_000_000+i, len(message), message)
		files := n*(i+1)/commits - made - treesOfCommit
		made += files + treesOfCommit
		for f := range files {
			text := fmt.Sprintf("file %d of commit %d\n%016x%016x\n", f, i, rng.Uint64(), rng.Uint64())
			fmt.Fprintf(out, "M 100644 inline %02d/%02d/%04d.txt\ndata %d\n%s\n", i/fanOut, i%fanOut, f, len(text), text)
		}
	}
}
