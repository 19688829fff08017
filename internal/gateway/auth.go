package gateway

import (
	"context"
	"io"
	"net/http"

	"github.com/packhorse-git/packhorse/internal/auth"
	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/router"
)

// Auth says who calls and what they may do. Safe for concurrent use.
type Auth interface {
	// HTTP tells who sends a request, from its Authorization header; without one the caller is anonymous. It fails with Unauthenticated for
	// credentials that are wrong, Exhausted for too many guesses, or Unavailable.
	HTTP(r *http.Request) (auth.Identity, error)
	// May fails with Unauthenticated if the operation might be allowed to somebody who is known, NotFound if the caller may not know of the
	// repository, Denied if it may, or Unavailable.
	May(ctx context.Context, id auth.Identity, repo git.RepoPath, op auth.Operation) error
	// Configured tells whether callers are told from one another. As soon as they are, objects that no ref reaches are not for everybody.
	Configured() bool
	// Reader tells which of many repositories the identity may read; nil: all. Where that could not be found out of one, it may not, and whole is false.
	Reader(ctx context.Context, id auth.Identity) func([]git.RepoPath) (may []bool, whole bool)
}

// identify finds out who calls.
func (e *exchange) identify() (err error) {
	if e.Auth == nil {
		return nil
	}
	e.w.Header().Add("Vary", "Authorization")
	e.id, err = e.Auth.HTTP(e.r)
	return err
}

// keepPrivate keeps caches and browsers from storing an answer that is made for a caller who is known (RFC 9111, sections 3.5 and 5.2.2). Git's
// own answers go without: they say no-cache, as git's do, and no browser asks for them.
func (e *exchange) keepPrivate() {
	if !e.id.Anonymous() {
		e.w.Header().Set("Cache-Control", "private, no-store")
	}
}

// may finds out who calls and whether they may do it; if not, it answers.
func (e *exchange) may(op auth.Operation) bool {
	err := e.identify()
	if err == nil {
		err = e.allow(op)
	}
	if err != nil {
		e.fail(err)
	}
	return err == nil
}

// allow fails if the caller may not do this. It is the one place where calls are let through, whichever way they came in; relay asks no node
// before. A caller who may not know of the repository is let through too: what they ask of a node is for a repository that does not exist (see
// asked), so that nothing, neither the answer nor its time, tells this case from that one. Sessions that follow have c.reachable.
func (c *call) allow(op auth.Operation) error {
	err := error(nil)
	switch {
	case c.Auth != nil:
		c.reachable = c.Auth.Configured()
		err = c.Auth.May(c.ctx, c.id, c.repo, op)
		if fault.Is(err, fault.NotFound) {
			c.hidden, err = true, nil
		}
	case op != auth.Read:
		err = fault.New(fault.Denied, "this server does not accept pushes")
	}
	c.let = err == nil
	c.know()
	return err
}

// challenge makes an answer one after which git asks its credential helpers, and tries again with what they know. No cache may keep it.
func (e *exchange) challenge() {
	e.w.Header().Set("WWW-Authenticate", `Basic realm="packhorse", charset="UTF-8"`)
	e.w.Header().Set("Cache-Control", "no-store")
}

// asked is a node as this request may see it.
func (c *call) asked(n router.Node) router.Node {
	if c.hidden {
		return absent{n, c.repo}
	}
	return n
}

// absent is a node that is asked for a repository which does not exist, and says of it what it would say of the one that was named.
type absent struct {
	node router.Node
	repo git.RepoPath
}

// path names what is in nobody's repository: what begins so is the node's own, and never served. Its names are as deep and as long
// as those of the repository, so that looking for it takes as long.
func (a absent) path() git.RepoPath {
	const own = ".packhorse/absent/"
	name := a.repo.String()
	path, err := git.ParseRepoPath(own + name[max(0, len(name)+len(own)-git.MaxRepoPath):])
	if err != nil {
		path, _ = git.ParseRepoPath(own + "repository")
	}
	return path
}

func (a absent) hide(outcome node.Outcome, err error) (node.Outcome, error) {
	if err == nil || fault.Is(err, fault.NotFound) {
		err = auth.NoRepository(a.repo)
	}
	return outcome, err
}

func (a absent) Advertise(ctx context.Context, _ git.RepoPath, session node.Session, reply node.ResponseWriter) (node.Outcome, error) {
	return a.hide(a.node.Advertise(ctx, a.path(), session, reply))
}

func (a absent) UploadPack(ctx context.Context, _ git.RepoPath, session node.Session, request io.Reader, reply node.ResponseWriter) (
	node.Outcome, error) {
	return a.hide(a.node.UploadPack(ctx, a.path(), session, request, reply))
}

func (a absent) ReceivePack(ctx context.Context, _ git.RepoPath, session node.Session, pusher node.Pusher, request io.Reader,
	reply node.ResponseWriter) (node.Outcome, error) {
	return a.hide(a.node.ReceivePack(ctx, a.path(), session, pusher, request, reply))
}
