package remote

import (
	"bytes"
	"context"
	"errors"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1"
	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
)

// maxUnary is the maximum size in bytes of a request that is one message.
const maxUnary = 64 << 10

// isFetch reports whether a request of protocol version 2 may be for a pack. Its response is long.
func isFetch(request []byte) bool {
	const lengthDigits = 4
	return len(request) < lengthDigits || bytes.HasPrefix(request[lengthDigits:], []byte("command=fetch"))
}

// usesUnary reports whether a session should be tried with one message each way. An advertisement that lists all refs
// is too long. With InBand there may be a proxy that supports only gRPC; unary sessions use Connect's protocol over
// HTTP/1.1.
func (n *Node) usesUnary(session node.Session) bool {
	return (session.Version == protocol.V2 || session.Service == protocol.ReceivePack) && !n.InBand
}

// unarySession runs a session of one message each way. data is the whole request, or nil for an advertisement. done is
// false if the response is too long: then nothing was sent to the client.
func (n *Node) unarySession(ctx context.Context, repo git.RepoPath, session node.Session, data []byte,
	w node.ResponseWriter) (o node.Outcome, err error, done bool) {
	if s := n.state.Load(); !s.reachable {
		return o, s.err, true
	}
	request := connect.NewRequest(&internalv1.UnarySessionRequest{
		Repository: repo.String(), Session: sessionMessage(session), Data: data,
	})
	n.addHeaders(ctx, request.Header())
	answer, err := n.link.Load().unary.UnarySession(ctx, request)
	if err != nil {
		return n.outcomeOfError(ctx, err), n.failed(ctx, err), true
	}
	m := answer.Msg
	if m.GetTooLong() {
		return o, nil, false
	}
	r := response{node: n, ctx: ctx, w: w}
	if m.GetEnd() == nil {
		return o, r.invalid("missing end"), true
	}
	err = r.result(m.GetEnd())
	if m.GetEnd().GetFault() == nil {
		if err != nil {
			return o, err, true
		}
		w.SetLength(int64(len(m.GetData())))
		if r.outcome.Stale > 0 {
			setStaleness(w, r.outcome.Stale)
		}
	}
	if failed := r.write(m.GetData()); failed != nil {
		err = failed
	}
	return r.outcome, err, true
}

// countUsage counts the resources that git used on the node for the request that a call belongs to. Sessions report
// them in their outcome.
func countUsage(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, request connect.AnyRequest) (connect.AnyResponse, error) {
		response, err := next(ctx, request)
		if err == nil {
			inflight.From(ctx).AddUsageHeader(response.Header().Get(inflight.UsageHeader))
		} else if answer, ok := errors.AsType[*connect.Error](err); ok {
			inflight.From(ctx).AddUsageHeader(answer.Meta().Get(inflight.UsageHeader))
		}
		return response, err
	}
}
