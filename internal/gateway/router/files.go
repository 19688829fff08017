package router

import (
	"context"

	"github.com/packhorse-git/packhorse/internal/git"
)

// Files reads files of commits that visible refs reach. Safe for concurrent use.
type Files interface {
	// File returns a file, without its data if it has more than limit bytes. NotFound: the repository, commit or file
	// does not exist or is not visible; Invalid: the path does not name a file.
	File(ctx context.Context, repo git.RepoPath, commit git.ObjectID, path string, limit int64) (git.File, error)
}

var _ Files = (*Router)(nil)

// File asks a node of the repository, and another one if that fails. It does not authorize: the caller has done that.
func (r *Router) File(ctx context.Context, repo git.RepoPath, commit git.ObjectID, path string,
	limit int64) (file git.File, err error) {
	assign := func(tried []string) (*Assignment, error) { return r.Assign(repo, tried) }
	err = try(ctx, assign, func(n *Replica) (err error) {
		file, err = n.Files.File(ctx, repo, commit, path, limit)
		return err
	})
	if err != nil {
		return git.File{}, err
	}
	return file, nil
}
