package remote

import (
	"bytes"
	"context"
	"errors"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/fault/faultrpc"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1"
)

// maxShort is how long a request may be that goes in one message, in bytes.
const maxShort = 64 << 10

// isFetch tells whether a request of protocol v2 asks for a pack, or leads to one: those take a road of their own
// anyway.
func isFetch(request []byte) bool {
	const lengthDigits = 4
	return len(request) < lengthDigits || bytes.HasPrefix(request[lengthDigits:], []byte("command=fetch"))
}

// isShort tells whether an answer should be tried with one message each way: not one that lists all refs to who
// fetches. That is Connect's protocol on HTTP/1.1: where the road was chosen for a proxy that speaks nothing but gRPC,
// it leads nowhere.
func (n *Node) isShort(session node.Session) bool {
	return (session.Version == protocol.V2 || session.Service == protocol.ReceivePack) && !n.InBand
}

// short makes a session of one message each way, with the whole request, or nil for an advertisement. done is false if
// the answer is long; nothing of it has come then.
func (n *Node) short(ctx context.Context, repo git.RepoPath, session node.Session, data []byte,
	reply node.ResponseWriter) (
	o node.Outcome, err error, done bool) {
	if s := n.state.Load(); !s.reachable {
		return o, s.err, true
	}
	request := connect.NewRequest(&internalv1.UnarySessionRequest{Repository: repo.String(),
		Session: sessionMessage(session), Data: data})
	n.introduce(ctx, request.Header())
	response, err := n.link.Load().shorts.UnarySession(ctx, request)
	if err != nil {
		if connect.IsWireError(err) && connect.CodeOf(err) == connect.CodeUnimplemented {
			return o, nil, false // an older node
		}
		if said, ok := faultrpc.Detail[*internalv1.Outcome](err); ok {
			o = outcomeOf(ctx, said)
		}
		return o, n.failed(ctx, err), true
	}
	if response.Msg.GetTooLong() {
		return o, nil, false
	}
	r := relay{node: n, ctx: ctx, reply: reply}
	if response.Msg.GetEnd() == nil {
		return o, r.cut(errors.New("an answer without an end")), true
	}
	if response.Msg.GetEnd().GetFault() == nil {
		reply.SetLength(int64(len(response.Msg.GetData())))
	}
	if err := r.write(response.Msg.GetData()); err != nil {
		return r.outcome, err, true
	}
	err = r.said(response.Msg.GetEnd())
	return r.outcome, err, true
}
