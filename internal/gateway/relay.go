package gateway

import (
	"errors"
	"log/slog"

	"github.com/packhorse-git/packhorse/internal/auth"
	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/inflight"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/router"
)

// relay asks a node for the answer, and another one if that fails while the client has seen nothing of it.
//
// What a node says of the request (NotFound, Denied, Invalid) is an answer: replicas agree on it, and asking another one would hide that
// they do not. So is Deadline: the next one would take as long. Another node is asked after Unavailable and Internal; after Exhausted,
// because it may have room, but not if it is the caller's share that is used up; after Corrupt, because it has another disk; and after Cancelled, if it was not the client who went away:
// so a node gives up that comes to its end. None of this holds for what the gateway itself refuses. After a connection that was kept for too
// long (node.StaleConnError) the same node may be asked once more.
func (c *call) relay(a answer, ask func(router.Node) (node.Outcome, error)) {
	if !c.let {
		c.err = fault.New(fault.Internal, "a node was to be asked before it was clear whether the caller may")
		return
	}
	assign := c.Router.Assign
	if c.push {
		assign = c.Router.AssignPrimary
	}
	m, err := assign(c.repo, nil)
	if err != nil {
		c.err = err
		return
	}
	var told error // of the failures so far, the one with the best advice for the client
	stale := false
	for {
		c.node = m.Name
		if !c.try(m, a, ask) {
			return
		}
		if told == nil || passes(c.err) && !passes(told) {
			told = c.err
		}
		failed := append(c.failed, m.Name)
		if _, ok := errors.AsType[*node.StaleConnError](c.err); ok && !stale {
			stale, failed = true, c.failed
		}
		if len(failed) == router.MaxTries || !a.again() {
			break
		}
		next, err := assign(c.repo, failed)
		if err != nil {
			break
		}
		c.failed = failed
		c.failover(m, next)
		m = next
	}
	c.err = told
}

// try asks one node. It reports whether another one may be asked.
func (c *call) try(m *router.Assignment, a answer, ask func(router.Node) (node.Outcome, error)) (again bool) {
	blame := router.Panicked
	defer func() { m.Done(blame) }()
	c.running.At(inflight.Working)
	defer c.traced(m.Name)()
	c.outcome, c.err = ask(c.asked(m.Node))
	if broken, ok := errors.AsType[*node.ClientConnError](c.err); ok && !a.started() {
		c.err = broken.Err // the connection that broke is not the client's
	}
	if blame = (router.Blame{}); c.err == nil || c.notTheNode(a) {
		return false
	}
	if fault.Is(c.err, fault.Cancelled) {
		c.err = &fault.Error{
			Kind: fault.Unavailable, Msg: "the storage node " + m.Name + " gave the request up; try again", RetryAfter: fault.RetrySoon, Err: c.err,
		}
	}
	if _, ok := errors.AsType[*node.StaleConnError](c.err); ok {
		return !a.started()
	}
	blame = router.BlameFor(c.err)
	return blame != router.Blame{} && !a.started()
}

// traced makes what a node does a part of the request's trace, until it is called.
func (c *call) traced(node string) func() {
	whole := c.ctx
	ctx, span := inflight.Trace(whole, "node")
	if span == nil {
		return func() {}
	}
	c.ctx = ctx
	return func() {
		c.ctx = whole
		span.Text("packhorse.node", node)
		failure := ""
		if c.err != nil {
			failure = c.errorKind()
		}
		span.End(failure)
	}
}

// notTheNode tells whether an error has its cause here or at the client.
func (c *call) notTheNode(a answer) bool {
	_, broken := errors.AsType[*node.ClientConnError](c.err)
	return broken || c.ctx.Err() != nil || a.hindered()
}

// passes tells whether an error is one after which a client may try again.
func passes(err error) bool {
	return fault.Is(err, fault.Unavailable) || fault.Is(err, fault.Exhausted)
}

// failover counts and logs that another node is asked; of the request itself the log tells only what came of it.
func (c *call) failover(from, to *router.Assignment) {
	kind := fault.KindOf(c.err)
	c.Router.CountFailover(from, kind)
	level := slog.LevelWarn
	if kind == fault.Internal || kind == fault.Corrupt {
		level = slog.LevelError
	}
	c.Log.LogAttrs(c.ctx, level, "a storage node failed; another one is asked",
		slog.String("node", from.Name), slog.String("next", to.Name), slog.String("repository", auth.Redact(c.repo.String())),
		slog.String("error", auth.Redact(clipError(c.err.Error()))))
}
