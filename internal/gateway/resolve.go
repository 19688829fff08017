package gateway

import (
	"context"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node"
)

// RevisionQuestion is a revision to resolve. Repository is the path as the client sent it.
type RevisionQuestion struct {
	Repository string `json:"repo"`
	Revision   string `json:"rev"`
}

// Resolve resolves revisions of repositories that the caller may read, in their order. A caller who may not know of a
// repository gets the same answer, after the same time, as for one that does not exist.
func (r *Request) Resolve(ctx context.Context, questions []RevisionQuestion) ([]node.Result, error) {
	repositories := make(map[string]*readableRepo, 1)
	results := make([]node.Result, len(questions))
	asked, at := make([]node.Question, 0, len(questions)), make([]int, 0, len(questions))
	for i, q := range questions {
		if repositories[q.Repository] == nil {
			repositories[q.Repository] = r.readable(q.Repository)
		}
		repo := repositories[q.Repository]
		if repo.err != nil {
			results[i].Err = repo.err
			continue
		}
		path := repo.path
		if repo.hidden {
			path = AbsentPath(path)
		}
		asked, at = append(asked, node.Question{Repository: path, Revision: q.Revision}), append(at, i)
	}
	if len(repositories) > 1 {
		r.Repo = git.RepoPath{} // the log line names no single repository
	}
	if len(asked) == 0 {
		return results, nil
	}
	found, err := r.Resolver.Resolve(ctx, asked)
	if err != nil {
		return nil, err
	}
	for i, result := range found {
		if repo := repositories[questions[at[i]].Repository]; repo.hidden {
			result.Err = hideAnswer(repo.path, result.Err)
		}
		results[at[i]] = result
	}
	return results, nil
}

// readableRepo is a repository as this caller may see it.
type readableRepo struct {
	path   git.RepoPath
	hidden bool  // the caller may not know of it
	err    error // nil: it may be read
}

func (r *Request) readable(name string) *readableRepo {
	if name == "" {
		return &readableRepo{err: fault.New(fault.Invalid, "a question names no repository")}
	}
	path, err := ParseRepo(name)
	if err != nil {
		return &readableRepo{err: err}
	}
	r.Repo, r.hidden = path, false
	err = r.Authorize(auth.Read)
	return &readableRepo{path: r.Repo, hidden: r.hidden, err: err}
}

// ParseRepo parses the path of a repository as a client sent it.
func ParseRepo(name string) (git.RepoPath, error) {
	path, err := git.ParseRepoPath(name)
	if err != nil {
		return path, fault.Wrap(fault.NotFound, "no such repository: "+err.Error(), err)
	}
	if auth.HoldsToken(name) { // it would be in the logs of nodes
		return git.RepoPath{}, fault.New(fault.NotFound,
			"no such repository: its path contains an access token; revoke the token, and use a new one as the password")
	}
	return path, nil
}
