package gateway

import (
	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/git"
)

// A caller who may not know of a repository gets the answer of a node for AbsentPath, as hideAnswer returns it.

// AbsentPath returns a path that no repository has, because nodes do not serve its first directory. Its depth and
// length are similar to those of the repository's path, so that the search takes as long.
func AbsentPath(repo git.RepoPath) git.RepoPath {
	const own = ".packhorse/absent/"
	name := repo.String()
	path, err := git.ParseRepoPath(own + name[max(0, len(name)+len(own)-git.MaxRepoPath):])
	if err != nil {
		path, _ = git.ParseRepoPath(own + "repository")
	}
	return path
}

// hideAnswer returns the error for the repository that the caller named. Without an error there is none either.
func hideAnswer(repo git.RepoPath, err error) error {
	if err == nil || fault.Is(err, fault.NotFound) {
		return auth.NoRepository(repo)
	}
	return err
}
