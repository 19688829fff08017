package gateway

import (
	"context"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
)

// Files reads files of commits that visible refs reach. Safe for concurrent use.
type Files interface {
	// File gives a file; of one with more than limit bytes no data. NotFound: there is no such repository, commit or file that can be seen; Invalid:
	// what is there is no file.
	File(ctx context.Context, repo git.RepoPath, commit git.ObjectID, path string, limit int64) (git.File, error)
}

var _ Files = (*Router)(nil)

// File asks a node of the repository, and another one if that cannot answer. Whoever calls sees to it that it may be read.
func (r *Router) File(ctx context.Context, repo git.RepoPath, commit git.ObjectID, path string, limit int64) (file git.File, err error) {
	var told error // of the failures, the first
	var tried []string
	for len(tried) < maxTries && ctx.Err() == nil {
		m, err := r.assign(repo, tried)
		if err != nil {
			if told == nil {
				told = err
			}
			break
		}
		file, err := r.fileAt(ctx, m, repo, commit, path, limit)
		if err == nil {
			return file, nil
		}
		if told == nil {
			told = err
		}
		if judge(err) == (verdict{}) {
			break
		}
		tried = append(tried, m.Name)
	}
	if told == nil {
		told = ctx.Err()
	}
	return git.File{}, told
}

// fileAt asks one node. The caller got it from the Router, and is done with it afterwards.
func (r *Router) fileAt(ctx context.Context, m *visit, repo git.RepoPath, commit git.ObjectID, path string, limit int64) (file git.File, err error) {
	v := verdict{failed: true, rests: true} // of a panic
	defer func() { r.done(m, v) }()
	if m.Files == nil {
		err = fault.New(fault.Unavailable, "the storage node %s shows no files", m.Name)
	} else {
		file, err = m.Files.File(ctx, repo, commit, path, limit)
	}
	if v = (verdict{}); err != nil && ctx.Err() == nil {
		v = judge(err)
	}
	return file, err
}
