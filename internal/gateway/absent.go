package gateway

import (
	"context"
	"io"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/gateway/router"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node"
)

// visibleNode returns the node, or one without the repository if the caller may not know of it.
func (r *Request) visibleNode(n router.Node) router.Node {
	if r.hidden {
		return absent{n, r.Repo}
	}
	return n
}

// absent is a node for a caller who may not know of a repository. It passes calls to the node with the path of a
// repository that does not exist, and returns the result for the path that the caller named.
type absent struct {
	node router.Node
	repo git.RepoPath
}

// path returns a path that no repository has, because nodes do not serve its first directory. Its depth and length are
// similar to those of the repository's path, so that the search takes as long.
func (a absent) path() git.RepoPath {
	const own = ".packhorse/absent/"
	name := a.repo.String()
	path, err := git.ParseRepoPath(own + name[max(0, len(name)+len(own)-git.MaxRepoPath):])
	if err != nil {
		path, _ = git.ParseRepoPath(own + "repository")
	}
	return path
}

func (a absent) hide(err error) error {
	if err == nil || fault.Is(err, fault.NotFound) {
		return auth.NoRepository(a.repo)
	}
	return err
}

// Advertise implements router.Node.
func (a absent) Advertise(ctx context.Context, _ git.RepoPath, session node.Session,
	response node.ResponseWriter) (node.Outcome, error) {
	outcome, err := a.node.Advertise(ctx, a.path(), session, response)
	return outcome, a.hide(err)
}

// UploadPack implements router.Node.
func (a absent) UploadPack(ctx context.Context, _ git.RepoPath, session node.Session, request io.Reader,
	response node.ResponseWriter) (node.Outcome, error) {
	outcome, err := a.node.UploadPack(ctx, a.path(), session, request, response)
	return outcome, a.hide(err)
}

// ReceivePack implements router.Node.
func (a absent) ReceivePack(ctx context.Context, _ git.RepoPath, session node.Session, pusher node.Pusher,
	request io.Reader, response node.ResponseWriter) (node.Outcome, error) {
	outcome, err := a.node.ReceivePack(ctx, a.path(), session, pusher, request, response)
	return outcome, a.hide(err)
}

// Wait implements waiter.
func (a absent) Wait(ctx context.Context, _ git.RepoPath, condition node.WaitCondition) (seen git.Version, err error) {
	if w, ok := a.node.(waiter); ok {
		seen, err = w.Wait(ctx, a.path(), condition)
	}
	return seen, a.hide(err)
}
