package cold

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/packhorse-git/packhorse/internal/bench/gitload"
	"github.com/packhorse-git/packhorse/internal/git"
)

// origin is a measured repository, repacked, with the copies of it that the cases need.
type origin struct {
	path    string
	branch  string // full name of the default branch
	refs    *refs
	history []git.ObjectID // of the branch by first parents, the newest first; at most maxCommits+1
	base    string         // commit of the client of an incremental fetch; "" if the history is too short
	behind  []string       // the first haves of that client
	rewound string         // copy whose branch is rewound by deepest() commits; "" until it is needed
}

const (
	// incrementalBehind is the number of commits of an incremental fetch.
	incrementalBehind = 20
	// firstHaves is the number of haves in git's first round.
	firstHaves = 16
)

// deepest is the number of commits by which the branch can be rewound.
func (o *origin) deepest() int { return len(o.history) - 1 }

// prepare clones or makes the repository below root, and repacks it.
func (r *run) prepare(ctx context.Context, root string) (*origin, error) {
	o := &origin{path: filepath.Join(root, "bench.git")}
	var err error
	if r.path == "" {
		err = synthesize(ctx, o.path, r.objects)
	} else {
		err = gitload.Mirror(ctx, r.path, o.path)
	}
	if err == nil {
		err = r.repack(ctx, o.path)
	}
	if err != nil {
		return nil, err
	}
	if _, err := gitload.RunGit(ctx, o.path, nil, "config", "uploadpack.allowFilter", "true"); err != nil {
		return nil, err
	}
	head, err := gitload.RunGit(ctx, o.path, nil, "symbolic-ref", "HEAD")
	if err != nil {
		return nil, err
	}
	o.branch = strings.TrimSpace(head)
	if o.refs, err = readRefs(ctx, o.path); err != nil {
		return nil, err
	}
	lines, err := revList(ctx, o.path, "--first-parent", fmt.Sprintf("-%d", slices.Max(pushCommits)+1),
		o.refs.tip.String())
	if err != nil {
		return nil, err
	}
	for _, line := range lines {
		id, err := git.ParseObjectID(line)
		if err != nil {
			return nil, err
		}
		o.history = append(o.history, id)
	}
	if o.deepest() >= incrementalBehind {
		o.base = o.history[incrementalBehind].String()
		o.behind, err = revList(ctx, o.path, fmt.Sprintf("-%d", firstHaves), o.base)
	}
	if err == nil && (r.wanted(afterPush) || r.wanted(firstJob)) && o.deepest() > 0 {
		err = r.rewind(ctx, o)
	}
	return o, err
}

// repack does what git gc does in a bare repository. A synthetic repository has no deltas, and no search for them.
func (r *run) repack(ctx context.Context, repo string) error {
	args := []string{"-c", fmt.Sprintf("repack.writeBitmaps=%t", r.bitmaps), "gc", "-q", "--prune=now"}
	if r.path == "" {
		args = append([]string{"-c", "pack.window=0"}, args...)
	}
	_, err := gitload.RunGit(ctx, repo, nil, args...)
	return err
}

// rewind makes the copy with the rewound branch. It has no refs that contain a later commit, and none of the objects
// that only these refs reach.
func (r *run) rewind(ctx context.Context, o *origin) error {
	o.rewound = filepath.Join(r.dir, "rewound.git")
	if err := gitload.Mirror(ctx, o.path, o.rewound); err != nil {
		return err
	}
	newer, err := gitload.RunGit(ctx, o.rewound, nil, "for-each-ref", "--format=%(refname)", "--contains",
		o.history[o.deepest()-1].String())
	if err != nil {
		return err
	}
	updates := fmt.Sprintf("update %s %s\n", o.branch, o.history[o.deepest()])
	for name := range strings.FieldsSeq(newer) {
		if name != o.branch {
			updates += "delete " + name + "\n"
		}
	}
	if _, err := gitload.RunGit(ctx, o.rewound, strings.NewReader(updates), "update-ref", "--stdin"); err != nil {
		return err
	}
	return r.repack(ctx, o.rewound)
}

// copyAt makes a copy of the repository below the server's root and pushes the branch to where it was n commits ago.
func (o *origin) copyAt(ctx context.Context, s *server, name string, n int) (path string, err error) {
	path = filepath.Join(s.root, name)
	if err := gitload.Mirror(ctx, o.rewound, path); err != nil {
		return "", err
	}
	if _, err := gitload.RunGit(ctx, path, nil, "config", "uploadpack.allowFilter", "true"); err != nil {
		return "", err
	}
	if n == o.deepest() {
		return path, nil
	}
	return path, o.push(ctx, s, path, n)
}

// push pushes the branch over HTTP to where it was n commits ago.
func (o *origin) push(ctx context.Context, s *server, path string, n int) error {
	_, err := gitload.RunGitWith(ctx, s.push, o.path, nil, "push", "-q", "--", s.URL+"/"+filepath.Base(path),
		o.history[n].String()+":"+o.branch)
	if err != nil {
		return fmt.Errorf("push to the server: %w", err)
	}
	return nil
}

// readRefs reads the refs of a bare repository.
func readRefs(ctx context.Context, repo string) (*refs, error) {
	out, err := gitload.RunGit(ctx, repo, nil, "for-each-ref", "--format=%(objectname)", "refs/heads", "refs/tags")
	if err != nil {
		return nil, err
	}
	r := &refs{}
	for line := range strings.FieldsSeq(out) {
		id, err := git.ParseObjectID(line)
		if err != nil {
			return nil, err
		}
		r.all = append(r.all, id)
	}
	slices.SortFunc(r.all, git.ObjectID.Compare)
	r.all = slices.Compact(r.all)
	tip, err := gitload.RunGit(ctx, repo, nil, "rev-parse", "--verify", "-q", "HEAD^{commit}")
	if err != nil {
		return nil, errors.New("the default branch has no commit")
	}
	if r.tip, err = git.ParseObjectID(strings.TrimSpace(tip)); err != nil {
		return nil, err
	}
	r.format = r.tip.Format()
	return r, nil
}

// revList returns the lines of git rev-list.
func revList(ctx context.Context, repo string, args ...string) ([]string, error) {
	out, err := gitload.RunGit(ctx, repo, nil, append([]string{"rev-list"}, args...)...)
	return strings.Fields(out), err
}
