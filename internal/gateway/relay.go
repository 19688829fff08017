package gateway

import (
	"errors"
	"log/slog"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
)

// maxTries is how many nodes are asked for one answer: a request that breaks a node must not break them all.
const maxTries = 4

// relay asks a node for the answer, and another one if that fails while the client has seen nothing of it.
//
// What a node says of the request (NotFound, Denied, Invalid) is an answer: replicas agree on it, and asking another one would hide that
// they do not. So is Deadline: the next one would take as long. Another node is asked after Unavailable and Internal; after Exhausted,
// because it may have room; after Corrupt, because it has another disk; and after Cancelled, if it was not the client who went away:
// so a node gives up that comes to its end. None of this holds for what the gateway itself refuses. After a connection that was kept for too
// long (protocol.StaleRoad) the same node may be asked once more.
func (e *exchange) relay(ask func(Node) (protocol.Outcome, error)) {
	m, err := e.Router.assign(e.repo, nil)
	if err != nil {
		e.err = err
		return
	}
	var told error // of the failures so far, the one with the best advice for the client
	stale := false
	for {
		e.node = m.Name
		if !e.try(m, ask) {
			return
		}
		if told == nil || passes(e.err) && !passes(told) {
			told = e.err
		}
		failed := append(e.failed, m.Name)
		if _, ok := errors.AsType[*protocol.StaleRoad](e.err); ok && !stale {
			stale, failed = true, e.failed
		}
		if len(failed) == maxTries || !e.reply.body.rewind() {
			break
		}
		next, err := e.Router.assign(e.repo, failed)
		if err != nil {
			break
		}
		e.reply.rewind()
		e.failed = failed
		e.failover(m, next)
		m = next
	}
	e.err = told
}

// try asks one node. It reports whether another one may be asked.
func (e *exchange) try(m *member, ask func(Node) (protocol.Outcome, error)) (again bool) {
	v := verdict{failed: true, rests: true} // of a panic
	defer func() { e.Router.done(m, v) }()
	e.outcome, e.err = ask(m.Node)
	if broken, ok := errors.AsType[*protocol.BrokenReply](e.err); ok && !e.reply.begun {
		e.err = broken.Err // the connection that broke is not the client's
	}
	if v = (verdict{}); e.err == nil || e.notTheNode() {
		return false
	}
	if fault.Is(e.err, fault.Cancelled) {
		e.err = &fault.Error{
			Kind: fault.Unavailable, Msg: "the storage node " + m.Name + " gave the request up; try again", RetryAfter: time.Second, Err: e.err,
		}
	}
	if _, ok := errors.AsType[*protocol.StaleRoad](e.err); ok {
		return !e.reply.begun
	}
	v = judge(fault.KindOf(e.err))
	return v != verdict{} && !e.reply.begun
}

// notTheNode tells whether an error has its cause here or at the client.
func (e *exchange) notTheNode() bool {
	_, broken := errors.AsType[*protocol.BrokenReply](e.err)
	return broken || e.r.Context().Err() != nil || e.reply.refused != nil || e.reply.body.unpacked.failed
}

// verdict is what an error says of the node that it comes from; the zero verdict: nothing.
type verdict struct {
	failed bool // it is the cause
	rests  bool // others are to be preferred for a moment
}

func judge(kind fault.Kind) verdict {
	switch kind {
	case fault.Unavailable, fault.Internal:
		return verdict{failed: true, rests: true}
	case fault.Exhausted:
		return verdict{rests: true}
	case fault.Corrupt: // one repository of many
		return verdict{failed: true}
	}
	return verdict{}
}

// passes tells whether an error is one after which a client may try again.
func passes(err error) bool {
	return fault.Is(err, fault.Unavailable) || fault.Is(err, fault.Exhausted)
}

// failover counts and logs that another node is asked; of the request itself the log tells only what came of it.
func (e *exchange) failover(from, to *member) {
	kind := fault.KindOf(e.err)
	e.Router.metrics.countFailover(from.Name, kind)
	level := slog.LevelWarn
	if kind == fault.Internal || kind == fault.Corrupt {
		level = slog.LevelError
	}
	e.Log.LogAttrs(e.r.Context(), level, "a storage node failed; another one is asked",
		slog.String("node", from.Name), slog.String("next", to.Name), slog.String("repository", e.repo.String()),
		slog.String("error", clipError(e.err.Error())))
}
