package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/gateway/router"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
)

// Advertise has a node begin a session for the caller of the request.
func (r *Request) Advertise(session node.Session, response *Response) {
	r.complete(&session)
	r.relay(response, func(n router.Node, repo git.RepoPath) (node.Outcome, error) {
		return n.Advertise(r.Ctx, repo, session, response)
	})
}

// UploadPack has a node answer a request of a fetch session.
func (r *Request) UploadPack(session node.Session, body *Body, response *Response) {
	r.complete(&session)
	r.relay(response, func(n router.Node, repo git.RepoPath) (node.Outcome, error) {
		return n.UploadPack(r.Ctx, repo, session, body, response)
	})
	r.Op = operationOf(r.Outcome.Command)
}

// ReceivePack has a node receive a push. A push is not sent twice: after its first byte was read, no other node is
// tried.
func (r *Request) ReceivePack(session node.Session, body *Body, response *Response) {
	r.complete(&session)
	pusher := node.Pusher{Name: r.ID.Name, Address: HostOf(r.Client), Rules: r.RefRules}
	r.relay(response, func(n router.Node, repo git.RepoPath) (node.Outcome, error) {
		session.StoreID = r.storeID
		ctx, end := r.whilePermitted()
		o, err := n.ReceivePack(ctx, repo, session, pusher, body, r.announceChange(response))
		return o, end(err)
	})
}

// Archive has a node send an archive.
func (r *Request) Archive(a node.Archive, response *Response) {
	session := node.Session{Service: protocol.UploadPack, Stateless: true}
	r.complete(&session)
	r.relay(response, func(n router.Node, repo git.RepoPath) (node.Outcome, error) {
		return n.Archive(r.Ctx, repo, session, a, response)
	})
	if response.Begun() { // the client determines the rest
		r.Rating = &Rating{Class: inflight.ClassCold, Latency: response.begun.Sub(r.start)}
		if r.Outcome.Archive == "hit" {
			r.Rating.Class = inflight.ClassHit
		}
	}
}

func (r *Request) complete(session *node.Session) {
	session.Caller, session.Reachable = string(r.Caller()), r.reachable
	if r.SendCredentials {
		session.Authorization = r.secret
	}
	r.isPush = session.Service == protocol.ReceivePack
}

// Wait waits for a state of the repository until ctx ends. seen is valid if Err is nil.
func (r *Request) Wait(ctx context.Context, condition node.WaitCondition) (seen git.Version) {
	condition.Caller = string(r.Caller())
	r.relay(nil, func(n router.Node, repo git.RepoPath) (o node.Outcome, err error) {
		seen, err = n.Wait(ctx, repo, condition)
		if ctx.Err() != nil && r.Ctx.Err() == nil && fault.Is(err, fault.Cancelled) { // the node did not cancel it
			err = fault.Wrap(fault.Deadline, "the change is not visible yet", err)
		}
		return o, err
	})
	return seen
}

// Call has a node answer a call of the public API, and passes each message of the response to receive. request encodes
// the request for a path of the repository. A change goes to the node that takes pushes, and no other node is tried
// after the call was sent to one; nor is it after the first message.
func (r *Request) Call(call node.Call, isChange bool, request func(git.RepoPath) []byte, receive func([]byte) error) {
	var refused error
	r.isPush, r.isChange = isChange, isChange
	call.Caller, call.Actor = string(r.Caller()), r.ID.Name
	ctx, cancel := context.WithTimeout(r.Ctx, r.timeLimit())
	defer cancel()
	r.relay(nil, func(n router.Node, repo git.RepoPath) (o node.Outcome, err error) {
		calls, ok := n.(router.Calls)
		if !ok {
			return o, fault.New(fault.Unavailable, "the storage node %s takes no calls of the API", r.node)
		}
		call.Request = request(repo)
		if isChange {
			call.StoreID = r.storeID
		}
		err = calls.Call(ctx, call, func(message []byte) error {
			r.received = true
			refused = receive(message)
			return refused
		})
		switch {
		case refused != nil: // the node has not failed
			err = nil
		case err != nil && ctx.Err() != nil && r.Ctx.Err() == nil:
			err = fault.Wrap(fault.Deadline, fmt.Sprintf("the request took more than %v", r.timeLimit()), err)
		}
		return o, err
	})
	if isChange && r.Changed != nil {
		r.Changed(r.Repo)
	}
	if refused != nil {
		r.Err = refused
	}
}

// Revisions resolves revisions of the repository, in their order. Each has its own error.
func (r *Request) Revisions(revisions []string) ([]node.Result, error) {
	if !r.authorized {
		return nil, fault.New(fault.Internal, "the request was not authorized before it was sent to a node")
	}
	repo := r.Repo
	if r.hidden {
		repo = AbsentPath(repo)
	}
	questions := make([]node.Question, len(revisions))
	for i, revision := range revisions {
		questions[i] = node.Question{Repository: repo, Revision: revision}
	}
	results, err := r.Router.Resolve(r.Ctx, questions)
	for i := range results {
		if r.hidden {
			results[i].Err = hideAnswer(r.Repo, results[i].Err)
		}
	}
	return results, err
}

// Reachable is the value of node.ReachableHeader for the caller.
func (r *Request) Reachable() string {
	if r.reachable {
		return "1"
	}
	return "0"
}

// relay has a node answer the request. If that fails before a byte was sent to the client, it tries another one. A nil
// response means that nothing is sent to the client.
//
// NotFound, Denied and Invalid are final: replicas agree on them, and a second node would hide that they do not.
// Deadline is final too, because the next node would take as long. So are errors of the gateway itself. Another node is
// tried in these cases:
//
//   - Unavailable and Internal.
//   - Exhausted, because another node may have room, unless the caller's own share is used up.
//   - Corrupt, because another node has another disk.
//   - Cancelled by the node, which does that when it shuts down.
//
// After an error of a reused connection (node.StaleConnError) the same node may be tried once more. A request that must
// not be done twice is final unless the node has not begun it.
//
// call gets the path of the repository for the node. A push may create the repository.
func (r *Request) relay(response *Response, call func(router.Node, git.RepoPath) (node.Outcome, error)) {
	r.relayOnce(response, call)
	if r.createMissing(response) {
		r.relayOnce(response, call)
	}
}

// relayOnce is relay to a repository that exists.
func (r *Request) relayOnce(response *Response, call func(router.Node, git.RepoPath) (node.Outcome, error)) {
	if !r.authorized {
		r.Err = fault.New(fault.Internal, "the request was not authorized before it was sent to a node")
		return
	}
	assign := r.Router.Assign
	switch {
	case r.isPush && r.SendCredentials && !r.secret.IsZero(): // it belongs to the origin
		assign = r.Router.AssignPrimary
	case r.isPush:
		assign = r.Router.AssignPush
	}
	current, err := assign(r.Repo, nil)
	if err != nil {
		r.Err = err
		return
	}
	var best error // of the failures so far, the one with the best advice for the client
	stale := false
	for {
		r.node, r.storeID = current.Name, current.StoreID
		if !r.try(current, response, call) {
			return
		}
		if best == nil || isTemporary(r.Err) && !isTemporary(best) {
			best = r.Err
		}
		failed := append(r.failed, current.Name)
		if _, ok := errors.AsType[*node.StaleConnError](r.Err); ok && !stale {
			stale, failed = true, r.failed
		}
		if len(failed) == router.MaxTries || r.mayBeDone() || !response.rewind() {
			break
		}
		next, err := assign(r.Repo, failed)
		if err != nil {
			break
		}
		r.failed = failed
		r.recordFailover(current, next)
		current = next
	}
	r.Err = best
}

// mayBeDone reports whether the node may have done what must not be done twice, although it failed, or has answered in
// part.
func (r *Request) mayBeDone() bool {
	_, unsent := errors.AsType[*node.UnsentError](r.Err)
	// of Exhausted a node knows before it begins
	return r.received || r.isChange && !unsent && !fault.Is(r.Err, fault.Exhausted)
}

// try tries one node. It reports whether another one may be tried.
func (r *Request) try(a *router.Assignment, response *Response,
	call func(router.Node, git.RepoPath) (node.Outcome, error)) (again bool) {
	blame := router.Panicked
	defer func() { a.Done(blame) }()
	r.At(inflight.Working)
	defer r.trace(a.Name)()
	if r.hidden {
		r.Outcome, r.Err = call(a.Node, AbsentPath(r.Repo))
		r.Err = hideAnswer(r.Repo, r.Err)
	} else {
		r.Outcome, r.Err = call(a.Node, r.Repo)
	}
	if broken, ok := errors.AsType[*node.ClientConnError](r.Err); ok && !response.Begun() {
		r.Err = broken.Err // nothing was sent to the client, so another connection broke
	}
	r.noteRecord(a)
	if blame = (router.Blame{}); r.Err == nil || r.failedHere(response) {
		return false
	}
	if fault.Is(r.Err, fault.Cancelled) {
		r.Err = &fault.Error{
			Kind: fault.Unavailable, Msg: "the storage node " + a.Name + " gave up the request; try again",
			RetryAfter: fault.RetrySoon, Err: r.Err,
		}
	}
	if _, ok := errors.AsType[*node.StaleConnError](r.Err); ok {
		return !response.Begun()
	}
	blame = router.BlameFor(r.Err)
	return blame != router.Blame{} && !response.Begun()
}

// noteRecord remembers whether the node has the repository on its disk, and sends hints about a push to others.
func (r *Request) noteRecord(a *router.Assignment) {
	store := &r.Outcome.Stored
	if store.Record == 0 || r.hidden {
		return
	}
	r.Router.NoteHolding(a, r.Repo, store.Held)
	if store.Tries > 0 {
		r.Router.Hint(a, r.Repo, store.Record)
	}
}

// failedHere reports whether the gateway or the client, and not the node, caused the failure.
func (r *Request) failedHere(response *Response) bool {
	_, broken := errors.AsType[*node.ClientConnError](r.Err)
	return broken || r.Ctx.Err() != nil || response.failedHere()
}

// trace begins a node's part of the request's trace, and returns the function that ends it.
func (r *Request) trace(name string) (end func()) {
	whole := r.Ctx
	ctx, span := inflight.Trace(whole, "node")
	if span == nil {
		return func() {}
	}
	r.Ctx = ctx
	return func() {
		r.Ctx = whole
		span.Text("packhorse.node", name)
		failure := ""
		if r.Err != nil {
			failure = r.errorKind()
		}
		span.End(failure)
	}
}

// isTemporary reports whether the client may succeed if it tries again.
func isTemporary(err error) bool {
	return fault.Is(err, fault.Unavailable) || fault.Is(err, fault.Exhausted)
}

// recordFailover counts and logs that another node is tried. The request's own log line has only the last result.
func (r *Request) recordFailover(from, to *router.Assignment) {
	kind := fault.KindOf(r.Err)
	r.Router.CountFailover(from, r.isPush, kind)
	level := slog.LevelWarn
	if kind == fault.Internal || kind == fault.Corrupt {
		level = slog.LevelError
	}
	r.Log.LogAttrs(r.Ctx, level, "a storage node failed; trying another one",
		slog.String("node", from.Name), slog.String("next", to.Name),
		slog.String("repository", auth.Redact(r.Repo.String())),
		slog.String("error", logError(r.Err)))
}

// announceChange returns the response to a push. It announces the change to caches of revisions before the client gets
// a byte, because the client may request the new revisions at once.
func (r *Request) announceChange(response node.ResponseWriter) node.ResponseWriter {
	if r.Changed == nil {
		return response
	}
	return &pushResponse{response, func() { r.Changed(r.Repo) }}
}

// pushResponse calls changed before each part of a response.
type pushResponse struct {
	node.ResponseWriter
	changed func()
}

func (p *pushResponse) Write(b []byte) (int, error) {
	p.changed()
	return p.ResponseWriter.Write(b)
}

func (p *pushResponse) Flush() error {
	p.changed()
	return p.ResponseWriter.Flush()
}
